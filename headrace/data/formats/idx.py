"""IDX, the format of the MNIST family: two zero bytes, a type, the axes and their lengths, data."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from headrace.data.formats.format import Format
from headrace.data.formats.layout import Layout, exact_size
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["DTYPES", "Idx"]

DTYPES: Mapping[int, str] = {
    0x08: "u1",
    0x09: "i1",
    0x0B: ">i2",
    0x0C: ">i4",
    0x0D: ">f4",
    0x0E: ">f8",
}
"""The type byte and what it means; numbers are big-endian."""


@final
@dataclass(frozen=True)
class Idx(Format):
    """Field "data": the items of the first axis.

    Source: yann.lecun.com/exdb/mnist, "The IDX file format".
    """

    name: ClassVar[str] = "idx"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its magic number."""
        return _is_idx(head)

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Layout]:
        """From its header.

        Raises:
            DataError: the file is no IDX file, or its size is not what its header says.
        """
        return {"data": _layout(path)}


def _is_idx(head: bytes) -> bool:
    return len(head) >= 4 and head[:2] == b"\0\0" and head[2] in DTYPES and head[3] >= 1


def _layout(path: Path) -> Layout:
    with path.open("rb") as file:
        head = file.read(4 + 4 * 255)
        size_bytes = file.seek(0, 2)
    if not head:
        raise DataError("the file is empty", got="0 bytes", where=path)
    if not _is_idx(head):
        raise DataError(
            "not an IDX file",
            got=f"the first bytes {head[:4].hex(' ')}",
            expected="00 00, a type (08, 09, 0b, 0c, 0d or 0e), the number of axes",
            where=path,
        )
    dtype, num_axes = np.dtype(DTYPES[head[2]]), head[3]
    start_bytes = 4 + 4 * num_axes
    if len(head) < start_bytes:
        exact_size(path, size_bytes, start_bytes, f"the lengths of {num_axes} axes")
    shape = tuple(np.frombuffer(head[4:start_bytes], ">u4").tolist())
    stride = dtype.itemsize * math.prod(shape[1:])
    exact_size(path, size_bytes, start_bytes + shape[0] * stride, f"{dtype} of shape {shape}")
    return Layout(dtype, shape[1:], shape[0], start_bytes, stride)
