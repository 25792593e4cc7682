"""NumPy's .npy files, versions 1 to 3: records are the items of the first axis."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype

from headrace.data.formats.layout import Layout, exact_size, numeric
from headrace.errors import DataError

__all__ = ["MAGIC", "scan"]

MAGIC = b"\x93NUMPY"
_MAX_HEADER_BYTES = 1 << 16  # of a sane array a few hundred; more is not worth parsing


def scan(path: Path) -> Layout:
    """Where the records of a file lie; reads its header only.

    Source: numpy.lib.format, "The .npy format".

    Raises:
        DataError: the header is damaged, the file's size is not what it says, or the array is one
            that cannot be read in place: Fortran order, a single number, Python objects, structs.
    """
    with path.open("rb") as file:
        header, start_bytes = _header(file.read(12 + _MAX_HEADER_BYTES), path)
        size_bytes = file.seek(0, 2)
    dtype = numeric(_dtype(header["descr"], path), path)
    shape: tuple[int, ...] = header["shape"]
    if not shape:
        raise DataError(
            "the array has no axis of records",
            got="shape ()",
            expected="at least 1-D",
            where=path,
            remedy="store the records along the first axis",
        )
    if header["fortran_order"] and sum(extent > 1 for extent in shape) > 1:
        raise DataError(
            "the array is in Fortran order",
            got=f"shape {shape}, columns one after another",
            expected="C order, so that a record is one piece",
            where=path,
            remedy="store it by np.save(path, np.ascontiguousarray(array))",
        )
    layout = Layout(dtype, shape[1:], shape[0], start_bytes, 0)
    stride = layout.record_bytes
    exact_size(path, size_bytes, start_bytes + shape[0] * stride, f"{dtype} of shape {shape}")
    return Layout(dtype, shape[1:], shape[0], start_bytes, stride)


def _header(head: bytes, path: Path) -> tuple[dict[str, Any], int]:
    """The dictionary at the head of the file, and where the data begins."""
    if not head.startswith(MAGIC):
        raise DataError(
            "not a .npy file",
            got=f"the first bytes {head[:8].hex(' ')}",
            expected=MAGIC.hex(" "),
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
