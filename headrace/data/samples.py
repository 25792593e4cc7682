"""The records of a batch one by one, and back: rows of columns, and columns of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.data.formats.sparse import SparseRows
from headrace.errors import DataError

__all__ = ["Sample", "samples_of", "stacked"]

Sample = dict[str, Any]
"""One record: field -> value."""


def samples_of(batch: Mapping[str, Any], num_rows: int) -> list[Sample]:
    """Each row of a batch by itself; arrays are views of it."""
    return [{name: values[row] for name, values in batch.items()} for row in range(num_rows)]


def stacked(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A batch of samples: numbers, arrays and tensors of one shape become one array or tensor.

    Rows of sparse matrices become one matrix, anything else a list. Of no samples there is no
    batch: {}.

    Raises:
        DataError: samples have different fields.
    """
    if not samples:
        return {}
    names = samples[0].keys()
    for sample in samples:
        if sample.keys() != names:
            raise DataError(
                "samples of a batch have different fields",
                got=", ".join(map(repr, sample)),
                expected=", ".join(map(repr, names)),
                remedy="let the transform give each the same",
            )
    return {name: _stacked([sample[name] for sample in samples]) for name in names}


def _stacked(values: list[Any]) -> Any:
    first = values[0]
    if all(isinstance(value, SparseRows) for value in values):
        if len({value.shape[1] for value in values}) == 1:
            return SparseRows.stacked(values, first.shape[1])
    elif all(isinstance(value, bool | int | float | complex | np.generic) for value in values):
        return np.array(values)
    elif all(isinstance(value, np.ndarray) for value in values):
        if len({(value.shape, value.dtype) for value in values}) == 1:
            return np.stack(values)
    elif hasattr(first, "new_zeros"):  # a tensor: then torch is there already
        import torch

        if all(isinstance(value, torch.Tensor) and value.shape == first.shape for value in values):
            return torch.stack(values)
    return values
