"""Open files in bounded number, direct where the file system allows it, else the next best way."""

import errno
import fcntl
import os
import resource
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BUFFERED",
    "DIRECT",
    "DONTCACHE",
    "RWF_DONTCACHE",
    "OpenFiles",
]

BUFFERED, DONTCACHE, DIRECT = 0, 1, 2
"""How a file is read: through the page cache; through it but not kept there; past it."""

RWF_DONTCACHE = 0x80  # include/uapi/linux/fs.h, Linux 6.14 and newer
_O_DIRECT = getattr(os, "O_DIRECT", 0)


@final
class OpenFiles:
    """Descriptors of many files, at most ``max_open`` open, the least recently used closed first.

    Args:
        paths: the files; they are opened when first needed.
        direct: try to read past the page cache.
        max_open: by default half of what the process may open, 1024 at most.

    Attributes:
        descriptors: int32 per file; negative where it is not open (-1) or would not open (-errno).
        modes: int8 per file, BUFFERED, DONTCACHE or DIRECT.
        refusals: what the system answered, for each way of reading that it refused.
    """

    def __init__(self, paths: Sequence[Path], *, direct: bool, max_open: int | None = None) -> None:
        self.paths = paths
        if max_open is None:
            soft_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            max_open = 1024 if soft_limit < 0 else max(1, min(1024, soft_limit // 2))
        self._max_open = max_open
        self.descriptors: NDArray[np.int32] = np.full(len(paths), -1, np.int32)
        mode = (DIRECT if _O_DIRECT else DONTCACHE) if direct else BUFFERED
        self.modes: NDArray[np.int8] = np.full(len(paths), mode, np.int8)
        self.refusals: list[str] = []
        self._in_flight: NDArray[np.int64] = np.zeros(len(paths), np.int64)
        self._recent: dict[int, None] = {}  # open files, the least recently used first

    @property
    def num_open(self) -> int:
        """Files open now."""
        return len(self._recent)

    def acquire(self, files: NDArray[np.int32]) -> int:
        """Opens what a sorted run of requests needs, one file number each.

        Returns how many of them, from the first, may go ahead now: fewer than all when as many
        files as may be open have reads in flight. Each of these must be released. A file that does
        not open leaves -errno in ``descriptors``.
        """
        if len(self.paths) == 1:
            return len(files) if self._ensure_open(0) else 0
        changes = (np.flatnonzero(files[1:] != files[:-1]) + 1).tolist()
        start = 0
        for stop in [*changes, len(files)]:
            file = int(files[start])
            if not self._ensure_open(file):
                return start
            self._in_flight[file] += stop - start
            start = stop
        return len(files)

    def release(self, files: NDArray[np.int32]) -> None:
        """The requests have ended; their files may be closed when others need the place.

        Of a single file nobody needs the place, and none must be released.
        """
        np.subtract.at(self._in_flight, files, 1)

    def lower(self, file: int, error_number: int) -> None:
        """The system refused to read the file its present way: goes on with the next best way."""
        self._note_refusal(file, error_number)
        was_direct = self.modes[file] == DIRECT
        self.modes[file] -= 1
        descriptor = int(self.descriptors[file])
        if was_direct and descriptor >= 0:
            # On the same descriptor: others may have reads in flight on it.
            flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~_O_DIRECT)
            _expect_random(descriptor)

    def size_bytes(self, file: int) -> int:
        """The file's size now."""
        return os.fstat(int(self.descriptors[file])).st_size

    def close(self) -> None:
        """Closes all; no read may be in flight."""
        for file in list(self._recent):
            self._shut(file)

    def _ensure_open(self, file: int) -> bool:
        """Whether the file is open, or was tried; False when a place must first become free."""
        if self.descriptors[file] >= 0:
            if len(self.paths) > 1:
                del self._recent[file]
                self._recent[file] = None
            return True
        while True:
            if len(self._recent) >= self._max_open and not self._evict():
                return False
            try:
                self.descriptors[file] = self._open(file)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._recent:
                    # Somebody else holds the places that we counted on.
                    self._max_open = len(self._recent)
                    continue
                self.descriptors[file] = -(error.errno or errno.EIO)
                return True
            self._recent[file] = None
            return True

    def _open(self, file: int) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC
        path = self.paths[file]
        if self.modes[file] == DIRECT:
            try:
                return os.open(path, flags | _O_DIRECT)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                self._note_refusal(file, error.errno)
                self.modes[file] = DONTCACHE
        descriptor = os.open(path, flags)
        _expect_random(descriptor)
        return descriptor

    def _note_refusal(self, file: int, error_number: int) -> None:
        way = {DIRECT: "O_DIRECT", DONTCACHE: "RWF_DONTCACHE"}[int(self.modes[file])]
        if len(self.refusals) < 16:  # a few tell the story; there may be a million files
            self.refusals.append(f"{way}: {os.strerror(error_number)}; in {self.paths[file]}")

    def _evict(self) -> bool:
        for file in self._recent:
            if self._in_flight[file] == 0:
                self._shut(file)
                return True
        return False

    def _shut(self, file: int) -> None:
        del self._recent[file]
        os.close(int(self.descriptors[file]))
        self.descriptors[file] = -1


def _expect_random(descriptor: int) -> None:
    """Asks the kernel to read what is asked for and nothing ahead of it."""
    if hasattr(os, "posix_fadvise") and stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
