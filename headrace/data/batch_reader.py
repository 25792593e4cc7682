"""Batches of values from records, whatever kind their fields are; several may be under way."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.collate import decoded, dense
from headrace.data.columns import InGroups
from headrace.data.groups import GroupReader
from headrace.data.reader import EngineName, Pieces, Read, Reader
from headrace.data.records import Records

__all__ = ["Batch", "BatchReader", "Started"]

Batch = dict[str, Any]
"""A batch: field -> one row a record: an array, a list, or what the format collates to."""


@dataclass(frozen=True)
class Started:
    """A batch whose reads are under way."""

    indices: NDArray[np.int64]
    reads: Mapping[str, Read]


@final
class BatchReader:
    """Reads, decodes and collates; belongs to the thread and process that made it, as Reader does.

    Args:
        records: what to read.
        fields: names of those to read.
        engine: as of Reader.
        direct: as of Reader.

    Attributes:
        reader: the Reader of the fields that are bytes in the files.
    """

    def __init__(
        self,
        records: Records,
        fields: Sequence[str],
        *,
        engine: EngineName = "auto",
        direct: bool | None = None,
    ) -> None:
        self._records = records
        self._fields = fields
        self._in_bytes = [name for name in fields if records.is_in_bytes(name)]
        self.reader = Reader(records.paths, engine=engine, direct=direct)
        self._groups = GroupReader(records.paths)

    def start(self, indices: NDArray[np.int64]) -> Started:
        """Queues the reads of records and returns without waiting."""
        reads = {
            name: self.reader.start(self._records.spans(indices, name), indices)
            for name in self._in_bytes
        }
        return Started(indices, reads)

    def finish(self, started: Started) -> Batch:
        """Waits for a batch.

        Raises:
            ReadError: a record could not be read, or is damaged; names the first such.
        """
        return {name: self._values(name, started) for name in self._fields}

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

    def _values(self, name: str, started: Started) -> Any:
        if name in started.reads:
            read = started.reads[name]
            return self._collated(name, self.reader.finish(read), read)
        found = self._records.found(started.indices, name)
        if isinstance(found, InGroups):
            return self._groups.values(name, self._records.fields[name].format, found)
        return found

    def _collated(self, name: str, pieces: Pieces, read: Read) -> Any:
        """What a batch holds of a field whose bytes were read."""
        one = self._records.fields[name]
        if not one.has_any_length:
            return dense(pieces, one.dtype, one.record_shape)
        whole = one.format.decode_batch(
            name, pieces.buffer, pieces.positions, pieces.lengths, one.about
        )
        if whole is not None:
            return whole
        values = decoded(
            pieces,
            partial(one.format.decode, name, about=one.about),
            partial(read.place, paths=self._records.paths),
        )
        return one.format.collate(name, values, one.about)
