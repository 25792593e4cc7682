"""Reads a file from header to header: through all of it where they are near, else only them."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.sequential import open_sequential
from headrace.progress import Progress

__all__ = ["Step", "walk_file"]

Step = Callable[[int, NDArray[np.uint8]], tuple[int, int]]
"""(where a piece of the file begins, its bytes) -> (where the next header begins, at the piece's
end or anywhere after it or a little before, but not at its begin; how many headers it has passed).
The piece begins with a header; its memory is used again."""

_PIECE_BYTES = 2 << 20
_FAR_BYTES = 256 << 10  # a disk reads about as many in the time that a read takes to begin
_HEADER_BYTES = 4096  # of a read for one header


def walk_file(path: Path, step: Step, progress: Progress, piece_bytes: int = _PIECE_BYTES) -> None:
    """From the first byte, which begins a header, to the last.

    Args:
        path: the file.
        step: takes one piece.
        progress: hears of the bytes behind.
        piece_bytes: of a piece where headers are near.
    """
    with open_sequential(path) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        buffer: NDArray[np.uint8] = np.empty(min(piece_bytes, size_bytes), np.uint8)
        position, length = 0, piece_bytes
        while position < size_bytes:
            num_bytes = os.preadv(file.fileno(), [buffer[:length].data], position)
            if num_bytes == 0:
                return  # cut meanwhile, which whoever looks at the size again will notice
            following, num_headers = step(position, buffer[:num_bytes])
            is_far = following - position >= num_headers * _FAR_BYTES
            length = _HEADER_BYTES if is_far else piece_bytes
            position = following
            progress.update({"bytes": min(position, size_bytes)})
