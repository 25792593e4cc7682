"""Schedules as data: their order, their text, their faults."""

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ScheduleError
from headrace.pipeline.actions import Action, Kind, timeline
from headrace.pipeline.schedule import (
    SCHEDULES,
    Schedule,
    async_1f1b,
    make_schedule,
    require_valid,
    with_transfers,
)

GOLDEN = Path(__file__).parent.parent / "golden"
SHAPES = [
    ("gpipe", 4, 4, 2),
    ("one_f_one_b", 4, 4, 2),
    ("one_f_one_b", 3, 2, 3),
    ("async_1f1b", 4, 1, 8),
    ("async_1f1b", 4, 4, 3),
    ("async_1f1b", 4, 8, 2),
    ("async_1f1b", 3, 2, 4),
    ("async_1f1b", 1, 2, 2),
    ("async_eager_1f1b", 2, 2, 4),
    ("async_eager_1f1b", 4, 4, 3),
]


@pytest.mark.parametrize("name, stages, micro_batches, batches", SHAPES)
def test_staircase_is_the_golden_one(name, stages, micro_batches, batches):
    """What each stage does and when, drawn, is what the file shows; change both by hand."""
    file = GOLDEN / f"{name}_n{stages}_m{micro_batches}_t{batches}.txt"

    assert str(make_schedule(name, stages, micro_batches, batches)) + "\n" == file.read_text()


def test_one_f_one_b_in_the_papers_order():
    """PipeDream's figure: stage 0 of 2 runs one forward ahead, the last stage none."""
    schedule = make_schedule("async_1f1b", 2, 1, 3)

    assert [str(a) for a in schedule.actions(0)] == "0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2".split()
    assert [str(a) for a in schedule.actions(1)] == "1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2".split()


def test_draining_schedules_update_before_the_next_forward():
    """No forward pass of a batch comes before the update of the batch before, on any stage."""
    for name in ("gpipe", "one_f_one_b"):
        schedule = make_schedule(name, 3, 4, 5)
        for stage in range(3):
            applied = -1
            for action in schedule.actions(stage):
                if action.kind is Kind.UPDATE:
                    applied = action.number
                elif action.kind is Kind.FORWARD:
                    assert schedule.batch_of(action.number) == applied + 1


def test_micro_batches_are_counted_over_the_run():
    """Micro-batch j of batch t is t m + j; a short batch leaves its last numbers unused."""
    schedule = make_schedule("gpipe", 1, 4, 2, last_micro_batches=2, first_batch=10)

    forwards = [a.number for a in schedule.actions(0) if a.kind is Kind.FORWARD]
    updates = [a.number for a in schedule.actions(0) if a.kind is Kind.UPDATE]

    assert forwards == [40, 41, 42, 43, 44, 45]
    assert updates == [10, 11]


def test_lazy():
    """A schedule of endless batches gives its first actions at once, and takes no batch early."""
    taken = []

    class Endless:
        def __iter__(self):
            t = 0
            while True:
                taken.append(t)
                yield 2
                t += 1

    schedule = Schedule("async_1f1b", async_1f1b, 2, 2, Endless())

    first = list(islice(with_transfers(schedule, 1), 7))

    assert [str(a) for a in first] == "1RF0 1F0 1B0 1SB0 1RF1 1F1 1B1".split()
    assert max(taken) == 0
    assert str(schedule).endswith("...")


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    stages=st.integers(1, 6),
    micro_batches=st.integers(1, 7),
    data=st.data(),
)
@settings(max_examples=150, deadline=None)
def test_every_built_schedule_is_valid_and_both_ends_agree(name, stages, micro_batches, data):
    """Any numbers of micro-batches in any batch: complete, in order, never stuck; each channel is
    received in the order in which it is sent."""
    counts = tuple(data.draw(st.lists(st.integers(1, micro_batches), min_size=1, max_size=6)))
    schedule = Schedule(name, SCHEDULES[name], stages, micro_batches, counts)

    require_valid(schedule)

    whole = [list(with_transfers(schedule, stage)) for stage in range(stages)]
    for stage in range(stages - 1):
        for sent, received, ends in (
            (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD, (stage, stage + 1)),
            (Kind.SEND_BACKWARD, Kind.RECEIVE_BACKWARD, (stage + 1, stage)),
        ):
            leaving = [a.number for a in whole[ends[0]] if a.kind is sent]
            arriving = [a.number for a in whole[ends[1]] if a.kind is received]
            assert leaving == arriving
            assert len(leaving) == sum(counts)


def test_transfers_follow_the_senders_order():
    """Where two stages disagree on the order, the receiver takes what comes and keeps it."""

    def odd(stage, num_stages, slots):
        order = [1, 0] if stage == 0 else [0, 1]
        yield from (Action(stage, Kind.FORWARD, i) for i in order)
        yield from (Action(stage, Kind.BACKWARD, i) for i in order)
        yield Action(stage, Kind.UPDATE, 0)

    schedule = Schedule("odd", odd, 2, 2, (2,))
    require_valid(schedule)

    assert [str(a) for a in with_transfers(schedule, 1)][:4] == ["1RF1", "1RF0", "1F0", "1F1"]


def test_all_faults_at_once_with_the_grid():
    """A wrong schedule is refused with each fault named and marked in the grid."""

    def wrong(stage, num_stages, slots):
        yield Action(stage, Kind.BACKWARD, 0)
        yield Action(stage, Kind.FORWARD, 0)
        yield Action(stage, Kind.FORWARD, 0)
        yield Action(stage, Kind.FORWARD, 7)
        yield Action(1 - stage, Kind.FORWARD, 1)
        yield Action(stage, Kind.UPDATE, 0)
        yield Action(stage, Kind.BACKWARD, 1)

    with pytest.raises(ScheduleError) as caught:
        require_valid(Schedule("wrong", wrong, 2, 2, (2,)))

    message = str(caught.value)
    for fault in (
        "stage 0: 0B0 comes before its forward pass",
        "stage 0: 0F0 comes twice",
        "stage 0: 0F7 has no such micro-batch",
        "stage 0: 1F1 belongs to another stage",
        "stage 0: 0U0 comes before the backward pass of [1]",
        "stage 0: 0B1 comes after the update that should apply it",
        "stage 1: 1F0 comes twice",
        "stage 0 |[0B0]  0F0  [0F0] [0F7] [1F1] [0U0] [0B1]",
    ):
        assert fault in message


def test_missing_passes_are_named():
    """A stage that forgets micro-batches and updates is refused."""

    def forgetful(stage, num_stages, slots):
        yield Action(stage, Kind.FORWARD, 0)

    with pytest.raises(ScheduleError, match=r"stage 0: no B of \[0, 1\]"):
        require_valid(Schedule("forgetful", forgetful, 1, 2, (2,)))


def test_a_stuck_schedule_says_who_waits_for_what():
    """Two stages that wait for each other are found before anything starts."""

    def stuck(stage, num_stages, slots):
        kinds = [Kind.FORWARD, Kind.BACKWARD]
        if stage == 0:  # wants the gradient of 0 before it sends 1
            yield from (Action(0, kind, i) for i in (0, 1) for kind in kinds)
        else:  # computes both forward passes first
            yield from (Action(1, kind, i) for kind in kinds for i in (0, 1))
        yield Action(stage, Kind.UPDATE, 0)

    with pytest.raises(
        ScheduleError, match="stuck: got stage 0 at 0RB0 waits for 1SB0; stage 1 at 1RF1"
    ):
        require_valid(Schedule("stuck", stuck, 2, 2, (2,)))


def test_a_result_that_nobody_uses_is_a_fault():
    """The dry run notices a pass whose result the neighbour never takes."""
    with pytest.raises(ScheduleError, match="never uses what was sent: got 0F0"):
        list(timeline([[Action(0, Kind.FORWARD, 0)], []]))


@pytest.mark.parametrize("text", ["0F0", "12U3", "1RF2", "1SF2", "3RB44", "3SB44", "0B9"])
def test_action_text_goes_both_ways(text):
    """The text of an action reads back as the action."""
    assert str(Action.parse(text)) == text


def test_bad_input_is_refused():
    """Unknown names, numbers below one, counts above m, texts that are no action."""
    with pytest.raises(ScheduleError, match="unknown schedule: got zigzag, expected gpipe or one"):
        make_schedule("zigzag", 2, 2, 2)
    with pytest.raises(ScheduleError, match="number of stages: got 0, expected 1 or more"):
        make_schedule("gpipe", 0, 2, 2)
    with pytest.raises(ScheduleError, match="number of micro-batches: got 0"):
        make_schedule("gpipe", 2, 0, 2)
    with pytest.raises(ScheduleError, match="micro-batches of batch 0: got 3, expected 1 to 2"):
        list(Schedule("gpipe", SCHEDULES["gpipe"], 1, 2, (3,)).actions(0))
    with pytest.raises(ScheduleError, match="not an action: got '0X1', expected such as 2F0"):
        Action.parse("0X1")
    with pytest.raises(ScheduleError, match="a receive without a send: got 1RF1"):

        def one_sided(stage, num_stages, slots):
            yield from (Action(stage, Kind.FORWARD, i) for i in range(1 + stage))

        list(with_transfers(Schedule("one_sided", one_sided, 2, 2, (2,)), 1))
