"""Threads started inside get a short slice of time; the caller keeps its own."""

import re
import sys
import threading
from pathlib import Path

import pytest

from headrace.pipeline.prompt import prompt_threads


def slice_ns() -> int:
    """The calling thread's slice of time, in the kernel's own words."""
    text = Path(f"/proc/self/task/{threading.get_native_id()}/sched").read_text()
    return int(re.search(r"se\.slice\s*:\s*(\d+)", text).group(1))  # type: ignore[union-attr]


def slice_of_a_new_thread() -> int:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(slice_ns()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_threads_inside_have_a_short_slice() -> None:
    try:
        before = slice_ns()
    except (OSError, AttributeError):
        pytest.skip("this kernel does not tell the slices of threads")
    with prompt_threads():
        if slice_ns() == before:
            pytest.skip("this kernel does not set the slices of threads (Linux 6.12 and newer do)")
        assert slice_of_a_new_thread() == 100_000
    assert slice_ns() == before
    assert slice_of_a_new_thread() == before


def test_elsewhere_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "abacus")
    with prompt_threads():
        pass
