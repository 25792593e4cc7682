"""Whether files are read past the page cache, and in blocks of how many bytes."""

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from headrace.data.memory import available_memory_bytes
from headrace.errors import DataError

__all__ = ["choose_direct", "direct_alignment"]

_AT_FDCWD, _STATX_DIOALIGN = -100, 0x2000
_STATX_BYTES, _STATX_MASK, _STATX_MEM_ALIGN, _STATX_OFFSET_ALIGN = 256, 0, 152, 156


def choose_direct(paths: Sequence[Path], direct: bool | None) -> tuple[bool, int]:
    """Whether to read directly, and the alignment that every file's file system is content with.

    Args:
        paths: the files.
        direct: the user's wish; None: when the files exceed half of the available memory.

    Raises:
        DataError: a file is missing; looked at only when the answer may be direct.
    """
    if direct is False:
        return False, 1
    total_bytes, sample_of_device = 0, dict[int, Path]()
    for path in paths:
        try:
            status = path.stat()
        except OSError as error:
            raise DataError(
                "a data file cannot be opened",
                got=os.strerror(error.errno or errno.ENOENT),
                where=path,
            ) from error
        total_bytes += status.st_size
        sample_of_device.setdefault(status.st_dev, path)
    if direct is None and total_bytes <= available_memory_bytes() // 2:
        return False, 1
    alignments = [direct_alignment(path) for path in sample_of_device.values()]
    return True, max([512, *alignments])


def direct_alignment(path: Path) -> int:
    """The alignment that direct reads of a file need, in bytes; 0 if the file allows none.

    Asks statx (STATX_DIOALIGN, Linux 6.1 and newer); where that has no answer, one page.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "statx"):
        return mmap.PAGESIZE
    answer = ctypes.create_string_buffer(_STATX_BYTES)
    name = os.fsencode(path)
    failed = libc.statx(_AT_FDCWD, name, 0, ctypes.c_uint(_STATX_DIOALIGN), answer)
    words = np.frombuffer(answer.raw, np.uint32)
    if failed or not words[_STATX_MASK // 4] & _STATX_DIOALIGN:
        return mmap.PAGESIZE
    memory, offset = int(words[_STATX_MEM_ALIGN // 4]), int(words[_STATX_OFFSET_ALIGN // 4])
    return max(memory, offset) if offset else 0
