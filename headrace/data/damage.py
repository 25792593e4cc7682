"""Every record that is damaged: all are read once, in the order in which they lie."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import numpy as np

from headrace.data.batch_reader import BatchReader
from headrace.data.records import Records
from headrace.errors import ReadError
from headrace.progress import Progress

__all__ = ["Damage", "damaged"]

_MOST_RECORDS, _MOST_BYTES = 1024, 64 << 20  # at a time


@dataclass(frozen=True)
class Damage:
    """A field of a record that cannot be had.

    Args:
        record: its index.
        field: its name.
        error: what is wrong, and where it lies.
    """

    record: int
    field: str
    error: ReadError


def damaged(records: Records, progress: Progress) -> Iterator[Damage]:
    """Reads and decodes every field of every record.

    Args:
        records: the data set.
        progress: is told ``records`` read so far and ``num_records``.
    """
    search = _Search(records)
    try:
        start = 0
        while start < len(records):
            some = range(start, min(start + _MOST_RECORDS, len(records)))
            while len(some) > 1 and _num_bytes_of(records, some) > _MOST_BYTES:
                some = some[: len(some) // 2]
            yield from search.among(some)
            start = some.stop
            progress.update({"records": start, "num_records": len(records)})
    finally:
        search.reader.close()


def _num_bytes_of(records: Records, indices: range) -> int:
    """Bytes that records take in the files, as far as they are bytes there."""
    array = np.array(indices, np.int64)
    in_bytes = [name for name in records.fields if records.is_in_bytes(name)]
    return sum(int(records.spans(array, name).lengths.sum()) for name in in_bytes)


@final
class _Search:
    def __init__(self, records: Records) -> None:
        self._records = records
        self.reader = BatchReader(records, tuple(records.fields))

    def among(self, indices: range) -> Iterator[Damage]:
        """Halves what fails until a single record is left: damage is rare."""
        try:
            self.reader.read(np.array(indices))
        except ReadError:
            if len(indices) == 1:
                yield from self._fields_of(indices)
                return
            middle = len(indices) // 2
            yield from self.among(indices[:middle])
            yield from self.among(indices[middle:])

    def _fields_of(self, one: range) -> Iterator[Damage]:
        for name in self._records.fields:
            with BatchReader(self._records, (name,)) as reader:
                try:
                    reader.read(np.array(one))
                except ReadError as error:
                    yield Damage(one[0], name, error)
