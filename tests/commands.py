"""Runs the command line in real processes, and finds those that it leaves behind."""

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

MARK = "HEADRACE_TEST"
HEADRACE = (sys.executable, "-m", "headrace")


def torchrun(num_processes):
    """The command line under torch's own launcher."""
    run = (sys.executable, "-m", "torch.distributed.run")
    return (*run, "--standalone", "--nproc-per-node", str(num_processes), "-m", "headrace")


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes: status, out and err (text), seconds (from when it was waited for to its end).
    """

    status: int
    out: str
    err: str
    seconds: float

    @property
    def results(self):
        """The JSON object in the last line of the output."""
        return json.loads(self.out.splitlines()[-1])


class Command:
    """A command under way, in a session of its own; none of its processes outlives the block."""

    def __init__(self, *arguments, cwd, command=HEADRACE, environment=()):
        self._mark = uuid.uuid4().hex
        self._out, self._err = cwd / f"out-{self._mark}", cwd / f"err-{self._mark}"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=cwd,
                env={**os.environ, **dict(environment), MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self._process.wait()

    @property
    def process(self):
        """The number of the command's own process."""
        return self._process.pid

    @property
    def out(self):
        """What it has printed so far."""
        return self._out.read_text()

    @property
    def err(self):
        """What it has said on stderr so far."""
        return self._err.read_text()

    @property
    def is_over(self):
        """Whether the command itself has ended."""
        return self._process.poll() is not None

    def wait(self, timeout_s=120):
        """Waits for the end of the command itself."""
        started = time.monotonic()
        status = self._process.wait(timeout_s)
        return Ended(status, self.out, self.err, seconds=time.monotonic() - started)

    def signal(self, number):
        """As a terminal does it: to the process group of the command."""
        os.killpg(self._process.pid, number)

    def processes(self):
        """process -> its environment, of all that the command has started and are still there."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                pairs = (entry / "environ").read_text(errors="replace").split("\0")
                is_dead = (entry / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            except OSError:
                continue
            environment = dict(pair.partition("=")[::2] for pair in pairs)
            if environment.get(MARK) == self._mark and not is_dead:
                found[int(entry.name)] = environment
        return found

    def stages(self):
        """stage -> the process that drives it."""
        return {
            int(environment["RANK"]): process
            for process, environment in self.processes().items()
            if "RANK" in environment
        }

    def until_all_are_gone(self, timeout_s=10):
        """Seconds until no process of the command is left; raises AssertionError if some are."""
        started = time.monotonic()
        while left := self.processes():
            assert time.monotonic() - started < timeout_s, f"still there: {left.keys()}"
            time.sleep(0.1)
        return time.monotonic() - started


def headrace(*arguments, cwd, command=HEADRACE, environment=(), timeout_s=120):
    """Runs the command line to its end; asserts that no process of it is left."""
    with Command(*arguments, cwd=cwd, command=command, environment=environment) as running:
        ended = running.wait(timeout_s)
        running.until_all_are_gone()
    return ended


def until(condition, timeout_s=60):
    """Waits for a condition to hold."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "it does not come"
        time.sleep(0.05)
