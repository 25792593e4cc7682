"""From schedule, strategy and durations: timeline, bubble, memory and steps ahead."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.errors import ScheduleError
from headrace.pipeline import actions
from headrace.pipeline.actions import Action, Kind, Timed
from headrace.pipeline.schedule import Schedule
from headrace.pipeline.strategy import (
    Aim,
    Delayed,
    Key,
    Latest,
    Pinned,
    Strategy,
    outlives,
    serves_a_batch,
    weights_key,
)

__all__ = [
    "Durations",
    "Memory",
    "Sizes",
    "bubble",
    "delay",
    "live_versions",
    "looks_ahead",
    "memory",
    "micro_batches_in_flight",
    "num_kept",
    "span",
    "staleness",
    "steps_ahead",
    "timeline",
]


@dataclass(frozen=True)
class Durations:
    """How long each stage's passes take, in one unit of the caller's (seconds, or integers).

    Args:
        forward: of one micro-batch, a value a stage.
        backward: of one micro-batch, a value a stage.
        update: of one optimizer step, a value a stage; none takes no time.
        transfer: from the end of a pass until the neighbour can use its result.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    update: tuple[float, ...] = ()
    transfer: float = 0

    @classmethod
    def unit(cls, num_stages: int) -> "Durations":
        """Forward = backward = 1, nothing else takes time."""
        return cls((1,) * num_stages, (1,) * num_stages)

    def of(self, action: Action) -> float:
        """How long the action keeps its stage busy."""
        by_kind = {
            Kind.FORWARD: self.forward,
            Kind.BACKWARD: self.backward,
            Kind.UPDATE: self.update,
        }
        values = by_kind.get(action.kind, ())
        return values[action.stage] if values else 0


def timeline(schedule: Schedule, durations: Durations | None = None) -> Iterator[Timed]:
    """The schedule's passes and updates with their times, by their start; lazy.

    Raises:
        ScheduleError: durations for another number of stages, or a schedule that is stuck.
    """
    durations = durations or Durations.unit(schedule.num_stages)
    for name, values in (("forward", durations.forward), ("backward", durations.backward)):
        if len(values) != schedule.num_stages:
            raise ScheduleError(
                f"{name} durations", got=len(values), expected=f"{schedule.num_stages}, one a stage"
            )
    return actions.timeline(schedule.stages(), durations.of, durations.transfer)


def span(schedule: Schedule, durations: Durations | None = None) -> float:
    """The time from the first start to the last end."""
    return max((timed.end for timed in timeline(schedule, durations)), default=0)


def bubble(schedule: Schedule, durations: Durations | None = None) -> float:
    """The idle share of all stages' time, ramp and drain included."""
    busy = last = 0.0
    for start, end, _ in timeline(schedule, durations):
        busy, last = busy + end - start, max(last, end)
    return 1 - busy / (schedule.num_stages * last) if last else 0.0


def staleness(schedule: Schedule, stage: int) -> Iterator[tuple[int, int]]:
    """(micro-batch, updates between its forward pass and the update that applies it).

    Counted from the actions; each batch's micro-batches come when its update does. Lazy.
    """
    updates = 0
    read_at: dict[int, int] = {}
    for action in schedule.actions(stage):
        if action.kind is Kind.FORWARD:
            read_at[action.number] = updates
        elif action.kind is Kind.UPDATE:
            due = [i for i in read_at if schedule.batch_of(i) == action.number]
            for i in due:
                yield i, updates - read_at.pop(i)
            updates += 1


def delay(schedule: Schedule) -> int:
    """The largest staleness on any stage, where all batches are full: d of a `Delayed` read.

    ceil((n - 1) / m) for async_1f1b.
    """
    n, m = schedule.num_stages, schedule.num_micro_batches
    full = replace(schedule, counts=(m,) * (2 * n + 2), first_batch=0)
    return max(updates for stage in range(n) for _, updates in staleness(full, stage))


def steps_ahead(
    schedule: Schedule, read: Latest | Delayed | Pinned, stage: int, kind: Kind
) -> Iterator[tuple[int, int]]:
    """(micro-batch, updates that its pass looks ahead), for each pass of a kind in its order.

    The steps lead to a version of the stage's weights, a count of its updates since the last drain:

    - OWN_UPDATE: that just before the update which applies the micro-batch.
    - ROUND_TRIP: that of the updates which the stage has finished strictly before stage 0 starts
      the micro-batch's backward pass, where a forward and a backward pass take one unit of time
      each; on stage 0 itself, of those that precede it. In the steady state of one micro-batch a
      batch, these are floor(k/2) + n - k - 1 steps for the forward and floor(k/2) for the backward
      pass (arXiv 1809.02839); the ramps at both ends are exact.

    A delayed read goes back, by a negative number of steps, to max(0, t - d) updates for batch t;
    where batches of fewer micro-batches than m leave the stage behind that, to what it has.

    Lazy. A pinned read and a latest read look 0 steps ahead.
    """
    is_delayed = isinstance(read, Delayed)
    largest = delay(schedule) if is_delayed else 0
    aim = read.ahead_to if isinstance(read, Latest) else None
    round_trips = _round_trips(schedule, stage) if aim is Aim.ROUND_TRIP else iter(())
    version_at: dict[int, int] = {}
    updates = 0
    for action in schedule.actions(stage):
        if action.kind is Kind.UPDATE:
            updates += 1
        if action.kind is not kind:
            continue
        target = updates
        batch = schedule.batch_of(action.number) - schedule.first_batch
        if is_delayed:
            target = min(updates, max(0, batch - largest))
        elif aim is Aim.OWN_UPDATE:
            target = max(updates, batch)
        elif aim is Aim.ROUND_TRIP:
            while action.number not in version_at:
                version_at.update([next(round_trips)])
            target = max(updates, version_at.pop(action.number))
        yield action.number, target - updates


def _round_trips(schedule: Schedule, stage: int) -> Iterator[tuple[int, int]]:
    """(micro-batch, updates that the stage has finished when stage 0 starts its backward pass)."""
    finished = ties = 0
    now = -1.0
    for start, _, action in timeline(schedule):
        if start > now:
            now, finished, ties = start, finished + ties, 0
        if action.kind is Kind.UPDATE and action.stage == stage:
            # an update that ends just as stage 0 starts is not before it, except on stage 0 itself
            finished, ties = (finished + 1, ties) if stage == 0 else (finished, ties + 1)
        elif action.kind is Kind.BACKWARD and action.stage == 0:
            yield action.number, finished


def looks_ahead(schedule: Schedule, strategy: Strategy, stage: int) -> bool:
    """Whether any pass of the stage looks ahead."""
    reads = ((strategy.forward, Kind.FORWARD), (strategy.backward, Kind.BACKWARD))
    return any(
        steps > 0 for read, kind in reads for _, steps in steps_ahead(schedule, read, stage, kind)
    )


def _weights_alive(schedule: Schedule, strategy: Strategy, stage: int) -> Iterator[int]:
    """After each pass or update, how many sets of weight tensors the stage holds."""
    forward, backward = strategy.forward, strategy.backward
    forward_steps = steps_ahead(schedule, forward, stage, Kind.FORWARD)
    backward_steps = steps_ahead(schedule, backward, stage, Kind.BACKWARD)
    kept = num_kept(schedule, strategy)
    version = 0
    pins: dict[int, Key] = {}
    ahead: set[Key] = set()  # what may be read again: forecasts, or the last look-ahead
    for action in schedule.actions(stage):
        batch = schedule.batch_of(action.number)
        read: list[Key] = []
        if action.kind is Kind.FORWARD:
            key = weights_key(forward, batch, action.number, version, next(forward_steps)[1])
            read.append(key)
            if isinstance(backward, Pinned):
                pins[action.number] = key
        elif action.kind is Kind.BACKWARD:
            _, steps = next(backward_steps)
            if isinstance(backward, Pinned):
                del pins[action.number]
            else:
                read.append(weights_key(backward, batch, action.number, version, steps))
        elif action.kind is Kind.UPDATE:
            version += 1
            ahead = {key for key in ahead if outlives(key, action.number)}
        for key in read:
            if key[0] != "version" and key not in ahead:
                ahead = {key, *filter(serves_a_batch, ahead)}
        yield len({*_readable(version, kept), *pins.values(), *ahead})


def num_kept(schedule: Schedule, strategy: Strategy) -> int:
    """How many versions before the newest a stage keeps, since a forward pass may ask for them."""
    return delay(schedule) if isinstance(strategy.forward, Delayed) else 0


def _readable(version: int, kept: int) -> set[Key]:
    """The newest version, and so many before it as far as there are any."""
    return {("version", v) for v in range(max(0, version - kept), version + 1)}


def live_versions(schedule: Schedule, strategy: Strategy, stage: int) -> int:
    """The most sets of weight tensors that the stage holds at once, the newest included."""
    return max(_weights_alive(schedule, strategy, stage), default=1)


def micro_batches_in_flight(schedule: Schedule, stage: int) -> int:
    """The most micro-batches whose activations the stage holds at once."""
    most = now = 0
    for action in schedule.actions(stage):
        now += {Kind.FORWARD: 1, Kind.BACKWARD: -1}.get(action.kind, 0)
        most = max(most, now)
    return most


@dataclass(frozen=True)
class Sizes:
    """What one stage needs, in bytes.

    Args:
        weights_bytes: one set of its weights.
        activations_bytes: what one micro-batch in flight keeps for its backward pass.
        optimizer_bytes: the optimizer's state.
    """

    weights_bytes: int
    activations_bytes: int
    optimizer_bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """What one stage holds at its fullest, in bytes."""

    versions_bytes: int
    gradients_bytes: int
    look_ahead_bytes: int
    optimizer_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        """The sum of all."""
        return (
            self.versions_bytes
            + self.gradients_bytes
            + self.look_ahead_bytes
            + self.optimizer_bytes
            + self.activations_bytes
        )


def memory(schedule: Schedule, strategy: Strategy, stage: int, sizes: Sizes) -> Memory:
    """The memory of one stage: versions, gradients being added up, what the look-ahead remembers
    (the previous batch's gradient, or the last update), optimizer state, activations in flight."""
    return Memory(
        versions_bytes=live_versions(schedule, strategy, stage) * sizes.weights_bytes,
        gradients_bytes=sizes.weights_bytes,
        look_ahead_bytes=sizes.weights_bytes if looks_ahead(schedule, strategy, stage) else 0,
        optimizer_bytes=sizes.optimizer_bytes,
        activations_bytes=micro_batches_in_flight(schedule, stage) * sizes.activations_bytes,
    )
