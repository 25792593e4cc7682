"""The library's face of a pipeline: headrace.Pipeline."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from headrace.errors import ModelError, ScheduleError
from headrace.pipeline.batches import Arriving, Batch
from headrace.pipeline.clock import looks_ahead, num_kept, staleness
from headrace.pipeline.graph import Layer, layers, require_untied
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.partition import partition, require_cuts
from headrace.pipeline.runtime import Interpreter, OnBatch, run_stage
from headrace.pipeline.schedule import (
    SCHEDULES,
    Schedule,
    forward_only,
    make_schedule,
    require_valid,
)
from headrace.pipeline.simulator import run_all_stages
from headrace.pipeline.stage import Crossing, Stage
from headrace.pipeline.strategy import FORECAST, Strategy
from headrace.pipeline.transport import Distributed, InProcess, Transport
from headrace.pipeline.turns import Turns
from headrace.pipeline.versions import Versions

__all__ = ["Batch", "Pipeline", "Summary"]


@dataclass(frozen=True)
class Summary:
    """What an epoch of training did.

    Args:
        num_batches: updates made.
        num_records: of the batches.
        num_left_out: those of them that were not trained on, since their inputs or targets are not
            valid; None in a process without the last stage.
        loss: the mean of the batches' losses, weighted by their valid records; None without any,
            or in a process without the last stage.
        seconds: wall time.
        busy: of each stage driven here, the share of the time in which it computed.
    """

    num_batches: int
    num_records: int
    num_left_out: int | None
    loss: float | None
    seconds: float
    busy: Mapping[int, float]


@final
class Pipeline:
    """A model cut into stages, trained by one of the schedules.

    Without a mesh all stages run in this process, one after another, with the same bits that as
    many processes would give.

    Args:
        model: an ``nn.Sequential``, of which nested ones are flattened; any module whose forward
            torch.fx or torch.export can follow; or the layers that ``graph.layers`` gives.
        arguments: of the forward of a module that is no ``nn.Sequential``, those that a batch's
            inputs give: a tensor for one, a tuple or dict for several. None: those without a
            default, or the first where all have one.
        example: inputs of at least two records, by which torch.export follows such a module where
            torch.fx cannot.
        loss: (output, target) -> the mean loss of its records, a scalar.
        optimizer: parameters -> a torch optimizer; called once a stage.
        scheduler: optimizer -> a torch learning rate scheduler, stepped after each batch.
        stages: n; at least 1 layer each.
        micro_batches: m, the parts of a batch.
        strategy: which weights each pass reads.
        schedule: one of the strategy's schedules; None takes its first.
        cuts: the first layer of each stage but the first; None cuts into even numbers of layers
            (`headrace.pipeline.profile` and `partition` find the cuts that balance time).
        segment_batches: drain after so many batches; None drains at the end of an epoch only.
        seed: of the random numbers that layers draw.
        threads_per_stage: torch's threads while a stage computes.
        autocast: torch.bfloat16 lets layers and loss compute in it where torch.autocast does;
            weights, gradients and optimizer state stay as they are.
        count: what the targets of a micro-batch weigh in the batch's loss; None counts records.
        mesh: this process's place among the others.

    Raises:
        InputError: anything that cannot work, before anything starts.
    """

    def __init__(
        self,
        model: nn.Module | Sequence[Layer],
        loss: Callable[[Any, Any], Tensor],
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        *,
        stages: int,
        micro_batches: int,
        strategy: Strategy = FORECAST,
        schedule: str | None = None,
        cuts: Sequence[int] | None = None,
        segment_batches: int | None = None,
        seed: int = 0,
        threads_per_stage: int = 1,
        scheduler: Callable[[Optimizer], LRScheduler] | None = None,
        autocast: torch.dtype | None = None,
        count: Callable[[Any], float] | None = None,
        arguments: Sequence[str] | None = None,
        example: Any = None,
        mesh: Mesh | None = None,
    ) -> None:
        if autocast not in (None, torch.bfloat16):
            raise ModelError(
                "autocast",
                got=autocast,
                expected="torch.bfloat16 or None",
                remedy="float16 needs its gradients scaled, which is not there yet",
            )
        family = (schedule or strategy.schedules[0]).replace("-", "_")
        sample = make_schedule(family, stages, micro_batches, 2 * stages + 2)
        strategy.require_schedule(family)
        require_valid(sample)
        if segment_batches is not None and segment_batches < 1:
            raise ScheduleError("segment_batches", got=segment_batches, expected="1 or more")
        self.layers = (
            list(model) if isinstance(model, Sequence) else layers(model, arguments, example)
        )
        self.cuts = tuple(cuts) if cuts is not None else partition([1.0] * len(self.layers), stages)
        require_cuts(self.cuts, len(self.layers), stages)
        require_untied(self.layers, self.cuts)
        self.num_stages = stages
        self.num_micro_batches = micro_batches
        self.strategy = strategy
        self._family = family
        self._segment_batches = segment_batches
        self._seed = seed
        self._threads = threads_per_stage
        self._autocast = autocast
        self._count = count
        self._mesh = mesh
        self._next_batch = 0
        self._turns: Turns | None = None
        self._losses: list[Tensor] = []  # of batches given to step()
        here = range(stages) if mesh is None else [mesh.stage]
        self.is_first, self.is_last = 0 in here, stages - 1 in here
        self._interpreters = [
            self._interpreter(k, sample, loss, optimizer, scheduler, transport)
            for k, transport in zip(here, _transports(here, mesh), strict=True)
        ]

    def _interpreter(
        self,
        number: int,
        sample: Schedule,
        loss: Callable[[Any, Any], Tensor],
        optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        scheduler: Callable[[Optimizer], LRScheduler] | None,
        transport: Transport,
    ) -> Interpreter:
        stage = Stage(
            self.layers_of(number),
            device=self._mesh.device if self._mesh else torch.device("cpu"),
            seed=self._seed,
            loss=loss if number == self.num_stages - 1 else None,
            autocast=self._autocast,
        )
        versions = Versions(
            stage.modules,
            optimizer,
            self.strategy,
            is_stale=any(updates for _, updates in staleness(sample, number)),
            looks_ahead=looks_ahead(sample, self.strategy, number),
            make_scheduler=scheduler,
            num_kept=num_kept(sample, self.strategy),
        )
        return Interpreter(number, self.num_stages, stage, versions, transport, self.strategy)

    def layers_of(self, stage: int) -> list[Layer]:
        """The layers of a stage."""
        bounds = [0, *self.cuts, len(self.layers)]
        return self.layers[bounds[stage] : bounds[stage + 1]]

    def train(self, batches: Iterable[Any], on_batch: OnBatch | None = None) -> Summary:
        """Trains on the batches and drains: one epoch.

        Args:
            batches: pairs (inputs, targets) of tensors, records along dimension 0, triples
                (inputs, targets, valid) with a mask bool[records], or ``Batch``es, in which a
                process gives only what its stages need. Records that are not valid reach no layer
                and no loss; a batch without a valid record makes no step.
            on_batch: called where the last stage is, after each update, with the number of the
                batch over the whole run, its loss (a scalar tensor, 0 for a batch without valid
                records) and its valid records.
        """
        self._require_drained()
        return self._train(iter(batches), on_batch)

    def _train(self, source: Iterator[Any], on_batch: OnBatch | None) -> Summary:
        total = _Total(on_batch)
        started = perf_counter()
        busy = [i.stopwatch.busy_s() for i in self._interpreters]
        num_batches = num_records = num_left_out = 0
        with self._set_threads():
            while True:
                arriving = self._arriving(source, self._segment_batches)
                if next(iter(arriving), None) is None:
                    break
                self._run(arriving, SCHEDULES[self._family], on_batch=total)
                num_batches += len(arriving)
                num_records += arriving.total_records
                num_left_out += arriving.total_left_out
                self._next_batch += len(arriving)
        seconds = perf_counter() - started
        return Summary(
            num_batches,
            num_records,
            num_left_out if self.is_last else None,
            total.mean() if self.is_last else None,
            seconds,
            {
                i.number: (i.stopwatch.busy_s() - before) / seconds
                for i, before in zip(self._interpreters, busy, strict=True)
            },
        )

    def step(self, batch: Any) -> list[Tensor]:
        """Trains on one more batch, as far as the schedule goes without knowing the next.

        The pipeline does not drain between steps: `step` after `step` and then `drain` do what
        `train` does with the same batches, bit for bit. The work is done before `step` returns.

        Args:
            batch: as one of those for ``train``; every process calls `step` for each batch, and
                where neither the first nor the last stage is it may give None for a batch of at
                least m records.

        Returns:
            The losses that have become known, scalars in the order of the batches; empty where
            the last stage is not.
        """
        if batch is None and not (self.is_first or self.is_last):
            batch = Batch(self.num_micro_batches)
        if self._turns is None:
            self._turns = Turns(self._train_pushed)
        try:
            self._turns.give(batch)
        except BaseException:
            self._turns = None
            raise
        return self._taken_losses()

    def drain(self) -> list[Tensor]:
        """Finishes the batches in flight, as at the end of an epoch; the losses still due."""
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.end()
        return self._taken_losses()

    def _train_pushed(self, source: Iterator[Any]) -> None:
        self._train(source, lambda number, loss, num_records: self._losses.append(loss))

    def _taken_losses(self) -> list[Tensor]:
        losses, self._losses = self._losses, []
        return losses

    def _require_drained(self) -> None:
        if self._turns is not None:
            raise ScheduleError(
                "batches given to step() are in flight",
                remedy="call drain() on every process first",
            )

    def evaluate(
        self, batches: Iterable[Any], metrics: Mapping[str, Callable[[Any, Any], Any]]
    ) -> dict[str, float]:
        """Predicts through the pipeline with the newest weights, in evaluation mode.

        Args:
            batches: as for ``train``, of any sizes.
            metrics: name -> (output, target) -> the sum over its records.

        Returns:
            name -> mean over all valid records; empty without any, or without the last stage.
        """
        self._require_drained()
        sums = dict.fromkeys(metrics, 0.0)

        def add(output: Any, target: Any) -> None:
            for name, metric in metrics.items():
                sums[name] += float(metric(output, target))

        with self._set_threads():
            arriving = self._arriving(iter(batches), None)
            self._run(arriving, forward_only, on_output=add)
        num_valid = arriving.total_records - arriving.total_left_out
        if not self.is_last or not num_valid:
            return {}
        return {name: value / num_valid for name, value in sums.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """The weights and buffers of the stages driven here, by the model's own names."""
        self._require_drained()
        return {
            layer.full_name(key): tensor
            for interpreter in self._interpreters
            for layer in interpreter.stage.layers
            for key, tensor in layer.module.state_dict().items()
        }

    def busy_s(self) -> dict[int, float]:
        """Of each stage driven here, the seconds in which it computed so far."""
        return {i.number: i.stopwatch.busy_s() for i in self._interpreters}

    def close(self) -> None:
        """Ends the channels to other processes; waits until they end theirs."""
        for interpreter in self._interpreters:
            interpreter.transport.close()

    def _arriving(self, source: Iterator[Any], limit: int | None) -> Arriving:
        return Arriving(source, self.num_micro_batches, self._next_batch, limit, self._count)

    def _run(
        self,
        arriving: Arriving,
        order: Any,
        on_batch: OnBatch | None = None,
        on_output: Callable[[Any, Any], None] | None = None,
    ) -> None:
        schedule = Schedule(
            order.__name__,
            order,
            self.num_stages,
            self.num_micro_batches,
            arriving,
            self._next_batch,
        )
        for interpreter in self._interpreters:
            interpreter.begin(schedule, arriving, on_batch=on_batch, on_output=on_output)
        try:
            if self._mesh is None:
                run_all_stages(self._interpreters, schedule)
            else:
                run_stage(self._interpreters[0], schedule)
        except BaseException:
            for interpreter in self._interpreters:
                interpreter.transport.abandon()
            raise

    @contextmanager
    def _set_threads(self) -> Iterator[None]:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def _transports(here: Iterable[int], mesh: Mesh | None) -> list[Transport]:
    if mesh is not None:
        return [Distributed(mesh)]
    channels: dict[tuple[int, bool], deque[tuple[int, Crossing]]] = {}
    return [InProcess(stage, channels) for stage in here]


class _Total:
    """The mean loss of the batches seen, weighted by valid records; passes each on."""

    def __init__(self, on_batch: OnBatch | None) -> None:
        self._on_batch = on_batch
        self._sum: Tensor | None = None
        self._num_records = 0

    def __call__(self, number: int, loss: Tensor, num_records: int) -> None:
        weighted = loss.double() * num_records
        self._sum = weighted if self._sum is None else self._sum + weighted
        self._num_records += num_records
        if self._on_batch is not None:
            self._on_batch(number, loss, num_records)

    def mean(self) -> float | None:
        if self._sum is None or not self._num_records:
            return None
        return float(self._sum) / self._num_records
