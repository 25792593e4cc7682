"""Batches of records in an order, read in the background, exactly resumable."""

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.blanks import emptied
from headrace.data.collate import to_tensors
from headrace.data.decoding import VALID, Batch, Decoded, Decoding
from headrace.data.manner import in_words
from headrace.data.order import Order, RandomOrder, require_whole
from headrace.data.permutation import LARGEST_ARRAY
from headrace.data.prefetch import Prefetch, Reading, Wanted
from headrace.data.reader import EngineName
from headrace.data.records import Records
from headrace.data.survey import Advice, Survey
from headrace.data.transforming import Collate, Transform, Transforming
from headrace.data.workers import WorkerKind, Workers
from headrace.errors import DataError, RunError
from headrace.shares import replica_rows

__all__ = ["Loader"]

STATE_VERSION = 1
_MOST_MESSAGES = 10


@final
class Loader:
    """Iterates over the batches of an epoch; the next iteration is the next epoch.

    A thread reads ahead from the start of an iteration to its end. Each iteration gives what is
    left of the current epoch, so one that was broken off goes on where it stopped, here or in
    another process that loads the state. To stop early, just stop: the reads end with the iterator.

    Args:
        records: what to read, from ``headrace.open``.
        batch_size: records of a global batch, over all replicas.
        order: which record comes when.
        fields: names of those to read; None is all, () reads nothing and gives empty batches.
        drop_last: leave out an epoch's last batch if it is not full.
        num_micro_batches: pieces that a batch is cut into; matters only for what a replica takes.
        replica: the number of this replica, counted from 0.
        num_replicas: R; replica r gets the rows of the micro-batches r, r + R, ... of each batch.
        engine: "uring", "threads" or "auto"; see Reader.
        direct: reads past the page cache: True, False, or None to decide by size; see Reader.
        batches_ahead: batches that are read or wait ahead of the one in use, at most.
        tensors: torch tensors instead of NumPy arrays.
        pin_memory: tensors in pinned memory, for copies to a CUDA device that overlap computing.
        damaged: "raise" makes a record that cannot be read or decoded an error; "skip" leaves its
            row blank (zeros, or None in a list), so that no other row moves, and counts it.
        transform: (sample) or (sample, generator) -> sample, for each record. A sample is a dict of
            field -> value. The numpy generator is the record's own, a function of (seed, epoch,
            position), so what it draws depends neither on workers nor on where a run resumed. None
            instead of a sample leaves the record out; its row is then blank.
        collate: (list of samples) -> dict, the batch; None stacks what is of one shape and leaves
            the rest as lists. See ``headrace.Padding``.
        seed: of the transform's generators.
        workers: how many decode and transform at a time, a batch each; 0 does it while reading.
        worker_kind: "thread" or "process"; see Workers.

    With damaged="skip" or a transform, each batch has "valid" too: bool[R], False for blank rows.

    Raises:
        DataError: an argument is out of range, or names a field that the records lack.

    Attributes:
        num_damaged: records left out so far, in delivered batches, since they are damaged; one of
            each epoch counts anew.
        num_filtered: records that the transform left out so far.
        damage: what was wrong with the first ten of the damaged ones, each once.

    Example::

        records = headrace.open({"image": "train-images", "label": "train-labels"})
        loader = headrace.Loader(records, batch_size=256)
        for epoch in range(loader.epoch, 10):
            for batch in loader:
                batch["image"], batch["label"]  # uint8[256, 28, 28], uint8[256]
    """

    def __init__(
        self,
        records: Records,
        batch_size: int,
        *,
        order: Order | None = None,
        fields: Sequence[str] | None = None,
        drop_last: bool = False,
        num_micro_batches: int = 1,
        replica: int = 0,
        num_replicas: int = 1,
        engine: EngineName = "auto",
        direct: bool | None = None,
        batches_ahead: int = 4,
        tensors: bool = False,
        pin_memory: bool = False,
        damaged: Literal["raise", "skip"] = "raise",
        transform: Transform | None = None,
        collate: Collate | None = None,
        seed: int = 0,
        workers: int = 0,
        worker_kind: WorkerKind = "thread",
    ) -> None:
        require_whole("batch_size", batch_size, 1)
        require_whole("num_micro_batches", num_micro_batches, 1, batch_size)
        require_whole("num_replicas", num_replicas, 1)
        require_whole("replica", replica, 0, num_replicas - 1)
        require_whole("batches_ahead", batches_ahead, 1)
        if engine not in ("auto", "uring", "threads"):
            raise DataError("unknown engine", got=repr(engine), expected="auto, uring or threads")
        require_whole("seed", seed, 0)
        require_whole("workers", workers, 0)
        if damaged not in ("raise", "skip"):
            raise DataError("damaged is wrong", got=repr(damaged), expected="raise or skip")
        if pin_memory and not tensors:
            raise DataError("pin_memory is for tensors", remedy="set tensors=True too")
        self.records = records
        self.batch_size = batch_size
        self.order: Order = RandomOrder() if order is None else order
        self._share = _Share(num_micro_batches, replica, num_replicas)
        names = _checked_fields(records, fields)
        decoding = Decoding(
            {name: records.fields[name] for name in names},
            records.paths,
            damaged == "skip",
            Transforming(transform, collate, seed) if transform or collate else None,
        )
        if decoding.has_valid and VALID in names:
            raise DataError(
                f"the records have a field {VALID!r}, which says here which rows are blank",
                remedy='open them with another name, {"other": ...}, or without the field',
            )
        then = partial(_as_tensors, pin_memory=pin_memory) if tensors else _as_it_is
        self._workers = Workers(decoding, then, workers, worker_kind) if workers else None
        self._reading = Reading(
            fields=names,
            engine=engine,
            direct=direct,
            manner=None,
            batches_ahead=max(batches_ahead, workers),
            decoding=decoding,
            then=then,
            workers=self._workers,
        )
        self._num_positions = self.order.num_positions(len(records))
        self._drop_last = drop_last
        self._epoch = 0
        self._position = 0
        self._end = self._end_from(0)
        self._iteration = 0
        self._prefetch: Prefetch | None = None
        self._reading_start = 0
        self._bytes_before = 0
        self._how = "not yet chosen"
        self._blank: Batch | None = None
        self.num_damaged = 0
        self.num_filtered = 0
        self.damage: tuple[str, ...] = ()

    @property
    def epoch(self) -> int:
        """The current epoch, counted from 0; the next one once an iteration has come to its end."""
        return self._epoch

    @property
    def position(self) -> int:
        """Records of the current epoch in the batches delivered so far, over all replicas."""
        return self._position

    @property
    def bytes_read(self) -> int:
        """Bytes asked of the system so far, those read ahead included."""
        return self._bytes_before + (self._prefetch.bytes_read if self._prefetch else 0)

    @property
    def engine(self) -> str:
        """How the files are read, in words, such as "io_uring, 128 reads at a time, past the page
        cache"; "not yet chosen" before the first batch has come."""
        reader = self._prefetch.reader if self._prefetch else None
        return self._how if reader is None else in_words(reader.reader)

    def advice(self, seconds: float = 1.0) -> Advice | None:
        """Whether an order by pages would bring small records faster, by trying both for a while.

        Says in words how much, from how many records a second on it pays, and how much randomness
        it gives up. None where random order loses nothing: records of about a page or more, or
        reads through the page cache.

        Args:
            seconds: of each trial.

        Raises:
            ReadError: a record cannot be read, or is damaged.
        """
        reading = self._reading
        survey = Survey(
            self.records, reading.fields, self.batch_size, reading.engine, reading.direct
        )
        return survey.advice(survey.trial(RandomOrder(), seconds), seconds)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return -(-self._end_from(0) // self.batch_size)

    def batch_sizes(self) -> Iterator[int]:
        """Records of each global batch that is left in the current epoch."""
        for start in range(self._position, self._end, self.batch_size):
            yield min(self.batch_size, self._end - start)

    def __iter__(self) -> Iterator[Batch]:
        """What is left of the current epoch: dicts of field -> array or tensor, one row a record.

        An earlier iteration that has not come to its end is over with this. If it has delivered
        the last batch, this is the next epoch, though nobody asked it for one more.
        """
        self._end_iteration()
        self._go_to(*self._next_place())
        return _Iteration(self, self._iteration)

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch begins, as a few values that JSON can hold. Exact at any batch."""
        epoch, position = self._next_place()
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "num_records": len(self.records),
            "fingerprint": self.records.fingerprint,
            "order": dict(self.order.identity),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another loader was; the batch size and the replicas may differ.

        Raises:
            DataError: the state is of other records, of another order, or no state of a loader.
        """
        here = self.state_dict()
        missing = [name for name in here if name not in state]
        if missing:
            raise DataError(
                "not the state of a loader",
                got=f"keys {', '.join(map(str, state))}",
                expected=", ".join(here),
            )
        for name in ("version", "num_records", "fingerprint", "order"):
            if state[name] != here[name]:
                raise DataError(
                    f"the state is of a loader of another {name.replace('_', ' ')}",
                    got=state[name],
                    expected=here[name],
                    remedy="open the same records, with the same order",
                )
        require_whole("epoch of the state", state["epoch"], 0)
        require_whole("position of the state", state["position"], 0, self._num_positions)
        self._end_iteration()
        self._go_to(state["epoch"], state["position"])
        self._go_to(*self._next_place())

    def _end_from(self, position: int) -> int:
        """Where an epoch ends of which batches are taken from this position on."""
        left = self._num_positions - position
        return self._num_positions - (left % self.batch_size if self._drop_last else 0)

    def _next_place(self) -> tuple[int, int]:
        """Epoch and position of the next batch; nothing follows in an empty epoch."""
        if self._position >= self._end > 0:
            return self._epoch + 1, 0
        return self._epoch, self._position

    def _go_to(self, epoch: int, position: int) -> None:
        """The next batch begins here."""
        if (epoch, position) != (self._epoch, self._position):
            self._epoch, self._position = epoch, position
            self._end = self._end_from(position)

    def close(self) -> None:
        """Ends the background reading and the workers; the position stays."""
        self._end_iteration()
        if self._workers is not None:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _counted(self, decoded: Decoded) -> Batch:
        """The batch; what it lacks is added to the counts."""
        self.num_damaged += len(decoded.damage)
        self.num_filtered += decoded.num_filtered
        if decoded.damage:  # a later epoch comes upon the same records again
            self.damage = tuple(dict.fromkeys(self.damage + decoded.damage))[:_MOST_MESSAGES]
        batch = decoded.batch
        if not self._reading.decoding.has_valid:
            return batch
        if len(batch) > 1:
            self._blank = batch
            return batch
        # The transform left no record, so the batch's fields are unknown: blank, as of another.
        num_rows = len(batch[VALID])
        if self._blank is None and num_rows:
            raise DataError(
                "the transform left out all records so far, so the fields of a batch are unknown",
                got=f"{num_rows} records, all left out",
                remedy="make batches larger, or let the transform keep more",
            )
        blank = self._blank or {}
        return {name: emptied(values, num_rows) for name, values in blank.items()} | batch

    def _end_iteration(self) -> None:
        """Whatever iteration there was is over; the one that begins now has another number."""
        self._iteration += 1
        self._end_reading()

    def _end_reading(self) -> None:
        if self._prefetch is not None:
            self._prefetch.close()
            self._bytes_before += self._prefetch.bytes_read
            self._how = self.engine
            if self._prefetch.reader is not None:
                self._reading = replace(self._reading, manner=self._prefetch.reader.manner)
            self._prefetch = None

    @property
    def _number_in_reading(self) -> int:
        """The number of the next batch among those of the background reading."""
        return (self._position - self._reading_start) // self.batch_size

    def _start_reading(self, iteration: "_Iteration") -> Prefetch:
        """Reads what is left of the epoch ahead of time, for as long as the iteration lives."""
        self._end_reading()
        batches = _batches(
            self.order,
            len(self.records),
            self._epoch,
            range(self._position, self._end, self.batch_size),
            self._end,
            self._share,
        )
        self._reading_start = self._position
        self._prefetch = Prefetch(self.records, batches, self._reading)
        weakref.finalize(iteration, self._prefetch.close)
        return self._prefetch


@final
class _Iteration:
    """One pass over what is left of an epoch; when it is dropped, its background reading ends."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader = loader
        self._number = number
        self._is_over = False
        if loader._reading.fields:
            loader._start_reading(self)

    def __iter__(self) -> "_Iteration":
        return self

    def __next__(self) -> Batch:
        loader = self._loader
        if self._is_over:
            raise StopIteration
        if loader._iteration != self._number:
            raise RunError(
                "this iteration is over",
                got="another iteration, a new state or close() since it began",
                remedy="iterate over the loader again",
            )
        size = next(loader.batch_sizes(), 0)
        if not size:
            loader._go_to(loader._epoch + 1, 0)
            self._is_over = True
            loader._end_reading()
            raise StopIteration
        batch = self._take() if loader._reading.fields else {}
        loader._position += size
        return batch

    def _take(self) -> Batch:
        """The batch at the loader's position."""
        loader = self._loader
        while True:
            prefetch = loader._prefetch
            if prefetch is None or not prefetch.is_usable:  # forked, or interrupted in a restart
                prefetch = loader._start_reading(self)
            try:
                decoded = prefetch.take(loader._number_in_reading)
            except Exception:
                self._is_over = True  # another iteration tries again from here
                loader._end_reading()
                raise
            if decoded is not None:
                return loader._counted(decoded)
            loader._end_reading()  # that batch was lost: read it again


@dataclass(frozen=True)
class _Share:
    """The rows of a batch that a replica takes."""

    num_micro_batches: int
    replica: int
    num_replicas: int

    def __call__(self, batch: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.num_replicas == 1:
            return batch
        rows = replica_rows(len(batch), self.num_micro_batches, self.replica, self.num_replicas)
        return np.concatenate([batch[:0], *(batch[start:stop] for start, stop in rows)])


def _batches(
    order: Order, num_records: int, epoch: int, starts: range, end: int, share: _Share
) -> Iterator[Wanted]:
    """The records of each batch; an order is asked for many batches at once, as it likes best."""
    batch_size = starts.step
    batches_a_call = max(1, LARGEST_ARRAY // batch_size)
    for first in range(0, len(starts), batches_a_call):
        some = starts[first : first + batches_a_call]
        positions = np.arange(some[0], min(some[-1] + batch_size, end))
        indices = order.indices(positions, num_records, epoch)
        for row in range(0, len(indices), batch_size):
            some_rows = slice(row, row + batch_size)
            yield Wanted(share(indices[some_rows]), share(positions[some_rows]), epoch)


def _as_it_is(decoded: Decoded) -> Decoded:
    return decoded


def _as_tensors(decoded: Decoded, *, pin_memory: bool) -> Decoded:
    return replace(decoded, batch=to_tensors(decoded.batch, pin_memory=pin_memory))


def _checked_fields(records: Records, fields: Sequence[str] | None) -> tuple[str, ...]:
    if fields is None:
        return tuple(records.fields)
    if isinstance(fields, str):
        raise DataError(
            "fields is text", got=repr(fields), expected=f"several names: fields=({fields!r},)"
        )
    for name in fields:
        if name not in records.fields:
            raise DataError(
                "no such field", got=repr(name), expected=", ".join(map(repr, records.fields))
            )
    return tuple(dict.fromkeys(fields))
