"""The batches of a run, of which each stage reads only what it needs."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Self, final

from headrace.data.loader import Loader
from headrace.data.order import SequentialOrder
from headrace.data.records import Records
from headrace.pipeline.pipeline import Batch
from headrace.runs.config import Run

__all__ = ["Feed"]


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
        self._run = run
        self._stack = ExitStack()
        self._loaders = {
            stage: self._stack.enter_context(
                Loader(
                    records,
                    run.batch_size,
                    order=SequentialOrder() if evaluates else run.order_of_records,
                    fields=_fields(run, stage),
                    drop_last=run.drop_last and not evaluates,
                    num_micro_batches=run.micro_batches,
                    tensors=True,
                )
            )
            for stage in stages
        }

    def __len__(self) -> int:
        """Batches of an epoch."""
        return len(next(iter(self._loaders.values())))

    def __iter__(self) -> Iterator[Batch]:
        """An epoch's batches; the next iteration is the next epoch."""
        loaders = list(self._loaders.values())
        for num_records, *parts in zip(loaders[0].batch_sizes(), *loaders, strict=True):
            fields = {name: tensor for part in parts for name, tensor in part.items()}
            yield Batch(num_records, fields.get(self._run.inputs), fields.get(self._run.targets))

    def bytes_read(self) -> dict[int, int]:
        """stage -> bytes read so far, for the stages of this process."""
        return {stage: loader.bytes_read for stage, loader in self._loaders.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _fields(run: Run, stage: int) -> list[str]:
    """What a stage reads, each field once."""
    wanted = [run.inputs] * (stage == 0) + [run.targets] * (stage == run.stages - 1)
    return list(dict.fromkeys(wanted))
