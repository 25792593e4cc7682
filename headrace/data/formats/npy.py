"""NumPy's .npy files, versions 1 to 3: records are the items of the first axis."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.lib.format import descr_to_dtype

from headrace.data.formats.arrays import check_members, columns_of_array
from headrace.data.formats.format import Format
from headrace.data.formats.layout import Layout, exact_size
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["MAX_HEADER_BYTES", "Npy", "columns_at"]

_MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16
"""Of a sane array a few hundred; more is not worth parsing."""


@final
@dataclass(frozen=True)
class Npy(Format):
    """Field "data"; of a structured dtype, a field for each of its own.

    Source: numpy.lib.format, "The .npy format".
    """

    name: ClassVar[str] = "npy"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its magic number."""
        return head.startswith(_MAGIC)

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Layout]:
        """From its header.

        Raises:
            DataError: the header is damaged, the file's size is not what it says, or the array is
                one that cannot be read in place: a single number, Python objects.
        """
        with path.open("rb") as file:
            head = file.read(12 + MAX_HEADER_BYTES)
            size_bytes = file.seek(0, 2)
        return columns_at(path, head, 0, size_bytes)


def columns_at(path: Path, head: bytes, begin: int, size_bytes: int) -> dict[str, Layout]:
    """Where the records lie of an array that takes size_bytes of a file from byte begin on.

    Args:
        head: its first bytes, the header among them.

    Raises:
        DataError: see Npy.scan.
    """
    header, start_bytes = _header(head, path)
    dtype = _dtype(header["descr"], path)
    shape: tuple[int, ...] = header["shape"]
    if not shape:
        raise DataError(
            "the array has no axis of records",
            got="shape ()",
            expected="at least 1-D",
            where=path,
            remedy="store the records along the first axis",
        )
    num_bytes = dtype.itemsize
    for extent in shape:
        num_bytes *= extent
    check_members(dtype, path)
    exact_size(path, size_bytes, start_bytes + num_bytes, f"{dtype} of shape {shape}")
    is_fortran = header["fortran_order"]
    return columns_of_array(dtype, shape, begin + start_bytes, is_fortran=is_fortran)


def _header(head: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """The dictionary at the head of the file, and where the data begins."""
    if not head:
        raise DataError("the file is empty", got="0 bytes", where=path)
    if not head.startswith(_MAGIC):
        raise DataError(
            "not a .npy file",
            got=f"the first bytes {head[:8].hex(' ')}",
            expected=_MAGIC.hex(" "),
            where=path,
        )
    version = tuple(head[6:8])
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise DataError(
            "a version of .npy that is not known",
            got=".".join(map(str, version)) or "the end of the file",
            expected="1.0, 2.0 or 3.0",
            where=path,
        )
    begin = 10 if version == (1, 0) else 12
    start_bytes = begin + int.from_bytes(head[8:begin], "little")
    text = head[begin:start_bytes]
    if len(head) < begin or len(text) < start_bytes - begin:
        raise _damaged(path, f"a header of {start_bytes} bytes, of which {len(head)} can be read")
    try:
        header = ast.literal_eval(text.decode("utf-8" if version == (3, 0) else "latin-1"))
    except (TypeError, ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise _damaged(path, f"a header that is no dictionary ({error})") from error
    if not _is_sane(header):
        raise _damaged(path, f"the header {str(header)[:200]}")
    return header, start_bytes


def _is_sane(header: object) -> bool:
    return (
        isinstance(header, dict)
        and set(header) == {"descr", "fortran_order", "shape"}
        and isinstance(header["fortran_order"], bool)
        and isinstance(header["shape"], tuple)
        and all(type(extent) is int and extent >= 0 for extent in header["shape"])
    )


def _dtype(description: Any, path: Path) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = descr_to_dtype(description)
    except (TypeError, ValueError) as error:
        raise _damaged(path, f"the dtype {str(description)[:200]}") from error
    return dtype


def _damaged(path: Path, got: str) -> DataError:
    return DataError(
        "the header of the .npy file is damaged",
        got=got,
        expected="a dictionary of descr, fortran_order and shape",
        where=path,
        remedy="store the array again",
    )
