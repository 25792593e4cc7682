"""How long a device was busy: wall time on a CPU, events on CUDA (which no GPU has run yet)."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import final

import torch

__all__ = ["Stopwatch"]


@final
class Stopwatch:
    """Adds up the time that a device spends inside ``running``."""

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._busy_s = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs inside keeps the device busy."""
        if self._is_cuda:
            start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            start.record()
            yield
            end.record()
            self._events.append((start, end))
            return
        started = perf_counter()
        yield
        self._busy_s += perf_counter() - started

    def busy_s(self) -> float:
        """Busy seconds so far; on CUDA those of finished work."""
        unfinished = []
        for start, end in self._events:
            if end.query():  # type: ignore[no-untyped-call]
                self._busy_s += start.elapsed_time(end) / 1000
            else:
                unfinished.append((start, end))
        self._events = unfinished
        return self._busy_s
