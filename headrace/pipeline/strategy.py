"""Which weights each pass reads: the table, nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.errors import StrategyError

__all__ = [
    "DOUBLE_BUFFER",
    "FLUSH",
    "FORECAST",
    "FORECAST_LEAN",
    "PREDICT",
    "SPECTRAIN",
    "STALE",
    "STASH",
    "STRATEGIES",
    "Aim",
    "Assumption",
    "Delayed",
    "Key",
    "Latest",
    "Pinned",
    "Strategy",
    "outlives",
    "serves_a_batch",
    "weights_key",
]


class Aim(StrEnum):
    """Up to which moment a read looks ahead."""

    OWN_UPDATE = "its own update"  # when the stage applies the micro-batch's gradient
    ROUND_TRIP = "the end of the round trip"  # when stage 0 starts its backward pass


class Assumption(StrEnum):
    """What a look-ahead takes for granted about the updates that it skips."""

    CONSTANT_VELOCITY = "each update repeats the last one"  # arXiv 1809.02839
    GIVEN_GRADIENT = "the next update is the optimizer's own on the gradients already in"


@dataclass(frozen=True)
class Latest:
    """The newest weights of the stage, perhaps moved ahead.

    Args:
        ahead_to: the moment aimed at; None reads the newest weights as they are.
        assuming: how the weights move until then.
        once_a_batch: the first look-ahead of a batch serves all its early forward passes; without,
            a forecast is made anew for each.
    """

    ahead_to: Aim | None = None
    assuming: Assumption | None = None
    once_a_batch: bool = False

    def __post_init__(self) -> None:
        if (self.ahead_to is None) != (self.assuming is None):
            raise StrategyError(
                "a look-ahead needs both its aim and its assumption",
                got=f"ahead_to {self.ahead_to}, assuming {self.assuming}",
            )
        if self.once_a_batch and self.ahead_to is None:
            raise StrategyError("once_a_batch goes with a look-ahead", got="ahead_to None")


@dataclass(frozen=True)
class Delayed:
    """The same version on every stage: for batch t that of t - d updates, d the largest staleness
    of the schedule (PipeDream-2BW, arXiv 2006.09503)."""


@dataclass(frozen=True)
class Pinned:
    """The very weights that the micro-batch's forward pass read."""


@dataclass(frozen=True)
class Strategy:
    """A family of schedules and two reads.

    Args:
        name: how messages and files call it.
        schedules: the schedule families it goes with, its own first.
        forward: what a forward pass reads.
        backward: what a backward pass reads.
        known_as: what the field calls it.
    """

    name: str
    schedules: tuple[str, ...]
    forward: Latest | Delayed
    backward: Latest | Pinned
    known_as: str = ""

    def __post_init__(self) -> None:
        where = f"strategy {self.name}"
        looks_ahead = [
            read
            for read in (self.forward, self.backward)
            if isinstance(read, Latest) and read.ahead_to is not None
        ]
        draining = [schedule for schedule in self.schedules if schedule in _DRAINING]
        if looks_ahead and draining:
            raise StrategyError(
                "a schedule that drains at each update leaves nothing to look ahead to",
                got=" and ".join(draining),
                expected=" or ".join(_ASYNCHRONOUS),
                where=where,
            )
        if isinstance(self.backward, Latest) and (
            self.backward.once_a_batch or self.backward.assuming is Assumption.GIVEN_GRADIENT
        ):
            raise StrategyError(
                "a backward pass cannot read a forecast made of gradients it is adding to",
                where=where,
                remedy="let it read Pinned() or a constant velocity",
            )
        if isinstance(self.forward, Delayed) and isinstance(self.backward, Latest):
            raise StrategyError(
                "a backward pass with the newest weights does not go with a forward pass that is "
                "delayed so that both see the same",
                where=where,
                remedy="let the backward pass read Pinned()",
            )
        if (
            isinstance(self.forward, Latest)
            and self.forward.ahead_to is Aim.ROUND_TRIP
            and self.forward.assuming is Assumption.GIVEN_GRADIENT
        ):
            raise StrategyError(
                "the gradients already in tell of the stage's own update, not of the round trip",
                where=where,
                remedy="use Aim.OWN_UPDATE or Assumption.CONSTANT_VELOCITY",
            )

    def require_schedule(self, schedule: str) -> None:
        """Checks that the strategy goes with a schedule family.

        Raises:
            StrategyError: it does not.
        """
        if schedule not in self.schedules:
            raise StrategyError(
                f"strategy {self.name} does not go with the schedule {schedule}",
                expected=" or ".join(self.schedules),
            )


_DRAINING = ("one_f_one_b", "gpipe")
_ASYNCHRONOUS = ("async_1f1b", "async_eager_1f1b")
_VELOCITY = Assumption.CONSTANT_VELOCITY

FLUSH = Strategy("FLUSH", _DRAINING, Latest(), Latest(), "1F1B, GPipe")
STALE = Strategy("STALE", _ASYNCHRONOUS, Latest(), Latest(), "plain asynchronous; PACI")
STASH = Strategy("STASH", _ASYNCHRONOUS, Latest(), Pinned(), "PipeDream")
DOUBLE_BUFFER = Strategy("DOUBLE_BUFFER", _ASYNCHRONOUS, Delayed(), Pinned(), "PipeDream-2BW")
PREDICT = Strategy(
    "PREDICT", _ASYNCHRONOUS, Latest(Aim.OWN_UPDATE, _VELOCITY), Pinned(), "PipeOptim's target"
)
SPECTRAIN = Strategy(
    "SPECTRAIN",
    _ASYNCHRONOUS,
    Latest(Aim.ROUND_TRIP, _VELOCITY),
    Latest(Aim.ROUND_TRIP, _VELOCITY),
    "SpecTrain",
)
FORECAST = Strategy(
    "FORECAST",
    _ASYNCHRONOUS,
    Latest(Aim.OWN_UPDATE, Assumption.GIVEN_GRADIENT, once_a_batch=True),
    Pinned(),
    "headrace's own",
)
FORECAST_LEAN = Strategy(
    "FORECAST_LEAN",
    _ASYNCHRONOUS,
    Latest(Aim.OWN_UPDATE, Assumption.GIVEN_GRADIENT),
    Latest(),
    "headrace's own, with the least memory",
)

STRATEGIES: Mapping[str, Strategy] = {
    strategy.name: strategy
    for strategy in (
        FLUSH,
        STALE,
        STASH,
        DOUBLE_BUFFER,
        PREDICT,
        SPECTRAIN,
        FORECAST,
        FORECAST_LEAN,
    )
}


Key = tuple[Any, ...]
"""What a set of weights is, first in words, then in numbers."""


def weights_key(
    read: Latest | Delayed, batch: int, micro_batch: int, version: int, steps: int
) -> Key:
    """Names the weights of a read: equal keys, equal weights. Memory is counted by the same names.

    Args:
        read: what is read.
        batch: the batch that the micro-batch belongs to.
        micro_batch: its number.
        version: the updates that the stage has applied.
        steps: the updates to look ahead; below 0 for a version that is behind.
    """
    if isinstance(read, Delayed) or read.ahead_to is None or steps == 0:
        return "version", version + steps
    if read.once_a_batch:
        return "forecast", batch
    if read.assuming is Assumption.GIVEN_GRADIENT:
        return "one pass", micro_batch
    return "ahead", version, steps


def serves_a_batch(key: Key) -> bool:
    """Whether it is one look-ahead for a whole batch; others are kept until the next is made."""
    return bool(key[0] == "forecast")


def outlives(key: Key, batch: int) -> bool:
    """Whether forward passes after the update of a batch may still read a look-ahead.

    Only the forecast for a later batch than the next: that one's passes now read the newest.
    """
    return serves_a_batch(key) and bool(key[1] > batch + 1)
