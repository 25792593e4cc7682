"""Text files in pieces, from the byte after their byte order mark to the last."""

import codecs
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.sequential import open_sequential
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["BEFORE_BYTES", "PIECE_BYTES", "Step", "scan_text", "text_begin", "with_room"]

Step = Callable[[NDArray[np.uint8], int, int], None]
"""Takes a piece: (uint8[...], how many of these the piece has, where it begins in the file). The
piece begins at BEFORE_BYTES, after the last bytes of the piece before; after its end follow as many
bytes that mean nothing. The memory is used again."""

BEFORE_BYTES = 128
"""Bytes of the text, or zeros, before a piece; and room after it."""
PIECE_BYTES = 1 << 20
"""Fits in a processor's cache."""


def text_begin(path: Path) -> int:
    """Where the text of a file begins: after its byte order mark, if it has one.

    Raises:
        DataError: the mark says that the text is UTF-16.
    """
    with path.open("rb", buffering=0) as file:
        head = file.read(len(codecs.BOM_UTF8)) or b""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            "the text is not in UTF-8",
            got=f"the byte order mark {head[:2].hex(' ')} of UTF-16",
            where=path,
            remedy="iconv -f UTF-16 -t UTF-8 converts it",
        )
    return len(codecs.BOM_UTF8) if head == codecs.BOM_UTF8 else 0


def scan_text(
    path: Path, step: Step, progress: Progress, piece_bytes: int = PIECE_BYTES
) -> tuple[int, int]:
    """Hands a file to `step`, piece after piece. What is appended meanwhile is left alone.

    Returns:
        Where the text begins and ends.

    Raises:
        DataError: the text is UTF-16.
    """
    begin = start = text_begin(path)
    memory: NDArray[np.uint8] = np.zeros(piece_bytes + 2 * BEFORE_BYTES, np.uint8)
    piece = memory[BEFORE_BYTES : BEFORE_BYTES + piece_bytes]
    with open_sequential(path) as file:
        end = os.fstat(file.fileno()).st_size
        file.seek(start)
        while size := file.readinto(piece[: end - start].data):
            step(memory, size, start)
            memory[:BEFORE_BYTES] = memory[size : size + BEFORE_BYTES].copy()
            start += size
            progress.update({"bytes": start})
    return begin, start


def with_room(found: NDArray[np.int64], num: int, num_more: int) -> NDArray[np.int64]:
    """What was found so far, int64[K, at least num + num_more]; its first num columns are kept.

    It grows by doubling; memory that is not used takes none.
    """
    needed = num + num_more
    if needed <= found.shape[1]:
        return found
    larger: NDArray[np.int64] = np.empty((len(found), 2 * needed), np.int64)
    larger[:, :num] = found[:, :num]
    return larger
