"""`headrace schedule` draws what the stages do, and says what it costs."""

import json
from pathlib import Path

import pytest

from headrace.cli.app import run
from headrace.pipeline.schedule import make_schedule
from headrace.pipeline.strategy import FORECAST
from headrace.report import plot, schedule_report, smoothed

GOLDEN = Path(__file__).parents[1] / "golden" / "command_schedule.txt"


def said(capsys, *arguments, status=0):
    """What the command prints: output, errors."""
    assert run(["schedule", *arguments]) == status
    return capsys.readouterr()


def test_the_golden_text(capsys):
    """As in the README; bubble: 2 * 3 of 2 * 24 + 2 * 3 units; change the file by hand."""
    out, err = said(capsys, "async-1f1b", "--stages", "4", "--micro-batches", "8")

    assert out == GOLDEN.read_text()
    assert f"bubble {6 / 54:.1%} of all stages' time" in out
    assert err == ""


def test_the_figures_as_json(capsys):
    """The last line; a value a stage where stages differ."""
    out, _ = said(capsys, "async-1f1b", "--stages", "4", "--micro-batches", "8", "--json")

    *text, last = out.splitlines()
    assert "\n".join(text) + "\n" == GOLDEN.read_text()
    assert json.loads(last) == {
        "schedule": "async_1f1b",
        "strategy": "FORECAST",
        "stages": 4,
        "micro_batches": 8,
        "bubble": pytest.approx(6 / 54),
        "staleness": [1, 1, 1, 0],
        "live_versions": [2, 2, 2, 1],
        "micro_batches_in_flight": [4, 3, 2, 1],
    }


@pytest.mark.parametrize("name", ["1f1b", "1F1B", "one_f_one_b", "one-f-one-b"])
def test_the_names_of_a_schedule(capsys, name):
    """That of the field, and ours, with - or _; a draining one goes with FLUSH."""
    out, _ = said(capsys, name, "--stages", "2", "--micro-batches", "2", "--batches", "1", "--json")

    figures = json.loads(out.splitlines()[-1])
    assert (figures["schedule"], figures["strategy"]) == ("one_f_one_b", "FLUSH")
    # F0 F1 . B0 . B1 over . F0 B0 F1 B1 .: 2 + 2 of 2 * 6 units idle
    assert figures["bubble"] == pytest.approx(4 / 12)
    assert figures["staleness"] == [0, 0]


def test_versions_of_another_strategy(capsys):
    """One micro-batch a batch: PipeDream's stash of n - k versions."""
    options = ("--stages", "3", "--micro-batches", "1", "--batches", "9", "--strategy", "stash")
    out, _ = said(capsys, "async-1f1b", *options, "--json")

    figures = json.loads(out.splitlines()[-1])
    assert figures["live_versions"] == [3, 2, 1]
    assert figures["staleness"] == [2, 1, 0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["zigzag"], "unknown schedule: got zigzag, expected gpipe or one_f_one_b or async_1f1b"),
        (["gpipe", "--stages", "0"], "number of stages: got 0, expected 1 or more"),
        (["gpipe", "--micro-batches", "0"], "got 0, expected 1 or more"),
        (["gpipe", "--batches", "0"], "batches: got 0, expected 1 or more"),
        (["gpipe", "--batches", "-1"], "batches: got -1, expected 1 or more"),
        (
            ["gpipe", "--strategy", "stash"],
            "strategy STASH does not go with the schedule gpipe: expected async_1f1b",
        ),
        (["gpipe", "--strategy", "flash"], "did you mean FLUSH?"),
    ],
)
def test_what_cannot_be_drawn(capsys, arguments, message):
    """One line on stderr, status 2."""
    out, err = said(capsys, *arguments, status=2)

    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert message in err


def test_a_staircase_that_fits():
    """Cut where a column ends, with dots; what is narrow enough is whole."""
    drawn = make_schedule("async_1f1b", 2, 4, 3)
    whole = schedule_report(drawn, FORECAST)
    narrow = schedule_report(drawn, FORECAST, width=40)

    rows = [line for line in narrow.splitlines() if line.startswith("stage 0 |")]
    assert rows == ["stage 0 | F0   F1        B0   F2 ..."]
    assert schedule_report(drawn, FORECAST, width=500) == whole


def test_a_plot_of_two_curves():
    """The corners are the extremes; the later curve is seen where two meet."""
    curves = {"one": [(0.0, 4.0), (5.0, 1.0)], "two": [(5.0, 1.0), (10.0, 3.0)]}

    assert plot(curves, width=11, height=4).splitlines() == [
        "  4.00 ┤·",
        "  3.00 ┤          *",
        "  2.00 ┤",
        "  1.00 ┤     *",
        "       └───────────",
        "        0      10 s",
        "        · one   * two",
    ]


def test_a_plot_of_one_point():
    """Neither axis has a length then."""
    assert "·" in plot({"one": [(0.0, 2.0)]}, width=5, height=3)


def test_smoothed():
    """The mean of what is near, of less at the ends."""
    assert smoothed([1.0, 2.0, 6.0, 3.0], window=1) == [1.5, 3.0, pytest.approx(11 / 3), 4.5]
    assert smoothed([], window=3) == []
