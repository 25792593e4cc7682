"""What follows from schedule, strategy and durations, against arithmetic on paper."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ScheduleError
from headrace.pipeline.actions import Kind
from headrace.pipeline.clock import (
    Durations,
    Sizes,
    bubble,
    delay,
    live_versions,
    looks_ahead,
    memory,
    micro_batches_in_flight,
    span,
    staleness,
    steps_ahead,
    timeline,
)
from headrace.pipeline.schedule import SCHEDULES, Schedule, make_schedule
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
)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 2, 4, 8])
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_bubble_of_draining_schedules(name, n, m):
    """(n - 1)/(m + n - 1): GPipe's formula, and 1F1B's."""
    assert bubble(make_schedule(name, n, m, 5)) == pytest.approx((n - 1) / (m + n - 1))


@pytest.mark.parametrize("n, m, batches", [(2, 1, 10), (4, 4, 6), (3, 8, 4)])
def test_bubble_of_async_1f1b_is_its_two_ramps(n, m, batches):
    """Only the ramps are idle: 2(n - 1) units of each stage."""
    busy = 2 * m * batches

    assert span(make_schedule("async_1f1b", n, m, batches)) == busy + 2 * (n - 1)


def test_a_head_start_hides_transfers():
    """Two stages, two units of work a micro-batch, each transfer one unit: a round trip of
    forward, transfer, forward, backward, transfer, backward is 6 units. One micro-batch ahead,
    stage 0 has two in flight in that time, so one every 3 units; two ahead, one every 2."""
    durations = Durations((1, 1), (1, 1), transfer=1)

    def units_a_micro_batch(name):
        long, short = (span(make_schedule(name, 2, 4, count), durations) for count in (20, 10))
        return (long - short) / (10 * 4)

    assert units_a_micro_batch("async_1f1b") == 3
    assert units_a_micro_batch("async_eager_1f1b") == 2


@pytest.mark.parametrize("n, m", [(2, 1), (2, 2), (2, 4), (3, 4), (4, 6), (4, 1)])
def test_staleness_of_a_head_start(n, m):
    """Batch t's micro-batch j runs with 2(n - 1 - k) - j micro-batches of the batches before still
    to be applied, of which the last of each batch holds up its update."""
    schedule = make_schedule("async_eager_1f1b", n, m, 6 * n)

    for k in range(n):
        ahead = 2 * (n - 1 - k)
        for i, updates in staleness(schedule, k):
            done = max(0, i - ahead)  # the backward passes before this forward pass
            assert updates == i // m - done // m
        assert micro_batches_in_flight(schedule, k) == 1 + ahead


def test_timeline_with_given_durations():
    """Two stages by hand: forward 1 and 2, backward 3 and 4, update 0.5, transfer 0.25."""
    durations = Durations((1, 2), (3, 4), (0.5, 0.5), 0.25)

    times = {
        str(a): (start, end)
        for start, end, a in timeline(make_schedule("one_f_one_b", 2, 1, 1), durations)
    }

    assert times == {
        "0F0": (0, 1),
        "1F0": (1.25, 3.25),
        "1B0": (3.25, 7.25),
        "1U0": (7.25, 7.75),
        "0B0": (7.5, 10.5),
        "0U0": (10.5, 11),
    }
    with pytest.raises(ScheduleError, match="forward durations: got 1, expected 2, one a stage"):
        list(timeline(make_schedule("gpipe", 2, 1, 1), Durations((1,), (1,))))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_staleness_of_one_micro_batch_a_batch(n):
    """n - 1 - k after a ramp of 0, 1, 2, ..."""
    schedule = make_schedule("async_1f1b", n, 1, 20)

    for k in range(n):
        assert [s for _, s in staleness(schedule, k)] == [min(t, n - 1 - k) for t in range(20)]


@pytest.mark.parametrize("n, m", [(2, 2), (3, 3), (4, 4), (4, 6), (8, 8), (3, 8)])
def test_staleness_of_m_at_least_n(n, m):
    """1 for the first n - 1 - k micro-batches of a batch, except of the first batch; else 0."""
    schedule = make_schedule("async_1f1b", n, m, 4)

    for k in range(n):
        for i, updates in staleness(schedule, k):
            assert updates == (i >= m and i % m < n - 1 - k)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_spectrains_steps_are_the_papers_in_the_steady_state(n):
    """floor(k/2) + n - k - 1 for the forward, floor(k/2) for the backward pass."""
    schedule = make_schedule("async_1f1b", n, 1, 4 * n + 4)

    for k in range(n):
        forward = dict(steps_ahead(schedule, SPECTRAIN.forward, k, Kind.FORWARD))
        backward = dict(steps_ahead(schedule, SPECTRAIN.backward, k, Kind.BACKWARD))
        for i in range(n, 2 * n + 2):
            assert forward[i] == k // 2 + n - k - 1
            assert backward[i] == k // 2


def test_spectrains_ramps_are_exact():
    """Stage 0 of 4 has no update to look over before its first, stage 6 of 8 fewer at the end."""
    first = steps_ahead(make_schedule("async_1f1b", 4, 1, 6), SPECTRAIN.forward, 0, Kind.FORWARD)
    last = steps_ahead(make_schedule("async_1f1b", 8, 1, 20), SPECTRAIN.backward, 6, Kind.BACKWARD)

    assert [steps for _, steps in first] == [0, 1, 2, 3, 3, 3]
    assert [steps for _, steps in last][-4:] == [3, 3, 2, 1]


@given(
    n=st.integers(1, 5),
    m=st.integers(1, 6),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_steps_to_the_own_update_are_the_staleness(n, m, data):
    """Looking ahead to its own update, a forward pass skips exactly the updates that are late."""
    counts = tuple(data.draw(st.lists(st.integers(1, m), min_size=1, max_size=6)))
    schedule = Schedule("async_1f1b", SCHEDULES["async_1f1b"], n, m, counts, first_batch=3)

    for k in range(n):
        ahead = dict(steps_ahead(schedule, PREDICT.forward, k, Kind.FORWARD))
        assert ahead == dict(staleness(schedule, k))


@pytest.mark.parametrize("n, m", [(2, 2), (2, 4), (4, 4), (4, 6), (4, 12), (8, 8), (8, 14)])
def test_forecast_holds_three_versions_and_two_once_m_is_large(n, m):
    """At most three, two once m >= 2(n - 1), one on the last stage."""
    schedule = make_schedule("async_1f1b", n, m, 5)

    versions = [live_versions(schedule, FORECAST, k) for k in range(n)]

    assert versions[-1] == 1
    assert max(versions) <= (2 if m >= 2 * (n - 1) else 3)


def test_live_versions_of_the_classics():
    """PipeDream holds n - k, a flushed pipeline one, SpecTrain the newest and what it predicts,
    PipeDream-2BW two on every stage; plain asynchronous one."""
    schedule = make_schedule("async_1f1b", 4, 1, 12)
    drained = make_schedule("one_f_one_b", 4, 4, 3)
    full = make_schedule("async_1f1b", 4, 4, 6)

    assert [live_versions(schedule, STASH, k) for k in range(4)] == [4, 3, 2, 1]
    assert [live_versions(drained, FLUSH, k) for k in range(4)] == [1, 1, 1, 1]
    assert [live_versions(schedule, SPECTRAIN, k) for k in range(4)] == [2, 2, 2, 2]
    assert [live_versions(schedule, STALE, k) for k in range(4)] == [1, 1, 1, 1]
    assert [live_versions(full, FORECAST_LEAN, k) for k in range(4)] == [2, 2, 2, 1]
    assert [live_versions(full, DOUBLE_BUFFER, k) for k in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize("n, m, expected", [(4, 1, 3), (4, 2, 2), (4, 3, 1), (4, 8, 1), (1, 1, 0)])
def test_the_delay_of_a_double_buffer(n, m, expected):
    """ceil((n - 1) / m); batch t reads version max(0, t - d) wherever it is, from what is there."""
    schedule = make_schedule("async_1f1b", n, m, 9)

    assert delay(schedule) == expected
    for k in range(n):
        version = 0
        steps = dict(steps_ahead(schedule, DOUBLE_BUFFER.forward, k, Kind.FORWARD))
        for action in schedule.actions(k):
            if action.kind is Kind.UPDATE:
                version += 1
            elif action.kind is Kind.FORWARD:
                batch = action.number // m
                assert version + steps[action.number] == max(0, batch - expected)


def test_memory_adds_up():
    """n - k micro-batches in flight on 1F1B, all m on GPipe; every part counted in bytes."""
    drained, filled = make_schedule("one_f_one_b", 4, 8, 2), make_schedule("gpipe", 4, 8, 2)
    running = make_schedule("async_1f1b", 4, 8, 3)
    sizes = Sizes(weights_bytes=100, activations_bytes=7, optimizer_bytes=200)

    assert [micro_batches_in_flight(drained, k) for k in range(4)] == [4, 3, 2, 1]
    assert [micro_batches_in_flight(filled, k) for k in range(4)] == [8, 8, 8, 8]
    assert memory(drained, FLUSH, 0, sizes).total_bytes == 100 + 100 + 0 + 200 + 4 * 7
    assert memory(running, FORECAST, 0, sizes).total_bytes == 2 * 100 + 100 + 100 + 200 + 4 * 7
    assert memory(running, FORECAST, 3, sizes).total_bytes == 100 + 100 + 0 + 200 + 7


def test_only_stages_that_can_be_late_look_ahead():
    """The last stage's own update always follows at once; a draining schedule has nothing ahead."""
    schedule = make_schedule("async_1f1b", 3, 3, 5)

    assert [looks_ahead(schedule, FORECAST, k) for k in range(3)] == [True, True, False]
    assert not any(
        looks_ahead(make_schedule("gpipe", 3, 3, 3), STRATEGIES["FLUSH"], k) for k in range(3)
    )
