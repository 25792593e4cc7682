"""A run as one frozen value: what to train, on what, and how."""

import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from headrace.data.order import RandomOrder
from headrace.errors import HeadraceError, RecipeError
from headrace.pipeline.schedule import SCHEDULES
from headrace.pipeline.strategy import FORECAST, Strategy

if TYPE_CHECKING:
    import torch
    from torch import nn

    from headrace.data.order import Order
    from headrace.data.records import Records

__all__ = ["Run", "describe", "identity"]

RESULTS = (
    "kind",
    "epoch",
    "epochs",
    "batches",
    "records",
    "left_out",
    "loss",
    "seconds",
    "samples_per_s",
    "busy",
    "bytes_read",
)
"""The names of a run's results, which no metric may have."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything about a run but where it is written. Callables are called in every process.

    Args:
        model: makes the model, an nn.Sequential or any module whose forward torch.fx can follow;
            its layers are split into stages.
        data: opens the training records.
        inputs: the field that the first layer takes.
        targets: the field that the loss takes; may be the same field.
        loss: (output, targets) -> scalar tensor, the mean over the records of a micro-batch.
        optimizer: (parameters) -> optimizer; called for each stage on the parameters of the stage.
        scheduler: (optimizer) -> torch learning rate scheduler, stepped after each batch; called
            for each stage.
        batch_size: records of one update.
        micro_batches: pieces of a batch that travel through the pipeline, m.
        stages: processes that the model is split over, n.
        strategy: which weights each pass reads.
        schedule: "gpipe", "one_f_one_b", "async_1f1b" or "async_eager_1f1b", where the strategy
            goes with it; None takes the strategy's own.
        epochs: passes over the records.
        seed: of the order, the first weights and all random layers.
        order: which record comes when; None is a RandomOrder by the seed.
        drop_last: leave out the last batch of an epoch where it is not full.
        segment_batches: drain after every so many batches, and at the end of each epoch anyway.
        threads_per_stage: computing threads of a stage; another number may give other last bits.
        autocast: torch.bfloat16 lets layers and loss compute in it where torch.autocast does.
        cuts: the first layer of each stage but the first; None measures the layers and decides.
        count: (targets) -> weight of a micro-batch in the loss of its batch; None counts records.
        transform: (value) or (value, generator) -> array, tensor or number: what the first layer
            gets of the inputs' field of one record; None instead leaves the record out. The numpy
            generator is the record's own: a function of seed, epoch and position.
        target_transform: likewise for the targets' field; draws what transform draws.
        evaluation_transform: in place of transform where the model is evaluated; None is transform.
        damaged: "raise" makes a damaged record the end of the run; "skip" leaves it out.
        workers: threads that decode and transform beside the one that reads; the results do not
            depend on them.
        evaluation: opens the records that the model is evaluated on after each epoch.
        metrics: name -> (output, targets) -> the SUM over the records, scalar tensor; shown
            divided by the number of records.

    Raises:
        RecipeError: all that is wrong with the values, at once.
    """

    model: "Callable[[], nn.Module]"
    data: "Callable[[], Records]"
    inputs: str
    targets: str
    loss: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"
    optimizer: "Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]"
    batch_size: int
    micro_batches: int
    stages: int = 2
    scheduler: "Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None" = (
        None
    )
    strategy: Strategy = FORECAST
    schedule: str | None = None
    epochs: int = 1
    seed: int = 0
    order: "Order | None" = None
    drop_last: bool = False
    segment_batches: int | None = None
    threads_per_stage: int = 1
    autocast: "torch.dtype | None" = None
    cuts: tuple[int, ...] | None = None
    count: "Callable[[torch.Tensor], float] | None" = None
    transform: "Callable[..., Any] | None" = None
    target_transform: "Callable[..., Any] | None" = None
    evaluation_transform: "Callable[..., Any] | None" = None
    damaged: Literal["raise", "skip"] = "raise"
    workers: int = 0
    evaluation: "Callable[[], Records] | None" = None
    metrics: "Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]" = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        problems = [*_wrong_types(self), *_wrong_numbers(self)] or _wrong_pairs(self)
        if problems:
            listed = "\n".join(f"  - {problem}" for problem in problems)
            noun = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
            raise RecipeError(f"the run has {noun}:\n{listed}")

    @property
    def order_of_records(self) -> "Order":
        """The order in force."""
        return RandomOrder(self.seed) if self.order is None else self.order

    @property
    def schedule_name(self) -> str:
        """The schedule in force."""
        return self.schedule or self.strategy.schedules[0]


def _wrong_types(run: Run) -> list[str]:
    """Values of the wrong kind."""
    problems = []
    for name in ("model", "data", "loss", "optimizer"):
        if not callable(getattr(run, name)):
            problems.append(f"{name}: got {getattr(run, name)!r}, expected a callable")
    for name in (
        "scheduler",
        "count",
        "evaluation",
        "transform",
        "target_transform",
        "evaluation_transform",
    ):
        if getattr(run, name) is not None and not callable(getattr(run, name)):
            problems.append(f"{name}: got {getattr(run, name)!r}, expected a callable or None")
    for name in ("inputs", "targets"):
        if not isinstance(getattr(run, name), str):
            problems.append(f"{name}: got {getattr(run, name)!r}, expected the name of a field")
    if run.damaged not in ("raise", "skip"):
        problems.append(f"damaged: got {run.damaged!r}, expected 'raise' or 'skip'")
    if not isinstance(run.strategy, Strategy):
        problems.append(f"strategy: got {run.strategy!r}, expected a headrace.Strategy")
    if run.order is not None and not hasattr(run.order, "num_positions"):
        problems.append(f"order: got {run.order!r}, expected a headrace.RandomOrder or the like")
    if run.cuts is not None and not _are_whole(run.cuts):
        problems.append(f"cuts: got {run.cuts!r}, expected a tuple such as (3, 6), or None")
    return problems + _wrong_metrics(run)


def _are_whole(cuts: object) -> bool:
    return isinstance(cuts, tuple) and all(type(cut) is int for cut in cuts)


def _wrong_metrics(run: Run) -> list[str]:
    """Metrics that cannot be called, or whose names mean something else."""
    metrics: object = run.metrics
    if not isinstance(metrics, Mapping) or not all(map(callable, metrics.values())):
        return [f"metrics: got {metrics!r}, expected names -> callables"]
    if run.evaluation is not None and not metrics:
        return ["metrics: got none, expected at least one to evaluate by"]
    taken = [name for name in metrics if name in RESULTS]
    return [
        f"metrics: got the name {name!r}, which the results have already; choose another"
        for name in taken
    ]


def _wrong_numbers(run: Run) -> list[str]:
    """Numbers that are not integers, or too small."""
    least = {
        "batch_size": 1,
        "micro_batches": 1,
        "stages": 1,
        "epochs": 1,
        "seed": 0,
        "threads_per_stage": 1,
        "segment_batches": 1,
        "workers": 0,
    }
    problems = []
    for name, smallest in least.items():
        value = getattr(run, name)
        if value is None and name == "segment_batches":
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < smallest:
            problems.append(f"{name}: got {value!r}, expected an integer of {smallest} or more")
    return problems


def _wrong_pairs(run: Run) -> list[str]:
    """Values that do not go together."""
    problems = []
    if run.batch_size < run.micro_batches:
        problems.append(
            f"batch_size: got {run.batch_size}, expected at least micro_batches = "
            f"{run.micro_batches}, so that each micro-batch has a record; lower micro_batches"
        )
    if run.schedule is not None and run.schedule not in SCHEDULES:
        problems.append(f"schedule: got {run.schedule!r}, expected {' or '.join(SCHEDULES)}")
    else:
        try:
            run.strategy.require_schedule(run.schedule_name)
        except HeadraceError as error:
            problems.append(f"schedule: {error}")
    if run.cuts is not None:
        problems += _wrong_cuts(run.cuts, run.stages)
    return problems


def _wrong_cuts(cuts: tuple[int, ...], stages: int) -> list[str]:
    """Cuts that do not make so many stages."""
    if len(cuts) != stages - 1:
        return [f"cuts: got {cuts}, expected {stages - 1} of them for {stages} stages"]
    if any(later <= earlier for earlier, later in zip((0, *cuts), cuts, strict=False)):
        return [f"cuts: got {cuts}, expected layer numbers that rise, the first above 0"]
    return []


def identity(run: Run, records: "Records", recipe: Path | None = None) -> dict[str, object]:
    """What defines the bits of a run, as JSON: two runs with the same identity give the same bits.

    Callables stand by reference (module and name), a recipe's file by its hash, records by their
    fingerprint. The same processor is taken for granted.
    """
    return {
        "headrace": metadata.version("headrace"),
        "torch": metadata.version("torch"),
        "recipe_sha256": None
        if recipe is None
        else hashlib.sha256(recipe.read_bytes()).hexdigest(),
        "model": describe(run.model),
        "loss": describe(run.loss),
        "count": None if run.count is None else describe(run.count),
        "transform": None if run.transform is None else describe(run.transform),
        "target_transform": None
        if run.target_transform is None
        else describe(run.target_transform),
        "damaged": run.damaged,
        "optimizer": describe(run.optimizer),
        "scheduler": None if run.scheduler is None else describe(run.scheduler),
        "data": {"records": len(records), "fingerprint": records.fingerprint},
        "inputs": run.inputs,
        "targets": run.targets,
        "order": dict(run.order_of_records.identity),
        "seed": run.seed,
        "batch_size": run.batch_size,
        "micro_batches": run.micro_batches,
        "drop_last": run.drop_last,
        "epochs": run.epochs,
        "strategy": run.strategy.name,
        "schedule": run.schedule_name,
        "segment_batches": run.segment_batches,
        "stages": run.stages,
        "autocast": None if run.autocast is None else str(run.autocast),
        "cuts": None if run.cuts is None else list(run.cuts),
        "threads_per_stage": run.threads_per_stage,
    }


def describe(function: object) -> str:
    """A callable by reference: module and qualified name, and the arguments a partial has bound.

    >>> describe(functools.partial(sorted, reverse=True))
    'builtins:sorted(reverse=True)'
    """
    if isinstance(function, functools.partial):
        bound = [_bound(value) for value in function.args]
        bound += [f"{name}={_bound(value)}" for name, value in function.keywords.items()]
        return f"{describe(function.func)}({', '.join(bound)})"
    if inspect.isroutine(function) or inspect.isclass(function):
        return f"{function.__module__}:{function.__qualname__}"
    return f"{type(function).__module__}:{type(function).__qualname__}"


def _bound(value: object) -> str:
    """A bound argument, the same in every process: without addresses in memory."""
    if isinstance(value, functools.partial) or inspect.isroutine(value) or inspect.isclass(value):
        return describe(value)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
