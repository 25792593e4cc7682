"""Reads by threads that call preadv, the interpreter's lock released: where io_uring is refused."""

import errno
import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.request import Requests

__all__ = ["Threads"]

_NEVER = 1 << 62


@final
class Threads:
    """The contract of headrace.data.engine.Engine by a pool of threads.

    Args:
        queue_depth: requests that may be under way, waiting ones included.
        num_threads: 32 come near what the interpreter's lock allows.
    """

    name = "threads"

    def __init__(self, queue_depth: int, num_threads: int = 32) -> None:
        self._depth = queue_depth
        self._process = os.getpid()
        self._work: SimpleQueue[tuple[int, Any, int, int, int] | None] = SimpleQueue()
        self._done: deque[tuple[int, int]] = deque()
        self._wanted = _NEVER  # the finished requests that the reading thread sleeps for
        self._wake: SimpleQueue[None] = SimpleQueue()
        self._num_in_flight = 0
        self._threads = [
            threading.Thread(target=self._serve, name=f"headrace-read-{number}", daemon=True)
            for number in range(min(num_threads, queue_depth))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_in_flight(self) -> int:
        """Requests pushed and not yet collected."""
        return self._num_in_flight

    @property
    def room(self) -> int:
        """Requests that may be pushed now."""
        return self._depth - self._num_in_flight

    def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
        """Queues reads, at most ``room``; see headrace.data.engine.Engine."""
        view, put = memoryview(buffer.data), self._work.put
        starts = requests["address"] - buffer.ctypes.data
        fields = zip(
            requests["descriptor"].tolist(),
            requests["offset"].tolist(),
            starts.tolist(),
            (starts + requests["length"]).tolist(),
            requests["ticket"].tolist(),
            requests["flags"].tolist(),
            strict=True,
        )
        for descriptor, offset, start, stop, ticket, flag in fields:
            put((descriptor, view[start:stop], offset, flag, ticket))
        self._num_in_flight += len(requests)

    def collect(self, num_wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Waits for num_wanted requests to end and returns all that have; see the contract."""
        done = self._done
        while len(done) < num_wanted:
            self._wanted = num_wanted
            if len(done) >= num_wanted:
                break
            self._wake.get()
        self._wanted = _NEVER
        ended = [done.popleft() for _ in range(len(done))]
        self._num_in_flight -= len(ended)
        pairs = np.array(ended, np.int64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]

    def close(self) -> bool:
        """Ends the threads once their reads have ended; False in a child, which has no threads."""
        if os.getpid() != self._process:
            return False
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        return True

    def _serve(self) -> None:
        get, finish, done, preadv = self._work.get, self._done.append, self._done, os.preadv
        while (request := get()) is not None:
            descriptor, view, offset, flags, ticket = request
            del request
            try:
                result = preadv(descriptor, (view,), offset, flags)
            except OSError as error:
                result = -(error.errno or errno.EIO)
            del view  # the buffer may be gone, and used again, as soon as its reads have ended
            finish((ticket, result))
            if len(done) >= self._wanted:
                # Two threads may both wake it; the reading thread counts again.
                self._wanted = _NEVER
                self._wake.put(None)
