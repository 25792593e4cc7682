"""The table of strategies and what it refuses."""

import pytest

from headrace.errors import StrategyError
from headrace.pipeline.strategy import (
    DOUBLE_BUFFER,
    FLUSH,
    FORECAST,
    FORECAST_LEAN,
    PREDICT,
    SPECTRAIN,
    STALE,
    STASH,
    STRATEGIES,
    Aim,
    Assumption,
    Delayed,
    Latest,
    Pinned,
    Strategy,
    weights_key,
)

VELOCITY = Assumption.CONSTANT_VELOCITY
GIVEN = Assumption.GIVEN_GRADIENT


def test_the_table():
    """Two reads and a schedule each, as the papers have them."""
    assert (FLUSH.forward, FLUSH.backward) == (Latest(), Latest())
    assert (STASH.forward, STASH.backward) == (Latest(), Pinned())
    assert (PREDICT.forward, PREDICT.backward) == (Latest(Aim.OWN_UPDATE, VELOCITY), Pinned())
    assert SPECTRAIN.forward == SPECTRAIN.backward == Latest(Aim.ROUND_TRIP, VELOCITY)
    assert (FORECAST.forward, FORECAST.backward) == (
        Latest(Aim.OWN_UPDATE, GIVEN, once_a_batch=True),
        Pinned(),
    )
    assert (STALE.forward, STALE.backward) == (Latest(), Latest())
    assert (DOUBLE_BUFFER.forward, DOUBLE_BUFFER.backward) == (Delayed(), Pinned())
    assert (FORECAST_LEAN.forward, FORECAST_LEAN.backward) == (
        Latest(Aim.OWN_UPDATE, GIVEN),
        Latest(),
    )
    assert FLUSH.schedules == ("one_f_one_b", "gpipe")
    for strategy in set(STRATEGIES.values()) - {FLUSH}:
        assert strategy.schedules == ("async_1f1b", "async_eager_1f1b")


def test_other_pairs_are_refused_saying_why():
    """What cannot mean anything is no strategy."""
    with pytest.raises(StrategyError, match="leaves nothing to look ahead to: got gpipe, expected"):
        Strategy("X", ("async_1f1b", "gpipe"), Latest(Aim.OWN_UPDATE, VELOCITY), Pinned())
    with pytest.raises(StrategyError, match="a forecast made of gradients it is adding to"):
        Strategy("X", ("async_1f1b",), Latest(), Latest(Aim.OWN_UPDATE, GIVEN))
    with pytest.raises(StrategyError, match="tell of the stage's own update, not of the round"):
        Strategy("X", ("async_1f1b",), Latest(Aim.ROUND_TRIP, GIVEN), Pinned())
    with pytest.raises(StrategyError, match="does not go with a forward pass that is delayed"):
        Strategy("X", ("async_1f1b",), Delayed(), Latest())
    with pytest.raises(StrategyError, match="needs both its aim and its assumption"):
        Latest(Aim.OWN_UPDATE)
    with pytest.raises(StrategyError, match="once_a_batch goes with a look-ahead"):
        Latest(once_a_batch=True)
    with pytest.raises(
        StrategyError, match="FORECAST does not go with the schedule gpipe: expected async_1f1b"
    ):
        FORECAST.require_schedule("gpipe")


def test_equal_keys_equal_weights():
    """A look-ahead of no steps is the newest version; a forecast is named by its batch."""
    assert weights_key(Latest(), 5, 20, 3, 0) == ("version", 3)
    assert weights_key(Delayed(), 5, 20, 3, -1) == ("version", 2)
    assert weights_key(PREDICT.forward, 5, 20, 3, 0) == ("version", 3)
    assert weights_key(PREDICT.forward, 5, 20, 3, 2) == ("ahead", 3, 2)
    assert weights_key(FORECAST.forward, 5, 20, 3, 2) == weights_key(FORECAST.forward, 5, 21, 4, 1)
    lean = FORECAST_LEAN.forward
    assert weights_key(lean, 5, 20, 3, 2) != weights_key(lean, 5, 21, 3, 2)
