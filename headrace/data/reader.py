"""Executes read plans: many reads in flight, the next batch's before the last one's have ended."""

import errno
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.backend import Engine, EngineName, make_engine
from headrace.data.buffers import BufferPool, Given, Memory
from headrace.data.direct import choose_direct
from headrace.data.files import BUFFERED, DIRECT, RWF_DONTCACHE, OpenFiles
from headrace.data.plan import Spans, pieces_of, plan_in_order, plan_reads
from headrace.data.read import TICKET_BITS, Read
from headrace.errors import DataError, RunError

__all__ = ["EngineName", "Pieces", "Read", "Reader"]

_AGAIN = (errno.EAGAIN, errno.EINTR)
_FLAGS_OF_MODE = np.array([0, RWF_DONTCACHE, 0])  # by BUFFERED, DONTCACHE, DIRECT


@dataclass(frozen=True)
class Pieces:
    """The bytes of R records: piece p is buffer[positions[p] : positions[p] + lengths[p]].

    Args:
        buffer: uint8[any]. Its memory is used again once no array looks into it any more.
        positions: int64[P].
        lengths: int64[P].
        starts: int64[R + 1]; record r is pieces starts[r]:starts[r + 1].
    """

    buffer: NDArray[np.uint8]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    starts: NDArray[np.int64]

    def taken(self, rows: NDArray[np.int64]) -> "Pieces":
        """Those of some records."""
        which, starts = pieces_of(self.starts, rows)
        return Pieces(self.buffer, self.positions[which], self.lengths[which], starts)

    def spread(self, rows: NDArray[np.int64], num_records: int) -> "Pieces":
        """As these of so many records; the others have no pieces."""
        counts = np.zeros(num_records, np.int64)
        counts[rows] = np.diff(self.starts)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        return Pieces(self.buffer, self.positions, self.lengths, starts)

    def records(self) -> Iterator[NDArray[np.uint8]]:
        """All bytes of each record, one after another."""
        if len(self.positions) != len(self.starts) - 1:
            yield from map(self.record, range(len(self.starts) - 1))
            return
        for start, stop in zip(
            self.positions.tolist(), (self.positions + self.lengths).tolist(), strict=True
        ):
            yield self.buffer[start:stop]

    def record(self, number: int) -> NDArray[np.uint8]:
        """All bytes of one record: a view if it is one piece, else a copy."""
        pieces = range(int(self.starts[number]), int(self.starts[number + 1]))
        parts = [
            self.buffer[self.positions[p] : self.positions[p] + self.lengths[p]] for p in pieces
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.empty(0, np.uint8)


@final
class Reader:
    """Reads the bytes of records, a batch at a time, with several batches under way.

    ``start`` queues a batch and returns without waiting, ``finish`` waits for it. To keep the disk
    busy, start the next batches before finishing the first. A reader belongs to the thread and the
    process that made it; a child made by fork needs its own.

    Args:
        paths: the files that spans refer to by number; they are opened when first needed.
        engine: "uring" or "threads"; or "auto": what the page cache has is copied at once, and the
            rest read by io_uring, unless that is refused.
        direct: past the page cache (True), through it (False), or by size (None): direct when the
            files together exceed half of the available memory. Where a file system refuses direct
            reads, RWF_DONTCACHE and then buffered reads take their place, and ``refusals`` says so.
        queue_depth: reads in flight at a time.
        alignment: of direct reads, in bytes; None asks the file systems.
        max_open_files: by default half of what the process may open, 1024 at most.

    Attributes:
        engine: "uring" or "threads".
        queue_depth: reads in flight at a time.
        alignment: of the reads, in bytes.
        bytes_requested: bytes of all reads started so far.
        num_reads: system-level reads started so far.

    Raises:
        DataError: no such engine, a queue depth below 1, engine="uring" where it is refused, or a
            missing file (when direct is None or True; else when it is first read, as ReadError).
    """

    def __init__(
        self,
        paths: Sequence[Path | str],
        *,
        engine: EngineName = "auto",
        direct: bool | None = None,
        queue_depth: int = 128,
        alignment: int | None = None,
        max_open_files: int | None = None,
    ) -> None:
        if queue_depth < 1:
            raise DataError("queue_depth is too small", got=queue_depth, expected="at least 1")
        if max_open_files is not None and max_open_files < 1:
            raise DataError("max_open_files is too small", got=max_open_files, expected="1 or more")
        files = [path if isinstance(path, Path) else Path(path) for path in paths]
        if direct is None or alignment is None:
            direct, alignment = choose_direct(files, direct)
        self.queue_depth = queue_depth
        self.alignment = alignment
        self._files = OpenFiles(files, direct=direct, max_open=max_open_files)
        self._pool = BufferPool()
        self._engine: Engine = make_engine(engine, queue_depth)
        self._batch = max(1, queue_depth // 4)  # reaped at a time; more lets the queue run low
        # The system's number of the thread: no child has it, and no later thread gets it soon.
        self._owner = (os.getpid(), threading.get_native_id())
        self._reads: dict[int, Read] = {}
        self._unsent: deque[Read] = deque()
        self._num_started = 0
        self._closed = False
        # Direct reads want nothing of the page cache.
        self._tries_cached = engine == "auto" and sys.platform == "linux" and not direct
        self.bytes_requested = 0
        self.num_reads = 0

    @property
    def engine(self) -> str:
        """The engine in use: "uring" or "threads"."""
        return self._engine.name

    @property
    def direct(self) -> bool:
        """Whether reads go past the page cache; False once a file system has refused."""
        return bool((self._files.modes == DIRECT).all()) and len(self._files.paths) > 0

    @property
    def refusals(self) -> tuple[str, ...]:
        """Why files are not read directly although it was tried, the first few."""
        return tuple(self._files.refusals)

    def start(self, spans: Spans, indices: NDArray[np.int64] | None = None) -> Read:
        """Queues the reads of a batch and returns without waiting.

        Args:
            spans: the pieces of R records.
            indices: int64[R], how error messages shall call the records; by default 0 to R - 1.

        Raises:
            DataError: the spans make no sense or name a file that the reader does not have.
            RunError: the reader is closed, or belongs to another thread or process.
        """
        self._check_owner()
        self._check_files(spans)
        memory: Memory | None = None
        if self.alignment == 1 and len(spans.offsets) == spans.num_records:
            plan = plan_in_order(spans)
            if plan.buffer_bytes:
                memory = Given(plan.buffer_bytes)
        else:
            plan = plan_reads(spans, alignment=self.alignment)
            if plan.buffer_bytes:
                memory = self._pool.lease(plan.buffer_bytes)
        read = Read(self._num_started, plan, memory, indices)
        self._num_started += 1
        self.bytes_requested += plan.buffer_bytes
        self.num_reads += len(plan.offsets)
        if read.num_left and self._tries_cached:
            self._copy_cached(read)
        if read.num_left:
            assert memory is not None
            memory.start_writing()
            self._reads[read.number] = read
            self._unsent.append(read)
            self._fill()
            self._settle(*self._engine.collect(0))
        return read

    def finish(self, read: Read) -> Pieces:
        """Waits for a batch.

        Raises:
            ReadError: bytes could not be read, or the file ends before the record does; names the
                file, the record, the offset, what was expected and what came.
            RunError: as start, or the batch is not this reader's.
        """
        self._check_owner()
        while read.num_left:
            if self._reads.get(read.number) is not read:
                raise RunError("this read was started by another reader, or the reader was closed")
            self._fill()
            num_in_flight = self._engine.num_in_flight
            if read.num_left and not num_in_flight:
                # Such as by Ctrl-C between their end and our booking it.
                raise RunError("reads of this batch were lost", remedy="make a new reader")
            # A part of the queue at a time while there is more to do; the stragglers of a batch
            # that stands before others come along with theirs.
            wanted = min(self._batch, num_in_flight, max(read.num_left, self._batch // 2))
            self._settle(*self._engine.collect(wanted))
        if read.memory is not None:
            read.memory.end_writing()
        if read.failures:
            raise read.error(self._files.paths)
        spans = read.plan.spans
        return Pieces(read.buffer, read.plan.positions, spans.lengths, spans.starts)

    def close(self) -> None:
        """Waits for the reads in flight, drops those not yet sent, closes the files."""
        if self._closed:
            return
        self._closed = True
        self._unsent.clear()
        if not self._engine.close():
            for read in self._reads.values():
                if read.memory is not None:
                    read.memory.abandon()
        self._reads.clear()
        self._files.close()
        self._pool.close()

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # When the interpreter ends, threads stand still and cannot be waited for.
        if not getattr(self, "_closed", True) and not sys.is_finalizing():
            self.close()

    def _check_owner(self) -> None:
        if self._closed:
            raise RunError("the reader is closed")
        if self._owner[1] != threading.get_native_id():
            raise RunError(
                "a reader was used outside the thread and process that made it",
                got=f"process {os.getpid()}, thread {threading.get_native_id()}",
                expected=f"process {self._owner[0]}, thread {self._owner[1]}",
                remedy="make a new reader there",
            )

    def _check_files(self, spans: Spans) -> None:
        num_files = len(self._files.paths)
        if len(spans.files) and not (
            0 <= int(spans.files.min()) and int(spans.files.max()) < num_files
        ):
            raise DataError(
                "spans name a file that the reader does not have",
                got=f"file numbers {spans.files.min()} to {spans.files.max()}",
                expected=f"0 to {num_files - 1}",
            )

    def _copy_cached(self, read: Read) -> None:
        """Copies what the page cache has; the rest, and what cannot be opened, is left unsent."""
        from headrace.data.cached import copy_cached  # which loads numba

        files = read.plan.files
        several = len(self._files.paths) > 1
        taken = self._files.acquire(files)
        files = files[:taken]
        descriptors = self._files.descriptors[files if several else 0]
        if not taken or (descriptors < 0).any():
            if several:
                self._files.release(files)
            return
        read.descriptors[:taken] = descriptors
        results = copy_cached(read.requests[:taken])
        if several:
            self._files.release(files)
        self._tries_cached = not (results == -errno.EOPNOTSUPP).any()
        enough = results >= read.needed[:taken]
        read.next_request = taken
        read.num_left -= int(np.count_nonzero(enough))
        if enough.all():
            return
        read.again = np.flatnonzero(~enough).tolist()
        for request in read.again:
            if results[request] > 0:
                read.advance(request, int(results[request]))

    def _fill(self) -> None:
        """Pushes waiting requests, oldest batch first, as many as engine and files allow."""
        while self._unsent and (room := self._engine.room):
            read = self._unsent[0]
            if read.again:
                wanted = min(room, len(read.again))
                taken = self._push(read, np.array(read.again[:wanted]))
                del read.again[:taken]
            else:
                first = read.next_request
                wanted = min(room, len(read.plan.offsets) - first)
                taken = self._push(read, slice(first, first + wanted))
                read.next_request += taken
            if not read.has_unsent:
                self._unsent.popleft()
            if taken < wanted:
                return

    def _push(self, read: Read, requests: slice | NDArray[np.int64]) -> int:
        """Pushes the first of these requests, as many as have an open file; returns how many."""
        files = read.plan.files[requests]
        taken = self._files.acquire(files)
        # One file is the common case; numpy spreads its one descriptor over the requests.
        which = files if len(self._files.paths) > 1 else 0
        descriptors = self._files.descriptors[which]
        if taken < len(files) or (descriptors < 0).any():
            requests, files = np.arange(len(read.plan.files))[requests][:taken], files[:taken]
            descriptors = self._files.descriptors[files]
            unopened = descriptors < 0
            self._account(read, requests[unopened], descriptors[unopened].astype(np.int64))
            requests, which = requests[~unopened], files[~unopened]
            descriptors = descriptors[~unopened]
        modes = self._files.modes[which]
        read.descriptors[requests] = descriptors
        read.modes[requests] = modes
        read.flags[requests] = _FLAGS_OF_MODE[modes]
        self._engine.push(read.requests[requests], read.buffer)
        return taken

    def _settle(self, tickets: NDArray[np.int64], results: NDArray[np.int64]) -> None:
        """Books ended requests to their batches."""
        if len(tickets) == 0:
            return
        numbers, requests = tickets >> TICKET_BITS, tickets & ((1 << TICKET_BITS) - 1)
        number = int(numbers[0])
        if (numbers == number).all():
            self._account(self._reads[number], requests, results)
            return
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            self._account(self._reads[number], requests[mine], results[mine])

    def _account(self, read: Read, requests: NDArray[np.int64], results: NDArray[np.int64]) -> None:
        if len(self._files.paths) > 1:
            self._files.release(read.plan.files[requests])
        read.num_left -= len(requests)
        enough = results >= read.needed[requests]
        if not enough.all():
            odd = ~enough
            for request, result in zip(requests[odd].tolist(), results[odd].tolist(), strict=True):
                if self._try_again(read, request, result):
                    if not read.has_unsent:
                        self._unsent.appendleft(read)
                    read.again.append(request)
                    read.num_left += 1
                else:
                    read.failures[request] = result
        if not read.num_left:
            del self._reads[read.number]

    def _try_again(self, read: Read, request: int, result: int) -> bool:
        """Whether a request that did not bring its bytes can be continued; sets up how."""
        file, mode = int(read.plan.files[request]), int(read.modes[request])
        if -result in _AGAIN:
            return True
        if -result in (errno.EINVAL, errno.EOPNOTSUPP) and mode != BUFFERED:
            # Others that were under way when the first came back refused find it lowered already.
            if mode == self._files.modes[file]:
                self._files.lower(file, -result)
            return True
        if result <= 0:
            return False
        if mode == DIRECT and result % self.alignment:
            # A direct read stops between blocks only where the file ends.
            return False
        read.advance(request, result)
        return True
