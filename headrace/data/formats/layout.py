"""Records of one size that lie in a file at one stride: what a format finds in a file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError

__all__ = ["Layout", "exact_size", "numeric"]

_MOST_BYTES: Mapping[str, int] = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Kinds of numbers that torch holds too; longer floats than these are the processor's own."""


@dataclass(frozen=True)
class Layout:
    """Record i of a file is the bytes from start_bytes + i * stride_bytes on.

    Args:
        dtype: of the elements as they lie in the file, with their byte order.
        shape: of one record.
        num_records: how many the file has.
        start_bytes: where the first one begins.
        stride_bytes: from one to the next; less than a record where records overlap.
        pieces: int64[P], or None: a record is not one piece but P of equal size, which begin so
            many bytes after its start (such as a row of an array in Fortran order).
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_records: int
    start_bytes: int
    stride_bytes: int
    pieces: NDArray[np.int64] | None = None

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return self.dtype.itemsize * math.prod(self.shape)


def numeric(dtype: np.dtype[Any], path: Path) -> np.dtype[Any]:
    """The dtype, if a network can be trained on it.

    Raises:
        DataError: it is none of bool, integers of 8 to 64 bits, floats of 16, 32 and 64 bits, and
            complex numbers of two floats of 32 or 64 bits.
    """
    if dtype.kind not in _MOST_BYTES or dtype.itemsize > _MOST_BYTES[dtype.kind]:
        raise DataError(
            "a dtype that cannot be trained on",
            got=dtype,
            expected="bool, an integer, float16 to float64, complex64 or complex128",
            where=path,
            remedy="store the numbers as one of these",
        )
    return dtype


def exact_size(path: Path, size_bytes: int, expected_bytes: int, meaning: str) -> None:
    """Checks that a file is as long as its header says.

    Raises:
        DataError: it is truncated, or has bytes too many.
    """
    if size_bytes < expected_bytes:
        raise DataError(
            "the file is truncated",
            got=f"{size_bytes} bytes",
            expected=f"{expected_bytes} for {meaning}",
            where=path,
            remedy="copy or download it again",
        )
    if size_bytes > expected_bytes:
        raise DataError(
            "the file has more bytes than its header says",
            got=f"{size_bytes} bytes",
            expected=f"{expected_bytes} for {meaning}",
            where=path,
            remedy="keep one array a file",
        )
