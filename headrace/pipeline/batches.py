"""Batches as they arrive, cut into micro-batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from headrace.errors import DataError
from headrace.shares import even_sizes

__all__ = ["Arriving", "Batch"]


@dataclass(frozen=True)
class Batch:
    """What one update sees.

    Args:
        num_records: how many records; every process must know it.
        inputs: a tensor, or a tuple of tensors, with the records along dimension 0. Only the
            process of the first stage needs it.
        targets: likewise for the process of the last stage.
    """

    num_records: int
    inputs: Any = None
    targets: Any = None

    @classmethod
    def of(cls, given: Any, number: int) -> "Batch":
        """A batch from a pair (inputs, targets), or a batch as it is.

        Raises:
            DataError: neither a batch nor a pair, or an empty one.
        """
        if isinstance(given, Batch):
            batch = given
        elif isinstance(given, tuple | list) and len(given) == 2:
            batch = cls(_num_rows(given[0], number), *given)
        else:
            raise DataError(
                "not a batch",
                got=type(given).__name__,
                expected="a pair (inputs, targets) or a headrace.Batch",
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
        return batch


def _num_rows(value: Any, number: int) -> int:
    tensors = value if isinstance(value, tuple) else (value,)
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or tensor.ndim == 0:
            raise DataError(
                "a batch is made of tensors with the records along dimension 0",
                got="a tensor of no dimension"
                if isinstance(tensor, Tensor)
                else type(tensor).__name__,
                where=f"batch {number}",
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
        self._batches = batches
        self._num_micro_batches = num_micro_batches
        self._first_batch = first_batch
        self._limit = limit
        self._count = count
        self._counts: list[int] = []
        self._is_over = False
        self._inputs: dict[int, Any] = {}
        self._targets: dict[int, Any] = {}
        self._weights: dict[int, float] = {}
        self._num_records: dict[int, int] = {}  # where the targets are, of batches not yet applied

    def __iter__(self) -> Iterator[int]:
        place = 0
        while place < len(self._counts) or self._take():
            yield self._counts[place]
            place += 1

    def __len__(self) -> int:
        """Batches taken so far."""
        return len(self._counts)

    def inputs(self, micro_batch: int) -> Any:
        """The inputs of a micro-batch, once."""
        return self._inputs.pop(micro_batch)

    def targets(self, micro_batch: int) -> tuple[Any, float]:
        """The targets of a micro-batch and its weight in the batch's loss, once."""
        return self._targets.pop(micro_batch), self._weights.pop(micro_batch)

    def num_records(self, batch: int) -> int:
        """The records of a batch, once, where the targets are."""
        return self._num_records.pop(batch)

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
            self._inputs.update(enumerate(_cut(batch.inputs, sizes), start))
        if batch.targets is not None:
            targets = _cut(batch.targets, sizes)
            weights = [float(self._count(t)) for t in targets] if self._count else sizes
            total = sum(weights)
            if not total > 0:
                raise DataError(
                    "the targets of a batch weigh nothing",
                    got=total,
                    expected="a count above 0",
                    where=f"batch {number}",
                )
            self._targets.update(enumerate(targets, start))
            self._weights.update(enumerate((weight / total for weight in weights), start))
            self._num_records[number] = batch.num_records
        self.total_records += batch.num_records
        self._counts.append(len(sizes))
        return True


def _cut(value: Any, sizes: list[int]) -> list[Any]:
    """The rows of a tensor, or of each tensor of a tuple, in pieces."""
    if isinstance(value, tuple):
        return list(zip(*(torch.split(tensor, sizes) for tensor in value), strict=True))
    return list(torch.split(value, sizes))
