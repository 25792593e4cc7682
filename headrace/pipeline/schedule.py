"""What each stage does, in order, as data."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from headrace.errors import ScheduleError
from headrace.pipeline.actions import Action, Kind, staircase, timeline

__all__ = [
    "SCHEDULES",
    "Order",
    "Schedule",
    "Slot",
    "async_1f1b",
    "async_eager_1f1b",
    "forward_only",
    "gpipe",
    "make_schedule",
    "one_f_one_b",
    "require_valid",
    "with_transfers",
]


class Slot(NamedTuple):
    """One batch in a schedule: its number and those of its micro-batches."""

    batch: int
    micro_batches: range


Order = Callable[[int, int, Iterable[Slot]], Iterator[Action]]
"""(stage, number of stages, batches) -> the actions of that stage, lazily."""


def gpipe(stage: int, num_stages: int, slots: Iterable[Slot]) -> Iterator[Action]:
    """All forward passes of a batch, then all its backward passes, then the update (GPipe)."""
    for slot in slots:
        for i in slot.micro_batches:
            yield Action(stage, Kind.FORWARD, i)
        for i in slot.micro_batches:
            yield Action(stage, Kind.BACKWARD, i)
        yield Action(stage, Kind.UPDATE, slot.batch)


def one_f_one_b(stage: int, num_stages: int, slots: Iterable[Slot]) -> Iterator[Action]:
    """One forward, one backward in turn; drained at each update (1F1B, PipeDream-Flush)."""
    for slot in slots:
        yield from async_1f1b(stage, num_stages, [slot])


def async_1f1b(stage: int, num_stages: int, slots: Iterable[Slot]) -> Iterator[Action]:
    """One forward, one backward in turn across batches; drains only when the batches end.

    Stage k runs n - 1 - k forward passes ahead of its backward passes: the fewest that keep all
    stages busy where transfers take no time and all passes the same.
    """
    return _in_turn(stage, slots, ahead=num_stages - 1 - stage)


def async_eager_1f1b(stage: int, num_stages: int, slots: Iterable[Slot]) -> Iterator[Action]:
    """The same with twice the head start, 2 (n - 1 - k): transfers and slow moments are hidden.

    What stage k sends has the time of a forward and a backward pass to arrive, each way, before
    anyone waits for it (eager 1F1B, arXiv 2211.05322; there draining). The price is activations of
    up to n - 1 - k more micro-batches, and as many more of a batch's that are stale.
    """
    return _in_turn(stage, slots, ahead=2 * (num_stages - 1 - stage))


def _in_turn(stage: int, slots: Iterable[Slot], ahead: int) -> Iterator[Action]:
    """One forward, one backward in turn, so many forward passes ahead."""
    waiting: deque[tuple[int, int | None]] = deque()  # micro-batch; its batch where it is the last

    def backward() -> Iterator[Action]:
        i, batch = waiting.popleft()
        yield Action(stage, Kind.BACKWARD, i)
        if batch is not None:
            yield Action(stage, Kind.UPDATE, batch)

    for slot in slots:
        for i in slot.micro_batches:
            yield Action(stage, Kind.FORWARD, i)
            waiting.append((i, slot.batch if i == slot.micro_batches[-1] else None))
            if len(waiting) > ahead:
                yield from backward()
    while waiting:
        yield from backward()


def forward_only(stage: int, num_stages: int, slots: Iterable[Slot]) -> Iterator[Action]:
    """Forward passes alone: evaluation and prediction."""
    for slot in slots:
        for i in slot.micro_batches:
            yield Action(stage, Kind.FORWARD, i)


SCHEDULES: Mapping[str, Order] = {
    "gpipe": gpipe,
    "one_f_one_b": one_f_one_b,
    "async_1f1b": async_1f1b,
    "async_eager_1f1b": async_eager_1f1b,
}


@dataclass(frozen=True)
class Schedule:
    """What every stage does from one drain to the next.

    Args:
        name: the schedule family, as strategies name it.
        order: the family's rule.
        num_stages: n.
        num_micro_batches: m, the micro-batches of a full batch. Micro-batch j of batch t has the
            number i = t m + j; a batch of fewer records leaves its last numbers unused.
        counts: the micro-batches of each batch, each 1 to m. May be lazy, must allow being
            iterated more than once.
        first_batch: the number of the first batch.
    """

    name: str
    order: Order
    num_stages: int
    num_micro_batches: int
    counts: Iterable[int]
    first_batch: int = 0

    def __post_init__(self) -> None:
        for letter, value in (
            ("stages", self.num_stages),
            ("micro-batches", self.num_micro_batches),
        ):
            if value < 1:
                raise ScheduleError(f"number of {letter}", got=value, expected="1 or more")

    def slots(self) -> Iterator[Slot]:
        """The batches with the numbers of their micro-batches."""
        for batch, count in enumerate(self.counts, self.first_batch):
            if not 1 <= count <= self.num_micro_batches:
                expected = f"1 to {self.num_micro_batches}"
                raise ScheduleError(f"micro-batches of batch {batch}", got=count, expected=expected)
            start = batch * self.num_micro_batches
            yield Slot(batch, range(start, start + count))

    def batch_of(self, micro_batch: int) -> int:
        """The number of the batch that a micro-batch belongs to."""
        return micro_batch // self.num_micro_batches

    def actions(self, stage: int) -> Iterator[Action]:
        """Forward and backward passes and updates of one stage, lazily."""
        return self.order(stage, self.num_stages, self.slots())

    def stages(self) -> list[Iterator[Action]]:
        """The actions of all stages."""
        return [self.actions(stage) for stage in range(self.num_stages)]

    def __str__(self) -> str:
        return staircase(self.stages())


def make_schedule(
    name: str,
    num_stages: int,
    num_micro_batches: int,
    num_batches: int,
    *,
    last_micro_batches: int | None = None,
    first_batch: int = 0,
) -> Schedule:
    """A schedule of a known number of batches, the last perhaps with fewer micro-batches.

    Raises:
        ScheduleError: an unknown name (``-`` and ``_`` are alike) or a number below 1.
    """
    key = name.replace("-", "_")
    if key not in SCHEDULES:
        raise ScheduleError("unknown schedule", got=name, expected=" or ".join(SCHEDULES))
    last = num_micro_batches if last_micro_batches is None else last_micro_batches
    counts = (num_micro_batches,) * (num_batches - 1) + (last,) * min(num_batches, 1)
    return Schedule(key, SCHEDULES[key], num_stages, num_micro_batches, counts, first_batch)


def with_transfers(schedule: Schedule, stage: int) -> Iterator[Action]:
    """The stage's actions with its sends and receives.

    A send follows its pass at once. A receive stands before the first pass that needs it, in the
    order in which the neighbour sends: both ends of a channel have the same order, so a stage can
    only wait for what its neighbour has yet to compute.
    """
    last = schedule.num_stages - 1
    forwards = _receives(schedule, stage, stage - 1, Kind.FORWARD, Kind.RECEIVE_FORWARD)
    backwards = _receives(schedule, stage, stage + 1, Kind.BACKWARD, Kind.RECEIVE_BACKWARD)
    for action in schedule.actions(stage):
        if action.kind is Kind.FORWARD and stage > 0:
            yield from forwards(action.number)
        if action.kind is Kind.BACKWARD and stage < last:
            yield from backwards(action.number)
        yield action
        if action.kind is Kind.FORWARD and stage < last:
            yield action._replace(kind=Kind.SEND_FORWARD)
        if action.kind is Kind.BACKWARD and stage > 0:
            yield action._replace(kind=Kind.SEND_BACKWARD)


def _receives(
    schedule: Schedule, stage: int, neighbour: int, sent: Kind, received: Kind
) -> Callable[[int], Iterator[Action]]:
    """The receives up to and with that of a micro-batch, in the order of the neighbour's sends."""
    sends: Iterator[Action] | None = None
    arrived: set[int] = set()

    def until(micro_batch: int) -> Iterator[Action]:
        nonlocal sends
        sends = sends or (a for a in schedule.actions(neighbour) if a.kind is sent)
        while micro_batch not in arrived:
            action = next(sends, None)
            if action is None:
                raise ScheduleError(
                    "a receive without a send", got=f"{stage}{received}{micro_batch}"
                )
            arrived.add(action.number)
            yield Action(stage, received, action.number)
        arrived.remove(micro_batch)

    return until


def require_valid(schedule: Schedule) -> None:
    """Checks a (finite) schedule whole.

    Raises:
        ScheduleError: all faults at once, with the grid of actions, the faulty ones in brackets.
    """
    faults: list[str] = []
    grid: list[str] = []
    for stage in range(schedule.num_stages):
        actions = list(schedule.actions(stage))
        bad = _faults_of_stage(schedule, stage, actions, faults)
        cells = [f"[{a}]" if place in bad else f" {a} " for place, a in enumerate(actions)]
        grid.append(f"stage {stage} |{' '.join(cells)}")
    if not faults:
        try:
            for _ in timeline([with_transfers(schedule, k) for k in range(schedule.num_stages)]):
                pass
        except ScheduleError as error:
            faults.append(str(error))
    if faults:
        raise ScheduleError(
            "\n".join([f"the schedule {schedule.name} has {len(faults)} fault(s)", *faults, *grid])
        )


def _faults_of_stage(
    schedule: Schedule, stage: int, actions: list[Action], faults: list[str]
) -> set[int]:
    """Adds what is wrong with one stage's order; returns the places of the faulty actions."""
    bad: set[int] = set()
    slots = {slot.batch: slot for slot in schedule.slots()}
    known = {i for slot in slots.values() for i in slot.micro_batches}
    seen: dict[tuple[Kind, int], int] = {}

    def fault(place: int, text: str) -> None:
        bad.add(place)
        faults.append(f"stage {stage}: {actions[place]} {text}")

    for place, action in enumerate(actions):
        is_update = action.kind is Kind.UPDATE
        if action.stage != stage:
            fault(place, "belongs to another stage")
        elif action.number not in (slots if is_update else known):
            fault(place, f"has no such {'batch' if is_update else 'micro-batch'}")
        elif action[1:] in seen:
            fault(place, "comes twice")
        elif action.kind is Kind.BACKWARD:
            if (Kind.FORWARD, action.number) not in seen:
                fault(place, "comes before its forward pass")
            if (Kind.UPDATE, schedule.batch_of(action.number)) in seen:
                fault(place, "comes after the update that should apply it")
        elif is_update:
            late = [i for i in slots[action.number].micro_batches if (Kind.BACKWARD, i) not in seen]
            if late:
                fault(place, f"comes before the backward pass of {late}")
            if any(kind is Kind.UPDATE and number > action.number for kind, number in seen):
                fault(place, "comes after the update of a later batch")
        seen[action.kind, action.number] = place
    for kind, wanted in ((Kind.FORWARD, known), (Kind.BACKWARD, known), (Kind.UPDATE, set(slots))):
        missing = sorted(number for number in wanted if (kind, number) not in seen)
        if missing:
            faults.append(f"stage {stage}: no {kind} of {missing}")
    return bad
