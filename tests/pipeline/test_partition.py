"""The exact split against brute force, its rule for ties, and the checks of a user's own cuts."""

import math
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ModelError
from headrace.pipeline.partition import LayerCost, partition, require_cuts

whole = st.lists(st.integers(0, 9), min_size=1, max_size=9)
decimal = st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=8)
tenths = st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.7]), min_size=1, max_size=8)


def stage_costs(costs, cuts):
    """Exact costs of the stages."""
    edges = (0, *cuts, len(costs))
    return [sum(map(Fraction, costs[a:b])) for a, b in zip(edges, edges[1:], strict=False)]


def by_brute_force(costs, num_stages):
    """Of all the cuts: the fastest slowest stage, then the most even, then the first in order."""
    every = combinations(range(1, len(costs)), num_stages - 1)
    return min(
        every,
        key=lambda cuts: (
            max(stage_costs(costs, cuts)),
            sum(cost * cost for cost in stage_costs(costs, cuts)),
            cuts,
        ),
    )


@given(st.one_of(whole, decimal, tenths), st.data())
def test_brute_force_agrees(costs, data):
    """For whole numbers, floats and floats whose rounded sums would break ties."""
    num_stages = data.draw(st.integers(1, len(costs)))
    assert partition(costs, num_stages) == by_brute_force(costs, num_stages)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.integers(1, 12))
def test_every_stage_has_a_layer_and_none_beats_the_bound(costs, num_stages):
    """The slowest stage is never above the bound that a greedy split guarantees."""
    num_stages = min(num_stages, len(costs))
    cuts = partition(costs, num_stages)
    assert require_cuts(cuts, len(costs), num_stages) == cuts
    exact = [Fraction(cost) for cost in costs]
    assert max(stage_costs(costs, cuts)) <= sum(exact) / num_stages + max(exact)


@pytest.mark.parametrize(
    ("costs", "num_stages", "cuts"),
    [
        ([1], 1, ()),
        ([1, 1, 1, 1], 2, (2,)),
        ([1] * 10, 4, (2, 4, 7)),
        ([5, 1, 1, 1, 1], 2, (1,)),
        ([1, 1, 1, 1, 6], 3, (2, 4)),
        ([0, 0, 0], 3, (1, 2)),
        ([0, 0, 0], 2, (1,)),
        ([0.1, 0.2, 0.3], 2, (2,)),
        ([3, 1, 2, 2, 1, 3], 3, (2, 4)),
    ],
)
def test_known_splits(costs, num_stages, cuts):
    """Worked by hand: the slowest stage first, then evenness, then light early stages."""
    assert partition(costs, num_stages) == cuts


def test_a_thousand_layers():
    """Equal layers over many stages come out equal."""
    assert partition([0.001] * 1000, 8) == tuple(range(125, 1000, 125))


def test_more_stages_than_layers():
    """Both numbers and a remedy."""
    message = "more stages than layers: got 5 stages for 3 layers.*at most 3 stages.*fewer stages"
    with pytest.raises(ModelError, match=message):
        partition([1, 1, 1], 5)
    with pytest.raises(ModelError, match=message):
        require_cuts((1, 2, 3, 4), 3, 5)


@pytest.mark.parametrize("num_stages", [0, -1])
def test_no_stages(num_stages):
    """A pipeline without stages is refused."""
    with pytest.raises(ModelError, match=f"needs a stage: got {num_stages}, expected at least 1"):
        partition([1, 1], num_stages)


@pytest.mark.parametrize("cost", [math.nan, math.inf, -0.5])
def test_a_cost_that_is_no_time(cost):
    """It is named with its layer."""
    with pytest.raises(ModelError, match=rf"no time: got {cost}, expected.*>= 0; in layer 1"):
        partition([1.0, cost], 2)


def test_cuts_that_fit():
    """They come back as a tuple."""
    assert require_cuts([3, 6], 9, 3) == (3, 6)
    assert require_cuts((), 4, 1) == ()


@pytest.mark.parametrize("cuts", [(), (1,), (1, 2, 3)])
def test_a_wrong_number_of_cuts(cuts):
    """The message has an example of the right number."""
    message = rf"one cut fewer.*got {len(cuts)} cuts.*for 3 stages, expected 2, such as \(3, 6\)"
    with pytest.raises(ModelError, match=message):
        require_cuts(cuts, 9, 3)


@pytest.mark.parametrize("cuts", [(0, 4), (4, 4), (5, 4), (4, 9), (-1, 4)])
def test_cuts_that_leave_a_stage_empty(cuts):
    """Not rising, before the first layer or behind the last."""
    with pytest.raises(ModelError, match=r"without layers: got \(.*from 1 to 8, such as \(3, 6\)"):
        require_cuts(cuts, 9, 3)


def test_a_layer_cost_adds_up_its_passes():
    """What the split is usually made by."""
    assert LayerCost("0.weight", 0.25, 0.5, 8, 16).total_s == 0.75
