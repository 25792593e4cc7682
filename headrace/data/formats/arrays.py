"""Where the records of an array lie: of numbers or of structs, in either order of its axes."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.layout import Layout, numeric

__all__ = ["check_members", "columns_of_array"]


def columns_of_array(
    dtype: np.dtype[Any], shape: tuple[int, ...], start_bytes: int, *, is_fortran: bool = False
) -> dict[str, Layout]:
    """The records of an array that begins at a byte of a file, the items of its first axis.

    Args:
        dtype: of its elements; of structs, each member is a field, else the one field is "data".
        shape: of the whole array, at least 1-D.
        start_bytes: where its first element begins.
        is_fortran: whether the first axis runs fastest.
    """
    if is_fortran and sum(extent > 1 for extent in shape) > 1:
        pieces = _fortran_pieces(shape, dtype.itemsize)
        stride = dtype.itemsize
    else:
        pieces = None
        stride = dtype.itemsize * math.prod(shape[1:])
    columns = {}
    for name, (part, offset) in _members(dtype).items():
        inner, axes = (part.base, part.shape) if part.subdtype else (part, ())
        places = pieces
        if part.itemsize < dtype.itemsize and places is None and len(shape) > 1:
            # One member of each of a record's structs.
            places = np.arange(stride // dtype.itemsize) * dtype.itemsize
        columns[name] = Layout(
            inner, (*shape[1:], *axes), shape[0], start_bytes + offset, stride, places
        )
    return columns


def check_members(dtype: np.dtype[Any], path: Path) -> None:
    """Checks that a network can be trained on what an array holds.

    Raises:
        DataError: see numeric.
    """
    for member, _ in _members(dtype).values():
        numeric(member.base, path)


def _members(dtype: np.dtype[Any]) -> Mapping[str, tuple[np.dtype[Any], int]]:
    """The members of a struct with their places in it, or the one number."""
    if dtype.fields is None:
        return {"data": (dtype, 0)}
    return {name: (dtype.fields[name][0], dtype.fields[name][1]) for name in dtype.names or ()}


def _fortran_pieces(shape: tuple[int, ...], item_bytes: int) -> NDArray[np.int64]:
    """Where the numbers of a record lie from its first on, in C order: strides of the array."""
    strides = item_bytes * np.cumprod((1, *shape[:-1]))
    pieces = np.zeros(shape[1:], np.int64)
    for axis, extent in enumerate(shape[1:]):
        places = np.arange(extent) * strides[axis + 1]
        pieces += places.reshape([-1 if other == axis else 1 for other in range(len(shape) - 1)])
    return pieces.ravel()
