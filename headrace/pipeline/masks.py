"""Which records of a batch are valid: the others are left out of every pass and of the loss."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.errors import DataError, ModelError
from headrace.pipeline.values import mapped

__all__ = ["Expected", "both", "checked_mask", "rows_of"]


class Expected(NamedTuple):
    """What the loss compares a micro-batch's output with.

    Args:
        targets: those of its valid records.
        weight: what it weighs in its batch's loss, 0 to 1.
        rows: bool, which rows of the output have such targets; None where all have.
    """

    targets: Any
    weight: float
    rows: Tensor | None = None


def checked_mask(given: Any, num_records: int, role: str, number: int) -> Tensor | None:
    """A mask as bool[num_records] on the CPU; None where it is None or all records are valid.

    Args:
        given: a tensor or an array.
        num_records: of the batch.
        role: whose mask it is, for messages.
        number: the batch's, for messages.

    Raises:
        DataError: something else, or of another shape or dtype.
    """
    if given is None:
        return None
    shape, dtype = getattr(given, "shape", None), str(getattr(given, "dtype", None))
    if shape is None or tuple(shape) != (num_records,) or dtype not in ("torch.bool", "bool"):
        raise DataError(
            f"the mask of valid {role} is wrong",
            got=type(given).__name__ if shape is None else f"{dtype}{list(shape)}",
            expected=f"bool[{num_records}], one value a record",
            where=f"batch {number}",
        )
    mask = torch.as_tensor(given, device="cpu")
    return None if bool(mask.all()) else mask


def both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """The records that are valid by both masks."""
    if one is None or other is None:
        return other if one is None else one
    return one & other


def rows_of(value: Any, rows: Tensor | None) -> Any:
    """These rows of a tensor, or of each tensor of a value; all of them for None.

    Raises:
        ModelError: it has another number of rows.
    """
    if rows is None:
        return value
    if isinstance(value, tuple | list | dict):
        return mapped(value, lambda tensor: rows_of(tensor, rows))
    if not isinstance(value, Tensor) or not value.ndim or len(value) != len(rows):
        raise ModelError(
            "rows of records that are not valid cannot be left out of the model's output",
            got=list(value.shape) if isinstance(value, Tensor) else type(value).__name__,
            expected=f"{len(rows)} rows, one a record",
            remedy="let the last layer keep the records along dimension 0",
        )
    return value[rows.to(value.device)]
