"""Reads by threads that wait in the system's calls: where io_uring is refused."""

import os
import threading
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.request import Requests

__all__ = ["Threads"]


@final
class Threads:
    """The contract of headrace.data.backend.Engine by a pool of threads.

    Args:
        queue_depth: requests that may be under way, waiting ones included.
        num_threads: reads that the system sees at a time.
    """

    name = "threads"

    def __init__(self, queue_depth: int, num_threads: int = 64) -> None:
        from headrace.data import preads  # which loads numba

        self._preads = preads
        self._pool = preads.make_pool(queue_depth)
        self._depth = queue_depth
        self._process = os.getpid()
        self._work_out, self._work_in = os.pipe()
        self._wake_out, self._wake_in = os.pipe()
        # Compiled, or loaded, once in this thread rather than in all of them.
        self._stop(1)
        self._serve()
        self._threads = [
            threading.Thread(target=self._serve, name=f"headrace-read-{number}", daemon=True)
            for number in range(min(num_threads, queue_depth))
        ]
        for thread in self._threads:
            thread.start()

    def _stop(self, num_threads: int) -> None:
        os.write(self._work_in, np.full(num_threads, self._preads.STOP).tobytes())

    def _serve(self) -> None:
        self._preads.serve(self._pool, self._work_out, self._wake_in)

    @property
    def num_in_flight(self) -> int:
        """Requests pushed and not yet collected."""
        return self._depth - self.room

    @property
    def room(self) -> int:
        """Requests that may be pushed now."""
        return self._preads.num_free(self._pool)

    def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
        """Queues reads, at most ``room``; see headrace.data.backend.Engine."""
        self._preads.push(self._pool, requests, self._work_in)

    def collect(self, num_wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Waits for num_wanted requests to end and returns all that have; see the contract."""
        # A byte may be left from an earlier wait that needed none: then this asks once more.
        while not self._preads.ask(self._pool, num_wanted):
            os.read(self._wake_out, 1)
        return self._preads.collect(self._pool)

    def close(self) -> bool:
        """Ends the threads once their reads have ended; False in a child, which has no threads."""
        is_owner = os.getpid() == self._process
        if is_owner:
            self._stop(len(self._threads))
            for thread in self._threads:
                thread.join()
        for descriptor in (self._work_out, self._work_in, self._wake_out, self._wake_in):
            os.close(descriptor)
        return is_owner
