"""Batches as they arrive, cut into micro-batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, final

import torch
from torch import Tensor

from headrace.errors import DataError
from headrace.pipeline.masks import Expected, both, checked_mask, rows_of
from headrace.pipeline.values import put_together, taken_apart, tensors_in
from headrace.shares import even_sizes

__all__ = ["Arriving", "Batch"]


@dataclass(frozen=True)
class Batch:
    """What one update sees.

    Args:
        num_records: how many records; every process must know it.
        inputs: a tensor, or a tuple or dict of tensors, with the records along dimension 0. Only
            the process of the first stage needs it.
        targets: likewise for the process of the last stage.
        inputs_valid: bool[num_records], tensor or array: which records have inputs to be trained
            on; None is all. The others' rows may hold anything: no layer sees them.
        targets_valid: likewise for the targets. A record counts where both are valid.
    """

    num_records: int
    inputs: Any = None
    targets: Any = None
    inputs_valid: Any = None
    targets_valid: Any = None

    @classmethod
    def of(cls, given: Any, number: int) -> "Batch":
        """A batch from (inputs, targets) or (inputs, targets, valid), or a batch; masks checked.

        Raises:
            DataError: none of these, or an empty one.
        """
        if isinstance(given, Batch):
            batch = given
        elif isinstance(given, tuple | list) and len(given) == 2:
            batch = cls(_num_rows(given[0], number), *given)
        elif isinstance(given, tuple | list) and len(given) == 3:
            inputs, targets, valid = given
            batch = cls(_num_rows(inputs, number), inputs, targets, valid, valid)
        else:
            raise DataError(
                "not a batch",
                got=type(given).__name__,
                expected="(inputs, targets), (inputs, targets, valid) or a headrace.Batch",
                where=f"batch {number}",
            )
        if batch.num_records < 1:
            raise DataError("an empty batch", got="0 records", where=f"batch {number}")
        for name, value in (("inputs", batch.inputs), ("targets", batch.targets)):
            if value is not None and _num_rows(value, number) != batch.num_records:
                raise DataError(
                    f"the {name} of a batch have another number of records",
                    got=_num_rows(value, number),
                    expected=batch.num_records,
                    where=f"batch {number}",
                )
        return replace(
            batch,
            inputs_valid=checked_mask(batch.inputs_valid, batch.num_records, "inputs", number),
            targets_valid=checked_mask(batch.targets_valid, batch.num_records, "targets", number),
        )


def _num_rows(value: Any, number: int) -> int:
    tensors = [value] if isinstance(value, Tensor) else list(tensors_in(value))
    if not tensors or any(tensor.ndim == 0 for tensor in tensors):
        raise DataError(
            "a batch is made of tensors with the records along dimension 0",
            got="a tensor of no dimension" if tensors else type(value).__name__,
            where=f"batch {number}",
            remedy="let what makes the batch give tensors, of records of one shape",
        )
    return min(len(tensor) for tensor in tensors)


@final
class Arriving:
    """The batches of one segment, taken from an iterator when a stage first needs them.

    Iterating gives the number of micro-batches of each batch, as often as wanted; a schedule is
    made of it. Each micro-batch's data is handed out once.

    Args:
        batches: the source; batches beyond the limit stay in it.
        num_micro_batches: m.
        first_batch: the number of the first batch.
        limit: the most batches to take; None takes all.
        count: what the targets of a micro-batch weigh; None counts records.
    """

    def __init__(
        self,
        batches: Iterator[Any],
        num_micro_batches: int,
        first_batch: int,
        limit: int | None = None,
        count: Callable[[Any], float] | None = None,
    ) -> None:
        self.total_records = 0
        """Records taken so far."""
        self.total_left_out = 0
        """Those of them that are not valid, where the targets are."""
        self._batches = batches
        self._num_micro_batches = num_micro_batches
        self._first_batch = first_batch
        self._limit = limit
        self._count = count
        self._counts: list[int] = []
        self._is_over = False
        self._inputs: dict[int, tuple[Any, Tensor | None]] = {}
        self._unweighed: dict[int, Batch] = {}  # whose inputs' mask has not come yet
        self._expected: dict[int, Expected | None] = {}
        self._num_valid: dict[int, int] = {}  # where the targets are, of batches not yet applied

    def __iter__(self) -> Iterator[int]:
        place = 0
        while place < len(self._counts) or self._take():
            yield self._counts[place]
            place += 1

    def __len__(self) -> int:
        """Batches taken so far."""
        return len(self._counts)

    def inputs(self, micro_batch: int) -> tuple[Any, Tensor | None]:
        """The valid inputs of a micro-batch, None where there are none; and its batch's mask."""
        return self._inputs.pop(micro_batch)

    def expected(self, micro_batch: int, inputs_valid: Tensor | None) -> Expected | None:
        """What the loss compares with, once; None where no record of the micro-batch is valid.

        Args:
            micro_batch: its number.
            inputs_valid: the batch's mask, as `inputs` gave it where the first stage is.
        """
        batch = micro_batch // self._num_micro_batches
        if batch in self._unweighed:
            self._weigh(batch, inputs_valid)
        return self._expected.pop(micro_batch)

    def num_valid(self, batch: int) -> int:
        """The valid records of a batch, once, where the targets are."""
        return self._num_valid.pop(batch)

    def _take(self) -> bool:
        """Takes the next batch and cuts it; False where there is none."""
        if self._is_over or (self._limit is not None and len(self._counts) >= self._limit):
            return False
        try:
            given = next(self._batches)
        except StopIteration:
            self._is_over = True
            return False
        number = self._first_batch + len(self._counts)
        batch = Batch.of(given, number)
        sizes = even_sizes(batch.num_records, self._num_micro_batches)
        start = number * self._num_micro_batches
        if batch.inputs is not None:
            inputs = _valid_parts(batch.inputs, batch.inputs_valid, sizes)
            self._inputs.update(enumerate(((part, batch.inputs_valid) for part in inputs), start))
        if batch.targets is not None:
            self._unweighed[number] = batch
        self.total_records += batch.num_records
        self._counts.append(len(sizes))
        return True

    def _weigh(self, number: int, inputs_valid: Tensor | None) -> None:
        """Makes ready what the micro-batches of a batch are compared with."""
        batch = self._unweighed.pop(number)
        sizes = even_sizes(batch.num_records, self._num_micro_batches)
        valid = both(inputs_valid, batch.targets_valid)
        num_valid = batch.num_records if valid is None else int(valid.sum())
        parts = _valid_parts(batch.targets, valid, sizes)
        weights = [
            0.0
            if part is None
            else float(self._count(part) if self._count else _num_rows(part, number))
            for part in parts
        ]
        total = sum(weights)
        if num_valid and not total > 0:
            raise DataError(
                "the targets of a batch weigh nothing",
                got=total,
                expected="a count above 0",
                where=f"batch {number}",
            )
        rows = _rows_that_come(inputs_valid, batch.targets_valid, sizes)
        self._expected.update(
            (micro_batch, None if part is None else Expected(part, weight / total, chosen))
            for micro_batch, part, weight, chosen in zip(
                count(number * self._num_micro_batches), parts, weights, rows, strict=False
            )
        )
        self._num_valid[number] = num_valid
        self.total_left_out += batch.num_records - num_valid


def _cut(value: Any, sizes: list[int]) -> list[Any]:
    """The rows of each tensor of a value, in pieces."""
    tensors, form = taken_apart(value)
    pieces = zip(*(torch.split(tensor, sizes) for tensor in tensors), strict=True)
    return [put_together(piece, form) for piece in pieces]


def _valid_parts(value: Any, valid: Tensor | None, sizes: list[int]) -> list[Any]:
    """The valid rows of each micro-batch; None where it has none."""
    parts = _cut(value, sizes)
    if valid is None:
        return parts
    masks = torch.split(valid, sizes)
    return [
        rows_of(part, mask) if bool(mask.any()) else None
        for part, mask in zip(parts, masks, strict=True)
    ]


def _rows_that_come(
    inputs_valid: Tensor | None, targets_valid: Tensor | None, sizes: list[int]
) -> list[Tensor | None]:
    """Of each micro-batch's output, which has rows for valid inputs only, those with targets."""
    if targets_valid is None:
        return [None] * len(sizes)
    targets = torch.split(targets_valid, sizes)
    if inputs_valid is None:
        return list(targets)
    inputs = torch.split(inputs_valid, sizes)
    return [some[mask] for some, mask in zip(targets, inputs, strict=True)]
