"""Threads or processes that decode and transform batches, several at a time."""

import multiprocessing
import os
import pickle
import queue
import signal
import traceback
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.data.decoding import Arrived, Decoded, Decoding
from headrace.errors import DataError, RunError

__all__ = ["WorkerKind", "Workers"]

WorkerKind = Literal["thread", "process"]

Then = Callable[[Decoded], Decoded]


@final
class Workers:
    """Decodes batches in so many threads, or in as many processes, each fed by a thread.

    They start with the first batch and stay for the next epoch. A forked child makes its own.

    Args:
        decoding: what is done to each batch.
        num_workers: at least 1.
        then: what the threads do with a batch that is decoded.
        kind: "thread", for what lets go of the interpreter's lock, as Pillow and numpy do, or
            "process" for plain Python. Processes are started afresh ("forkserver" where there is
            such, else "spawn"), so the transform must be a module's function or pickle otherwise.

    Raises:
        DataError: no such kind, or what would go to other processes cannot be pickled.
    """

    def __init__(self, decoding: Decoding, then: Then, num_workers: int, kind: WorkerKind) -> None:
        if kind not in get_args(WorkerKind):
            raise DataError("unknown kind of workers", got=repr(kind), expected="thread or process")
        self._decoding: Decoding | bytes = decoding
        if kind == "process":
            self._decoding = _pickled(decoding)
        self._then = then
        self._num_workers = num_workers
        self._pool: _Pool | None = None

    def submit(self, arrived: Arrived, positions: NDArray[np.int64], epoch: int) -> Future[Decoded]:
        """Decodes a batch some time soon; arguments and errors as of Decoding.

        Raises:
            RunError: through the future: the process died.
        """
        if self._pool is None or self._pool.process != os.getpid():
            self._pool = _Pool(self._decoding, self._then, self._num_workers)
            weakref.finalize(self, self._pool.close)
        return self._pool.submit(arrived, positions, epoch)

    def close(self) -> None:
        """Ends threads and processes; what they were doing is lost."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class _Pool:
    """The threads of one process, and the processes that they feed."""

    def __init__(self, decoding: Decoding | bytes, then: Then, num_workers: int) -> None:
        self.process = os.getpid()
        self._then = then
        self._decoding = decoding
        self._is_closed = False
        self._threads = ThreadPoolExecutor(num_workers, "headrace-worker")
        # Each process does one batch at a time; the thread that feeds it takes it out.
        self._idle: queue.SimpleQueue[_Process] = queue.SimpleQueue()
        self._processes: list[_Process] = []
        if isinstance(decoding, bytes):
            self._processes = [_Process(decoding) for _ in range(num_workers)]
            for process in self._processes:
                self._idle.put(process)

    def submit(self, *task: Any) -> Future[Decoded]:
        return self._threads.submit(self._done, *task)

    def close(self) -> None:
        if self.process != os.getpid():
            return  # a forked child has neither the threads nor the processes
        self._is_closed = True
        for process in self._processes:
            process.close()
        self._threads.shutdown(cancel_futures=True)

    def _done(self, *task: Any) -> Decoded:
        if isinstance(self._decoding, Decoding):
            return self._then(self._decoding(*task))
        process = self._idle.get()
        try:
            return self._then(process.decode(task))
        finally:
            if not process.is_alive and not self._is_closed:  # the next batch has a fresh one
                process = _Process(self._decoding)
                self._processes.append(process)
            self._idle.put(process)


class _Process:
    """A process that decodes what comes through a pipe, until the pipe ends."""

    def __init__(self, decoding: bytes) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, decoding), name="headrace-worker", daemon=True
        )
        self._process.start()
        theirs.close()

    @property
    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def decode(self, task: tuple[Any, ...]) -> Decoded:
        try:
            self._connection.send(task)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise RunError(
                "a worker process died",
                got=f"exit code {self._process.exitcode}",
                remedy="look above for its own message; if it was killed, look at the memory; "
                "a script that makes a Loader must do so below `if __name__ == '__main__':`",
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        assert isinstance(answer, Decoded)
        return answer

    def close(self) -> None:
        self._process.kill()  # it has nothing of its own to lose
        self._process.join()
        # The connection is closed when no thread waits at it any more.


def _context() -> SpawnContext | ForkServerContext:
    """How processes are started: never by fork, which copies locks that others hold."""
    if "forkserver" in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


def _serve(connection: Connection, pickled: bytes) -> None:
    """The whole life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the maker hears of it, and ends the pipe
    decoding = pickle.loads(pickled)
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            answer: Decoded | Exception = decoding(*task)
        except Exception as error:
            error.add_note(f"In a worker process:\n{''.join(traceback.format_exception(error))}")
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return
        except Exception as error:
            connection.send(
                RunError(
                    "what a worker process made cannot be sent back",
                    got=repr(error),
                    remedy="return arrays, numbers and text from the transform",
                )
            )


def _pickled(decoding: Decoding) -> bytes:
    try:
        return pickle.dumps(decoding)
    except Exception as error:
        raise DataError(
            "the transform cannot go to other processes",
            got=repr(error),
            expected="functions and classes of a module, no lambda and no function in a function",
            remedy='define it at the top of a module, or take worker_kind="thread"',
        ) from error
