"""Batches of values from records, whatever kind their fields are; several may be under way."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.blanks import spread
from headrace.data.columns import InGroups
from headrace.data.decoding import Arrived, Batch, Decoding
from headrace.data.groups import GroupReader
from headrace.data.manner import Manner, choose_manner
from headrace.data.plan import Spans
from headrace.data.reader import EngineName, Pieces, Read, Reader
from headrace.data.records import Records
from headrace.errors import ReadError

__all__ = ["BatchReader", "Started"]


@dataclass(frozen=True)
class Started:
    """A batch whose reads are under way."""

    indices: NDArray[np.int64]
    spans: Mapping[str, Spans]
    reads: Mapping[str, Read]


@final
class BatchReader:
    """Reads, decodes and collates; belongs to the thread and process that made it, as Reader does.

    Args:
        records: what to read.
        fields: names of those to read.
        engine: as of Reader.
        direct: as of Reader.
        skips: whether records that cannot be had are left out; else they are errors.
        manner: what an earlier one has found out about the files; None looks at them.

    Attributes:
        manner: how they are read.
        reader: the Reader of the fields that are bytes in the files.
        decoding: what it makes of a batch that has arrived.
    """

    def __init__(
        self,
        records: Records,
        fields: Sequence[str],
        *,
        engine: EngineName = "auto",
        direct: bool | None = None,
        skips: bool = False,
        manner: Manner | None = None,
    ) -> None:
        self._records = records
        self._fields = fields
        self._skips = skips
        self.decoding = Decoding(
            {name: records.fields[name] for name in fields}, records.paths, skips
        )
        self._in_bytes = [name for name in fields if records.is_in_bytes(name)]
        self.manner = manner or choose_manner(records.paths, engine, direct)
        self.reader = Reader(records.paths, engine=engine, **asdict(self.manner))
        self._groups = GroupReader(records.paths)

    def start(self, indices: NDArray[np.int64]) -> Started:
        """Queues the reads of records and returns without waiting."""
        spans = {name: self._records.spans(indices, name) for name in self._in_bytes}
        reads = {name: self.reader.start(some, indices) for name, some in spans.items()}
        return Started(indices, spans, reads)

    def arrive(self, started: Started) -> Arrived:
        """Waits for a batch, and leaves the decoding to others.

        Raises:
            ReadError: a record could not be read, and such are not skipped; names the first.
        """
        lost: dict[int, ReadError] = {}
        found = {name: self._found(name, started, lost) for name in self._fields}
        return Arrived(started.indices, found, started.spans, lost)

    def finish(self, started: Started) -> Batch:
        """Waits for a batch.

        Raises:
            ReadError: a record could not be read, or is damaged; names the first such.
        """
        arrived = self.arrive(started)
        return self.decoding(arrived, arrived.indices, 0).batch

    def read(self, indices: NDArray[np.int64]) -> Batch:
        """Starts a batch and waits for it; errors as of finish."""
        return self.finish(self.start(indices))

    def batches(
        self, every: Iterable[NDArray[np.int64]], num_ahead: int
    ) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Batch after batch with its indices, so many more of them under way."""
        under_way: deque[Started] = deque()
        for indices in every:
            under_way.append(self.start(indices))
            if len(under_way) > num_ahead:
                started = under_way.popleft()
                yield started.indices, self.finish(started)
        for started in under_way:
            yield started.indices, self.finish(started)

    def close(self) -> None:
        """Waits for the reads in flight, and closes the files."""
        self.reader.close()
        self._groups.close()

    def __enter__(self) -> "BatchReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _found(self, name: str, started: Started, lost: dict[int, ReadError]) -> Any:
        """The bytes or values of a field; what cannot be had is added to the lost rows."""
        try:
            if name in started.reads:
                return self.reader.finish(started.reads[name])
            return self._known(name, started.indices)
        except ReadError:
            if not self._skips:
                raise
        whole = range(len(started.indices))
        rows = np.array([row for row in whole if self._is_there(name, started, row, lost)], int)
        found = self._again(name, started.indices[rows])
        if isinstance(found, Pieces):
            return found.spread(rows, len(whole))
        return spread(found, rows, len(whole))

    def _is_there(self, name: str, started: Started, row: int, lost: dict[int, ReadError]) -> bool:
        """Whether a record can be had by itself."""
        try:
            self._again(name, started.indices[row : row + 1])
        except ReadError as error:
            lost.setdefault(row, error)
            return False
        return True

    def _again(self, name: str, indices: NDArray[np.int64]) -> Any:
        """The bytes or values of a field."""
        if name in self._in_bytes:
            return self.reader.finish(
                self.reader.start(self._records.spans(indices, name), indices)
            )
        return self._known(name, indices)

    def _known(self, name: str, indices: NDArray[np.int64]) -> Any:
        """The values of a field that is not in bytes."""
        found = self._records.found(indices, name)
        if isinstance(found, InGroups):
            return self._groups.values(name, self._records.fields[name].format, found)
        return found
