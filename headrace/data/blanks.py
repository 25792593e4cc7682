"""Batches that lack some of their rows: what is there keeps its place, the rest is blank."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.sparse import SparseRows
from headrace.errors import DataError

__all__ = ["emptied", "spread", "taken"]


def spread(values: Any, rows: NDArray[np.int64], num_rows: int) -> Any:
    """The values as these rows of so many; the others are zeros, None, or rows without items.

    Args:
        values: one row each: an array, a tensor, a list or SparseRows.
        rows: int64[R], ascending.
        num_rows: at least R.

    Raises:
        DataError: the values are something else.
    """
    if len(rows) == num_rows:
        return values
    if isinstance(values, SparseRows):
        return values.spread(rows, num_rows)
    if isinstance(values, list):
        result: list[Any] = [None] * num_rows
        for row, value in zip(rows.tolist(), values, strict=True):
            result[row] = value
        return result
    shape = (num_rows, *getattr(values, "shape", ())[1:])
    if isinstance(values, np.ndarray):
        array = np.zeros(shape, values.dtype)
    elif hasattr(values, "new_zeros"):  # a tensor, told without torch
        array = values.new_zeros(shape)
    else:
        raise DataError(
            "a batch of this kind cannot have blank rows",
            got=type(values).__name__,
            expected="an array, a tensor or a list, one row a record",
            remedy="let the format's or your own collate return such",
        )
    array[rows] = values
    return array


def taken(values: Any, rows: NDArray[np.int64]) -> Any:
    """These rows of a list, or of what numpy's arrays can index."""
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows]


def emptied(values: Any, num_rows: int) -> Any:
    """So many blank rows of the kind of these values."""
    return spread(values[:0], np.empty(0, np.int64), num_rows) if num_rows else values[:0]
