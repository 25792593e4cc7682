"""The split of a list of layer costs into stages: exact, and blind to where the costs come from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from headrace.errors import ModelError

__all__ = ["LayerCost", "partition", "require_cuts"]


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs for one micro-batch.

    Attributes:
        name: the layer's name in the model.
        forward_s: time of its forward pass.
        backward_s: time of its backward pass; 0 where nothing before it or in it is trained.
        parameter_bytes: its parameters, the frozen ones included.
        activation_bytes: what it adds to the memory that waits for the backward pass: its outputs
            and all that autograd saves, without its inputs (the layer before counts them).
    """

    name: str
    forward_s: float
    backward_s: float
    parameter_bytes: int
    activation_bytes: int

    @property
    def total_s(self) -> float:
        """Time of both passes."""
        return self.forward_s + self.backward_s


def partition(costs: Sequence[float], num_stages: int) -> tuple[int, ...]:
    """Cuts the layers into stages of neighbours so that the slowest stage is as fast as can be.

    Of the cuts with the fastest slowest stage it takes the most even ones (the least sum of squared
    stage costs), and of those the ones that come first in order, which puts fewer layers into the
    early stages, where more micro-batches are kept alive. Costs are summed exactly, so that a tie
    is decided by this rule and not by rounding.

    >>> partition([1, 1, 1, 1, 6], 3)
    (2, 4)

    Args:
        costs: one finite number >= 0 for each layer, in any unit.
        num_stages: at least 1, at most the number of layers; every stage gets a layer.

    Returns:
        The first layer of each stage but the first, so num_stages - 1 numbers.

    Raises:
        ModelError: more stages than layers, no stage, or a cost that is not such a number.
    """
    _require_stages(len(costs), num_stages)
    for index, cost in enumerate(costs):
        if not (math.isfinite(cost) and cost >= 0):
            raise ModelError(
                "a layer's cost is no time",
                got=cost,
                expected="a finite number >= 0",
                where=f"layer {index}",
            )
    sums = list(accumulate(_integers(costs), initial=0))
    return _most_even(sums, num_stages, _slowest(sums, num_stages))


def require_cuts(cuts: Sequence[int], num_layers: int, num_stages: int) -> tuple[int, ...]:
    """The user's own cuts, checked.

    Args:
        cuts: the first layer of each stage but the first.
        num_layers: layers in the model.
        num_stages: stages in the pipeline.

    Raises:
        ModelError: more stages than layers, a wrong number of cuts, or cuts that leave a stage
            without layers.
    """
    _require_stages(num_layers, num_stages)
    example = partition([1] * num_layers, num_stages)
    if len(cuts) != num_stages - 1:
        raise ModelError(
            "a pipeline has one cut fewer than stages",
            got=f"{len(cuts)} cuts {tuple(cuts)} for {num_stages} stages",
            expected=f"{num_stages - 1}, such as {example}",
            where="cuts",
            remedy="name the first layer of each stage but the first",
        )
    edges = (0, *cuts, num_layers)
    if any(start >= stop for start, stop in zip(edges, edges[1:], strict=False)):
        raise ModelError(
            "these cuts leave a stage without layers",
            got=tuple(cuts),
            expected=f"rising numbers from 1 to {num_layers - 1}, such as {example}",
            where="cuts",
            remedy="name the first layer of each stage but the first",
        )
    return tuple(cuts)


def _require_stages(num_layers: int, num_stages: int) -> None:
    if num_stages < 1:
        raise ModelError("a pipeline needs a stage", got=num_stages, expected="at least 1 stage")
    if num_stages > num_layers:
        raise ModelError(
            "there are more stages than layers",
            got=f"{num_stages} stages for {num_layers} layers",
            expected=f"at most {num_layers} stages",
            remedy="ask for fewer stages, or split the model's layers into smaller ones",
        )


def _integers(costs: Sequence[float]) -> list[int]:
    """The costs in a unit so small that each is a whole number of it."""
    exact = [Fraction(cost) for cost in costs]
    unit = math.lcm(*(cost.denominator for cost in exact))
    return [int(cost * unit) for cost in exact]


def _slowest(sums: Sequence[int], num_stages: int) -> int:
    """The least cost of the slowest stage, by bisection over what a stage may cost."""
    low = max(stop - start for start, stop in zip(sums, sums[1:], strict=False))
    high = sums[-1]
    while low < high:
        limit = (low + high) // 2
        if _num_stages_within(sums, limit) <= num_stages:
            high = limit
        else:
            low = limit + 1
    return low


def _num_stages_within(sums: Sequence[int], limit: int) -> int:
    """How many stages are needed if each takes layers for as long as the limit allows."""
    num_stages, start = 1, 0
    for previous, total in zip(sums, sums[1:], strict=False):
        if total - start > limit:
            num_stages, start = num_stages + 1, previous
    return num_stages


def _most_even(sums: Sequence[int], num_stages: int, limit: int) -> tuple[int, ...]:
    """The cuts with no stage above the limit that have the least sum of squares, first in order."""
    num_layers = len(sums) - 1
    # best[i]: least sum of squares of layers i and on, in the number of stages looked at so far.
    best: list[int | None] = [None] * num_layers + [0]
    choices = []  # from the last stage backward: where a stage that starts at i should stop
    for num_left in range(num_stages):
        squares: list[int | None] = [None] * (num_layers + 1)
        stops = [0] * (num_layers + 1)
        for start in range(num_layers - num_left):
            for stop in range(start + 1, num_layers - num_left + 1):
                cost = sums[stop] - sums[start]
                rest = best[stop]
                if cost > limit:
                    break
                if rest is None:
                    continue
                known = squares[start]
                if known is None or cost * cost + rest < known:
                    squares[start], stops[start] = cost * cost + rest, stop
        best = squares
        choices.append(stops)
    cuts, start = [], 0
    for stops in reversed(choices):
        start = stops[start]
        cuts.append(start)
    return tuple(cuts[:-1])
