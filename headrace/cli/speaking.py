"""What a command says of its end: on stderr, and once where several processes would say it."""

import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.runs.launch import ERROR_FILE, is_launched_by_headrace

__all__ = ["say", "speaking"]


def say(text: str, notes: Sequence[str] = ()) -> None:
    """Says what went wrong; brings back the cursor that a killed process may have hidden."""
    if sys.stdout.isatty():
        print("\033[?25h", end="", flush=True)
    print("\n".join((text, *notes)), file=sys.stderr, flush=True)


@contextmanager
def speaking() -> Iterator[bool]:
    """Whether this process is the one to say what went wrong.

    Of those that torchrun has started on this machine that is the first to ask; the others wait
    until it has spoken, since torchrun ends all of them as soon as one is gone. Those that headrace
    has started leave it to their launcher.
    """
    if is_launched_by_headrace() or ERROR_FILE not in os.environ:
        yield not is_launched_by_headrace()
        return
    attempt = Path(os.environ[ERROR_FILE]).parents[1]  # of ATTEMPT/LOCAL_RANK/error.json
    with (attempt / "headrace-spoke").open("a+") as mark:
        fcntl.flock(mark, fcntl.LOCK_EX)
        may_speak = os.fstat(mark.fileno()).st_size == 0
        yield may_speak
        mark.write("1")
