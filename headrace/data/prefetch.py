"""Reads batches ahead in a thread of its own, a bounded number of them, in the order given."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.batch_reader import BatchReader, Started
from headrace.data.decoding import Arrived, Decoded, Decoding
from headrace.data.manner import Manner
from headrace.data.reader import EngineName
from headrace.data.records import Records
from headrace.data.workers import Workers

__all__ = ["Prefetch", "Reading", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """The records of a batch.

    Args:
        indices: int64[R].
        positions: int64[R], where in the epoch they come.
        epoch: counted from 0.
    """

    indices: NDArray[np.int64]
    positions: NDArray[np.int64]
    epoch: int


@dataclass(frozen=True)
class Reading:
    """How batches are read and in which form they come.

    Args:
        fields: names.
        engine: see Reader.
        direct: see Reader.
        manner: see BatchReader.
        batches_ahead: batches that are under way or wait to be taken, at most.
        decoding: what their bytes become.
        then: what is done to them after that.
        workers: who does both; None is the thread that reads.
    """

    fields: tuple[str, ...]
    engine: EngineName
    direct: bool | None
    manner: Manner | None
    batches_ahead: int
    decoding: Decoding
    then: Callable[[Decoded], Decoded]
    workers: Workers | None


@final
class Prefetch:
    """Batches that a background thread reads, to be taken in order; starts at once.

    It belongs to the process that made it: a forked child makes its own. The thread holds neither
    this object nor its maker, so whoever abandons it without ``close`` leaves nothing behind.

    Args:
        records: where to read.
        batches: drawn by the thread, ahead of time.
        reading: how.
    """

    def __init__(self, records: Records, batches: Iterator[Wanted], reading: Reading) -> None:
        self._process = os.getpid()
        self._work = _Work(records, batches, reading)
        self._thread = threading.Thread(
            target=self._work.run, name="headrace-prefetch", daemon=True
        )
        self._thread.start()

    @property
    def is_usable(self) -> bool:
        """Whether there is a thread, in this process, that goes on reading."""
        return os.getpid() == self._process and not self._work.stopped

    @property
    def bytes_read(self) -> int:
        """Bytes asked of the system so far, for batches not yet taken too."""
        reader = self._work.reader
        return 0 if reader is None else reader.reader.bytes_requested

    @property
    def reader(self) -> BatchReader | None:
        """What the thread reads by; None until it has begun."""
        return self._work.reader

    def take(self, number: int) -> Decoded | None:
        """The batch of this number, counted from 0: the next one.

        None if it has gone: an interrupt fell between its arrival and its use. Wherever else an
        interrupt falls, the same call may be made again.

        Raises:
            HeadraceError: the batch could not be read or decoded.
        """
        self._work.wanted.put(number)
        while True:
            ready = self._work.ready.get()
            if isinstance(ready, BaseException):
                raise ready
            arrived, decoded = ready
            if decoded is not None:
                return decoded.result() if arrived == number else None
            if arrived == number:
                return None
            # Else it answers an earlier call, whose batch has come after all.

    def close(self) -> None:
        """Ends the thread once the reads that are under way have ended."""
        if os.getpid() != self._process:
            return  # a forked child has neither the thread nor a say in its locks
        self._stop()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        while not self._work.ready.empty():
            self._work.ready.get()  # what was read for nobody

    def __del__(self) -> None:
        if hasattr(self, "_work") and os.getpid() == self._process:
            self._stop()

    def _stop(self) -> None:
        self._work.stopped = True
        self._work.wanted.put(0)


class _Work:
    """What the thread does, and what it shares with the one who takes."""

    def __init__(self, records: Records, batches: Iterator[Wanted], reading: Reading) -> None:
        self._records = records
        self._batches = batches
        self._reading = reading
        # The queues' calls are done or not done, whatever interrupts: locks of Python's are not.
        self.wanted: SimpleQueue[int] = SimpleQueue()
        # None instead of a batch: it was delivered, and is asked for again.
        self.ready: SimpleQueue[tuple[int, Future[Decoded] | None] | BaseException] = SimpleQueue()
        self.stopped = False
        self.reader: BatchReader | None = None
        self._num_finished = 0
        self._asked = -1
        self._failure: BaseException | None = None

    def run(self) -> None:
        """Until the taker has gone."""
        reading = self._reading
        try:
            with BatchReader(
                self._records,
                reading.fields,
                engine=reading.engine,
                direct=reading.direct,
                skips=reading.decoding.skips,
                manner=reading.manner,
            ) as reader:
                self.reader = reader
                self._read(reader)
        except BaseException as error:
            self._failure = error
            self.ready.put(error)
        while not self.stopped:
            self._hear()

    def _hear(self) -> int:
        """The number of the next batch that is asked for.

        An interrupt between the arrival of an answer and its use makes the taker ask again. It then
        finds that answer in the queue, or is told that it has gone: it never waits in vain.
        """
        number = self.wanted.get()
        if number == self._asked and not self.stopped:
            if number < self._num_finished:
                self.ready.put((number, None))
            elif self._failure is not None:
                self.ready.put(self._failure)
        self._asked = number
        return number

    def _read(self, reader: BatchReader) -> None:
        """Starts as many batches as there is room for, then finishes the oldest; and so on."""
        reading = self._reading
        under_way: deque[tuple[Started, Wanted]] = deque()
        num_started, allowed = 0, reading.batches_ahead
        more = True
        while True:
            while not self.wanted.empty() or (not under_way and more and num_started >= allowed):
                allowed = max(allowed, self._hear() + 1 + reading.batches_ahead)
                if self.stopped:
                    return
            while more and num_started < allowed:
                wanted = next(self._batches, None)
                if wanted is None:
                    more = False
                    break
                num_started += 1
                under_way.append((reader.start(wanted.indices), wanted))
            if not under_way:
                return
            started, wanted = under_way.popleft()
            task = reader.arrive(started), wanted.positions, wanted.epoch
            self.ready.put((self._num_finished, self._decoded(*task)))
            self._num_finished += 1

    def _decoded(
        self, arrived: Arrived, positions: NDArray[np.int64], epoch: int
    ) -> Future[Decoded]:
        """By the workers some time soon, or here and now."""
        if self._reading.workers is not None:
            return self._reading.workers.submit(arrived, positions, epoch)
        decoded: Future[Decoded] = Future()
        decoded.set_result(self._reading.then(self._reading.decoding(arrived, positions, epoch)))
        return decoded
