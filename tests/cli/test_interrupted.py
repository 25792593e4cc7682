"""Ctrl-C at any instant: every process ends, the status says so, a word is enough."""

import random
import signal
import sys
import time
from pathlib import Path

import pytest

from tests.commands import HEADRACE, Command, torchrun, until
from tests.recipes import write_recipe, write_records

MARKS = """

import os


def mark(name, function):
    def marked(*arguments):
        (HERE / f"{name}-{os.environ.get('RANK', 'launcher')}").touch()
        return function(*arguments)

    return marked


data = mark("data", data)
model = mark("model", model)
loss = mark("loss", loss)
num_correct = mark("metric", num_correct)
"""
LAYERS = "nn.Linear(6, 2048), nn.Tanh(), nn.Linear(2048, 2048), nn.Linear(2048, 3)"
GONE_S = 10


@pytest.fixture
def folder(tmp_path):
    """Records, and a recipe that leaves a file as each of its functions is called."""
    write_records(tmp_path)
    options = "epochs=2, cuts=(2,), evaluation=data, metrics={'accuracy': num_correct}"
    write_recipe(tmp_path, layers=LAYERS, options=options, more=MARKS)
    return tmp_path


def interrupted(folder, instant, *options, command=HEADRACE, wait_s=0.0, times=1):
    """How `headrace train` ended that was interrupted so long after an instant."""
    arguments = ("train", "recipe.py", "--out", "run", *options)
    with Command(*arguments, cwd=folder, command=command) as running:
        until(lambda: running.is_over or instant(running))
        assert not running.is_over, running.err
        time.sleep(wait_s)
        for _ in range(times):
            running.signal(signal.SIGINT)
        ended = running.wait()
        seconds = ended.seconds + running.until_all_are_gone()
    assert seconds < GONE_S
    return ended


def marked(folder, name):
    """The instant when the recipe leaves this file."""
    return lambda _: (folder / name).exists()


def imports_torch(running):
    """The instant when the command has begun to load torch, long before it trains."""
    return "libtorch" in Path(f"/proc/{running.process}/maps").read_text()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("model-launcher", marks=pytest.mark.slow),  # before any process is started
        "model-1",  # the processes have yet to meet
        pytest.param("loss-1", marks=pytest.mark.slow),  # the first batch
        "metric-1",  # evaluation
        pytest.param("run/*.safetensors*", marks=pytest.mark.slow),  # weights
    ],
)
def test_interrupted_with_processes(folder, name):
    """From the launcher's first steps to the last weights."""
    ended = interrupted(folder, lambda _: any(folder.glob(name)))
    assert (ended.status, ended.err) == (130, "interrupted\n")


def test_interrupted_while_it_starts(folder):
    """Torch takes seconds to load, and turns an interrupt into other errors; twice is no more."""
    ended = interrupted(folder, imports_torch, times=2)
    assert (ended.status, ended.out, ended.err) == (130, "", "interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--simulate",)], ids=["processes", "one-process"])
def test_interrupted_at_random_instants(folder, options):
    """Whatever it is doing; so long as it runs."""
    write_recipe(folder, options="epochs=1000", more=MARKS)
    for _ in range(20):
        wait_s = random.uniform(0, 8)
        ended = interrupted(folder, imports_torch, *options, wait_s=wait_s)
        assert (ended.status, ended.err) == (130, "interrupted\n"), f"after {wait_s} s"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["model-1", "loss-1"])
def test_interrupted_under_torchrun(folder, name):
    """torch's launcher has many words of its own; the processes end without one."""
    ended = interrupted(folder, marked(folder, name), command=torchrun(2))
    assert ended.status != 0
    for text in ("interrupted", "terminate called", "error:", "KeyboardInterrupt"):
        assert text not in ended.err


@pytest.mark.slow
def test_a_command_started_to_ignore_interrupts(folder):
    """As a shell starts what is to go on after the terminal: it goes on."""
    ignoring = "import signal, os, sys; signal.signal(2, 1); os.execv(sys.argv[1], sys.argv[1:])"
    with Command(
        "train",
        "recipe.py",
        "--out",
        "run",
        cwd=folder,
        command=(sys.executable, "-c", ignoring, *HEADRACE),
    ) as running:
        until(lambda: running.is_over or marked(folder, "loss-1")(running))
        running.signal(signal.SIGINT)
        assert running.wait().status == 0
