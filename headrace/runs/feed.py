"""The batches of a run, of which each stage reads only what it needs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, final

import numpy as np
import torch

from headrace.data.decoding import VALID
from headrace.data.loader import Loader
from headrace.data.order import SequentialOrder
from headrace.data.records import Records
from headrace.data.transforming import Transform, wants_generator
from headrace.errors import DataError
from headrace.pipeline.batches import Batch
from headrace.pipeline.masks import rows_of
from headrace.runs.config import Run

__all__ = ["Feed", "sample_of"]


@final
class Feed:
    """Iterates over the batches of an epoch, for the stages of one process.

    Stage 0 reads the bytes of the inputs, the last stage those of the targets, any other nothing.

    Args:
        run: what is read, in which order.
        records: where from.
        stages: those of this process.
        evaluates: all records in the order of the files, not those of an epoch in the run's order.
    """

    def __init__(
        self, run: Run, records: Records, stages: Sequence[int], *, evaluates: bool = False
    ) -> None:
        self._stack = ExitStack()

        def loader(fields: Sequence[str], transform: Transform | None = None) -> Loader:
            made = Loader(
                records,
                run.batch_size,
                order=SequentialOrder() if evaluates else run.order_of_records,
                fields=fields,
                drop_last=run.drop_last and not evaluates,
                num_micro_batches=run.micro_batches,
                tensors=True,
                damaged=run.damaged,
                transform=transform,
                seed=run.seed,
                workers=run.workers if fields else 0,
            )
            return self._stack.enter_context(made)

        self._stages = tuple(stages)
        self._sizes = loader(())
        self._sources = [
            (roles, loader([role.field for role in roles], roles[0].transform))
            for roles in _groups(run, evaluates)
            if roles[0].stage in stages
        ]

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(self._sizes)

    def __iter__(self) -> Iterator[Batch]:
        """An epoch's batches; the next iteration is the next epoch."""
        loaders = [loader for _, loader in self._sources]
        for num_records, _, *parts in zip(
            self._sizes.batch_sizes(), self._sizes, *loaders, strict=True
        ):
            given: dict[str, Any] = {}
            for (roles, _), part in zip(self._sources, parts, strict=True):
                for role in roles:
                    given[role.name] = part[role.field]
                    given[f"{role.name}_valid"] = part.get(VALID)
            yield Batch(num_records, **given)

    def bytes_read(self) -> dict[int, int]:
        """stage -> bytes read so far, for the stages of this process."""
        read = dict.fromkeys(self._stages, 0)
        for roles, loader in self._sources:
            read[roles[0].stage] += loader.bytes_read
        return read

    def damage(self) -> list[str]:
        """What was wrong with the first damaged records, of those that this process reads."""
        return [message for _, loader in self._sources for message in loader.damage]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


@dataclass(frozen=True)
class _Role:
    """What the inputs or the targets of a batch are made of, and where."""

    name: str
    field: str
    stage: int
    transform: Transform | None


def _groups(run: Run, evaluates: bool) -> list[list[_Role]]:
    """The roles, those together that one loader reads.

    Inputs and targets are apart even on one stage where records may be left out: each has its mask,
    so that the layers see the same rows however many stages there are.
    """
    of_inputs = run.transform
    if evaluates and run.evaluation_transform is not None:
        of_inputs = run.evaluation_transform
    inputs = _Role("inputs", run.inputs, 0, _on_field(of_inputs, run.inputs))
    targets = _Role(
        "targets", run.targets, run.stages - 1, _on_field(run.target_transform, run.targets)
    )
    has_masks = run.damaged == "skip" or inputs.transform or targets.transform
    return [[inputs], [targets]] if run.stages > 1 or has_masks else [[inputs, targets]]


def _on_field(function: Callable[..., Any] | None, field: str) -> Transform | None:
    """The function of a value as one of a sample."""
    if function is None:
        return None
    return partial(_drawn if wants_generator(function) else _applied, function, field)


def _applied(
    function: Callable[..., Any], field: str, sample: Mapping[str, Any]
) -> dict[str, Any] | None:
    value = function(sample[field])
    return None if value is None else {field: value}


def _drawn(
    function: Callable[..., Any],
    field: str,
    sample: Mapping[str, Any],
    generator: np.random.Generator,
) -> dict[str, Any] | None:
    value = function(sample[field], generator)
    return None if value is None else {field: value}


def sample_of(run: Run, records: Records) -> torch.Tensor:
    """The inputs of a micro-batch: of the first valid records in the order of the files.

    Raises:
        DataError: none is valid.
    """
    num_records = -(-run.batch_size // run.micro_batches)
    with Feed(run, records, [0], evaluates=True) as feed:
        for given in feed:
            batch = Batch.of(given, 0)
            inputs: torch.Tensor = rows_of(batch.inputs, batch.inputs_valid)[:num_records]
            if len(inputs):
                return inputs
    raise DataError(
        "no valid record to try the layers on",
        got=f"{len(records)} records, all damaged or left out",
        where="data of the run",
    )
