"""A process that raises, is killed or interrupted ends all the others, and one message says why."""

import os
import re
import signal
from contextlib import contextmanager

import pytest

from tests.commands import HEADRACE, Command, headrace, torchrun, until
from tests.recipes import write_recipe, write_records

LAYERS = "nn.Linear(6, 16), nn.Tanh(), Tripped(), nn.Linear(16, 3)"
MORE = """

import time

import torch


class Tripped(torch.nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        time.sleep(0.02)
        if self.calls == {call}:
            raise ValueError("it trips")
        return x
"""
GONE_S = 10


@pytest.fixture
def folder(tmp_path):
    """Records, and a recipe that trains for long."""
    write_records(tmp_path)
    write(tmp_path, call=None)
    return tmp_path


def write(folder, call):
    """The recipe with a layer that raises in one of its passes, in the last of two stages."""
    options = "epochs=1000, cuts=(2,)"
    write_recipe(folder, layers=LAYERS, options=options, more=MORE.format(call=call))


@contextmanager
def in_mid_epoch(folder, command=HEADRACE):
    """A command that has trained a few batches."""
    metrics = folder / "run" / "metrics.jsonl"

    def trains():
        return metrics.exists() and metrics.read_text().count('"batch"') > 3

    with Command("train", "recipe.py", "--out", "run", cwd=folder, command=command) as running:
        try:
            until(lambda: running.is_over or trains())
        finally:
            assert trains(), f"it does not train:\n{running.out}\n{running.err}"
        yield running


def test_a_process_that_raises(folder):
    """Stage, layer, exception, action and batch; the line; where the whole traceback is."""
    write(folder, call=10)

    ended = headrace("train", "recipe.py", "--out", "run", cwd=folder)

    assert ended.status == 1
    first, place, line, error, whole = ended.err.splitlines()
    assert first == (
        "error: layer 2 (Tripped) raised ValueError: it trips; in stage 1, action 1F9, batch 2"
    )
    assert re.fullmatch(rf'  File "{folder}/recipe.py", line \d+, in forward', place)
    assert line.strip() == 'raise ValueError("it trips")'
    assert error == "ValueError: it trips"
    assert whole == "The whole traceback is in run/error-stage-1.txt"
    text = (folder / "run" / "error-stage-1.txt").read_text()
    assert "Traceback (most recent call last)" in text and "ValueError: it trips" in text
    assert not (folder / "run" / "results.json").exists()


def test_all_stages_in_one_process_that_raises(folder):
    """--simulate says the same."""
    write(folder, call=10)

    ended = headrace("train", "recipe.py", "--out", "run", "--simulate", cwd=folder)

    assert ended.status == 1
    assert ended.err.startswith(
        "error: layer 2 (Tripped) raised ValueError: it trips; in stage 1, action 1F9, batch 2\n"
    )
    assert ended.err.endswith("The whole traceback is in run/error-stage-0.txt\n")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_process_that_is_killed(folder, victim):
    """SIGKILL in mid-epoch: the stage, its process, the signal."""
    with in_mid_epoch(folder) as running:
        process = running.stages()[victim]
        os.kill(process, signal.SIGKILL)
        ended = running.wait()
        seconds = ended.seconds + running.until_all_are_gone()

    assert ended.status == 1
    assert seconds < GONE_S
    assert ended.err == (
        f"error: stage {victim} (process {process}) was killed by signal 9 (SIGKILL); if nobody "
        "did it, the system may have run out of memory\n"
    )


def test_interrupted(folder):
    """Ctrl-C: all processes end, the status says so, a word is enough."""
    with in_mid_epoch(folder) as running:
        running.signal(signal.SIGINT)
        ended = running.wait()
        seconds = ended.seconds + running.until_all_are_gone()

    assert (ended.status, ended.err) == (130, "interrupted\n")
    assert seconds < GONE_S


def test_the_launcher_is_killed(folder):
    """Nobody is left to end the stages: they end by themselves."""
    with in_mid_epoch(folder) as running:
        assert len(running.processes()) == 3
        running.signal(signal.SIGKILL)  # the stages have sessions of their own
        assert running.wait().status == -signal.SIGKILL
        running.until_all_are_gone(GONE_S)


@pytest.mark.slow
def test_terminated(folder):
    """SIGTERM, by which systems end a job."""
    with in_mid_epoch(folder) as running:
        running.signal(signal.SIGTERM)
        ended = running.wait()
        running.until_all_are_gone(GONE_S)

    assert (ended.status, ended.err) == (1, "error: stopped by signal SIGTERM\n")


@pytest.mark.slow
def test_a_process_under_torchrun_that_raises(folder):
    """torch's launcher has its own words; ours come once, and as the root cause in its summary."""
    write(folder, call=10)

    ended = headrace("train", "recipe.py", "--out", "run", cwd=folder, command=torchrun(2))

    assert ended.status != 0
    message = "layer 2 (Tripped) raised ValueError: it trips; in stage 1, action 1F9, batch 2"
    assert ended.err.count(f"error: {message}\n") == 1
    assert message in ended.err.partition("Root Cause")[2]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_under_torchrun_that_is_killed(folder, victim):
    """torch's launcher says which; all are gone."""
    with in_mid_epoch(folder, torchrun(2)) as running:
        os.kill(running.stages()[victim], signal.SIGKILL)
        ended = running.wait()
        seconds = ended.seconds + running.until_all_are_gone()

    assert ended.status != 0
    assert seconds < GONE_S
    assert "SIGKILL" in ended.err
