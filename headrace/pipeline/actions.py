"""The actions of stages, and the dry run that plays them against each other."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from headrace.errors import ScheduleError

__all__ = ["Action", "Kind", "Timed", "staircase", "timeline", "unit_duration"]


class Kind(StrEnum):
    """What a stage can be told to do."""

    FORWARD = "F"  # outputs[i] = stage(inputs[i])
    BACKWARD = "B"  # gradients of inputs[i]; gradients of the weights are added up
    UPDATE = "U"  # the optimizer steps with the gradients of one batch
    SEND_FORWARD = "SF"  # outputs[i] leave for the next stage
    RECEIVE_FORWARD = "RF"  # inputs[i] come from the stage before
    SEND_BACKWARD = "SB"  # gradients of inputs[i] leave for the stage before
    RECEIVE_BACKWARD = "RB"  # gradients of outputs[i] come from the next stage


class Action(NamedTuple):
    """One step of one stage; its text is four characters or so: ``2F0``, ``1RB7``.

    ``number`` is a micro-batch, for an update the batch; both count over the whole run.
    """

    stage: int
    kind: Kind
    number: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.number}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        """The action whose text this is.

        Raises:
            ScheduleError: the text is not an action.
        """
        match = re.fullmatch(r"(\d+)(F|B|U|SF|RF|SB|RB)(\d+)", text)
        if match is None:
            raise ScheduleError("not an action", got=repr(text), expected="such as 2F0 or 1RB7")
        return cls(int(match[1]), Kind(match[2]), int(match[3]))


class Timed(NamedTuple):
    """An action with the time at which it starts and ends."""

    start: float
    end: float
    action: Action


def _needed(action: Action, num_stages: int) -> Action | None:
    """What a neighbour must have done before this action can start."""
    stage, kind, number = action
    last = num_stages - 1
    if kind is Kind.FORWARD and stage > 0:
        return Action(stage - 1, Kind.FORWARD, number)
    if kind is Kind.BACKWARD and stage < last:
        return Action(stage + 1, Kind.BACKWARD, number)
    if kind is Kind.RECEIVE_FORWARD:
        return Action(stage - 1, Kind.SEND_FORWARD, number)
    if kind is Kind.RECEIVE_BACKWARD:
        return Action(stage + 1, Kind.SEND_BACKWARD, number)
    return None


def _needed_by_another(action: Action, num_stages: int) -> bool:
    """Whether a neighbour waits for this action."""
    if action.kind is Kind.FORWARD:
        return action.stage < num_stages - 1
    if action.kind is Kind.BACKWARD:
        return action.stage > 0
    return action.kind in (Kind.SEND_FORWARD, Kind.SEND_BACKWARD)


def unit_duration(action: Action) -> float:
    """One unit for a forward and a backward pass; updates and transfers take no time."""
    return 1 if action.kind in (Kind.FORWARD, Kind.BACKWARD) else 0


def timeline(
    stages: Sequence[Iterable[Action]],
    duration: Callable[[Action], float] = unit_duration,
    transfer: float = 0,
) -> Iterator[Timed]:
    """Plays the stages' actions, each as early as it can be, and yields them by their start.

    Lazy: takes no more actions from a stage than it yields, plus one.

    Args:
        stages: the actions of each stage, in its order.
        duration: how long an action keeps its stage busy.
        transfer: how long after an action of one stage its neighbour can make use of it.

    Raises:
        ScheduleError: the stages wait for each other, or something is sent and never used.
    """
    orders = [iter(stage) for stage in stages]
    heads = [next(order, None) for order in orders]
    free = [0.0] * len(stages)
    ended: dict[Action, float] = {}

    def start_of(head: Action | None) -> float | None:
        if head is None:
            return None
        needed = _needed(head, len(stages))
        if needed is None:
            return free[head.stage]
        end = ended.get(needed)
        return None if end is None else max(free[head.stage], end + transfer)

    while any(head is not None for head in heads):
        ready = [(start, head) for head in heads if (start := start_of(head)) is not None and head]
        if not ready:
            waits = [
                f"stage {head.stage} at {head} waits for {_needed(head, len(stages))}"
                for head in heads
                if head is not None
            ]
            raise ScheduleError("the schedule is stuck", got="; ".join(waits))
        start, action = min(ready, key=lambda pair: (pair[0], pair[1].stage))
        end = start + duration(action)
        free[action.stage] = end
        needed = _needed(action, len(stages))
        if needed is not None:
            del ended[needed]
        if _needed_by_another(action, len(stages)):
            ended[action] = end
        heads[action.stage] = next(orders[action.stage], None)
        yield Timed(start, end, action)
    if ended:
        unused = ", ".join(map(str, ended))
        raise ScheduleError("the next stage never uses what was sent", got=unused)


def staircase(stages: Sequence[Iterable[Action]], num_columns: int = 40) -> str:
    """The stages' forward and backward passes as a grid, a row a stage, a column a unit of time.

    ``*`` behind a backward pass marks the update after it. Only the first columns are played.
    """
    rows: list[dict[int, str]] = [{} for _ in stages]
    last: list[int] = [0] * len(stages)
    cut = False
    for timed in timeline(stages):
        column, action = int(timed.start), timed.action
        if column >= num_columns and action.kind is not Kind.UPDATE:
            cut = True
            break
        if action.kind is Kind.UPDATE:
            rows[action.stage][last[action.stage]] += "*"
        elif action.kind in (Kind.FORWARD, Kind.BACKWARD):
            rows[action.stage][column] = f"{action.kind}{action.number}"
            last[action.stage] = column
    width = max((len(cell) for row in rows for cell in row.values()), default=1)
    columns = range(max((max(row, default=-1) for row in rows), default=-1) + 1)
    return "\n".join(
        f"stage {number} | "
        + " ".join(row.get(column, "").ljust(width) for column in columns)
        .rstrip()
        .__add__(" ..." if cut else "")
        for number, row in enumerate(rows)
    )
