"""A contestant in a process of its own, and the memory that it may use."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

from cold import MemoryGroup, remember
from contestants import Contestant
from records import Case, files_of

sys.path.append(str(Path(__file__).parents[1]))
from reporting import busy_s

__all__ = ["Server"]

CHECKED_S = 0.3
START_S, PATIENCE_S = 120.0, 45.0  # how long a contestant may take to be ready, to answer


@final
class Server:
    """A contestant in a process of its own, which stays for all rounds of a case."""

    def __init__(self, contestant: Contestant, case: Case, folder: Path) -> None:
        self.contestant = contestant
        self._case = case
        self._files = files_of(folder, contestant.format)
        self._process = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).with_name("serve.py")),
                contestant.name,
                json.dumps(asdict(case)),
                str(folder / contestant.format),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,  # so that it can be ended with all that it has started
        )
        self._failure = ""
        self._group = MemoryGroup(f"headrace-loader-{self._process.pid}")

    def sits_out(self, number: int) -> bool:
        """One that failed takes no further part; a side entry is measured once."""
        return bool(self._failure) or (number > 0 and self.contestant.is_side)

    def checked(self, refusals: dict[str, str]) -> dict[str, Any]:
        """Reads a part of an epoch and compares every record with what was written."""
        answer = self._ask(None)
        if self._failure:
            return answer
        self._group.add(self._process.pid)
        if self._group.refusal:
            refusals[self.contestant.name] = self._group.refusal
        return answer | self._ask(("check", 0, CHECKED_S, False))

    def run(self, number: int, seconds: float, is_cold: bool) -> dict[str, Any]:
        """One run, and how much the rest of the machine worked meanwhile."""
        if is_cold:
            self._group.limit(self._case.limit_bytes)
        else:
            self._group.limit(None)
            remember(self._files)
        all_s, own_s = busy_s(), sum(os.times()[:4])
        answer = self._ask(("run", 1 + number, seconds, is_cold))
        if self._failure:
            return {"contestant": self.contestant.name} | answer
        others_s = busy_s() - all_s - (sum(os.times()[:4]) - own_s) - answer.pop("all_cpu_s")
        return {"contestant": self.contestant.name, "others_cpu_s": max(0.0, others_s)} | answer

    def close(self) -> None:
        """Ends the process, and whatever it has started."""
        if self._process.stdin is None or self._process.stdin.closed:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0 if self._failure else 2)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._group.close()

    def _ask(self, request: tuple[Any, ...] | None) -> dict[str, Any]:
        """Sends a request, and takes the answer, also to none: that it is ready."""
        assert self._process.stdin is not None and self._process.stdout is not None
        patience_s = START_S if request is None else PATIENCE_S
        answer = {"failure": "its process died, as by the memory limit"}
        with contextlib.suppress(OSError):
            if request is not None:
                self._process.stdin.write(json.dumps(request) + "\n")
            if not select.select([self._process.stdout], [], [], patience_s)[0]:
                answer = {"failure": f"no answer within {patience_s:.0f} s"}
            elif line := self._process.stdout.readline():
                answer = json.loads(line)
        if "failure" in answer:
            self._failure = answer["failure"]
            self.close()  # at once: it may go on reading
        return answer
