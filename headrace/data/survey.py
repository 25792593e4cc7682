"""What a data set is like: how large its records are, and what reading them at random costs."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headrace.data.batch_reader import BatchReader
from headrace.data.order import RandomOrder
from headrace.data.records import Records

__all__ = ["PAGE_BYTES", "Sizes", "Trial", "sizes_of", "try_random"]

PAGE_BYTES = 4096
_MOST_LOOKED_AT = 1 << 16  # records; more say no more of the sizes
_BATCH, _BATCHES_AHEAD = 128, 4


@dataclass(frozen=True)
class Sizes:
    """The sizes of a field's records; of many records a random part is looked at.

    Args:
        num_looked_at: records.
        histogram: (bytes at least, bytes less than, records), by powers of two, none empty.
        least: bytes of the smallest.
        median: bytes.
        most: bytes of the largest.
        page_use: share of the bytes of the pages touched that belongs to the record, when each
            record is read by itself.
    """

    num_looked_at: int
    histogram: tuple[tuple[int, int, int], ...]
    least: int
    median: int
    most: int
    page_use: float


@dataclass(frozen=True)
class Trial:
    """Some seconds of an epoch in random order.

    Args:
        num_records: read.
        seconds: it took.
        bytes_read: asked of the system.
        engine: that was used.
        is_direct: whether past the page cache.
    """

    num_records: int
    seconds: float
    bytes_read: int
    engine: str
    is_direct: bool


def sizes_of(records: Records, field: str) -> Sizes | None:
    """Of a field that is bytes in the files; None of others, and of no records."""
    if not records.is_in_bytes(field) or not len(records):
        return None
    spans = records.spans(_sample(records, _MOST_LOOKED_AT), field)
    lengths = spans.record_lengths
    first = spans.offsets // PAGE_BYTES
    pages = np.where(
        spans.lengths > 0, (spans.offsets + spans.lengths - 1) // PAGE_BYTES - first + 1, 0
    )
    touched = int(pages.sum()) * PAGE_BYTES
    powers, counts = np.unique(np.frexp(lengths.astype(float))[1], return_counts=True)
    return Sizes(
        num_looked_at=len(lengths),
        histogram=tuple(
            ((1 << power) // 2, 1 << power, count)
            for power, count in zip(powers.tolist(), counts.tolist(), strict=True)
        ),
        least=int(lengths.min()),
        median=int(np.median(lengths)),
        most=int(lengths.max()),
        page_use=int(lengths.sum()) / touched if touched else 1.0,
    )


def try_random(records: Records, seconds: float) -> Trial:
    """Reads and decodes records in random order for a while, all fields, as the Loader does."""
    order, num_records = RandomOrder(seed=0), 0
    every = (
        order.indices(np.arange(start, min(start + _BATCH, len(records))), len(records), 0)
        for start in range(0, len(records), _BATCH)
    )
    with BatchReader(records, tuple(records.fields)) as reader:
        began_s = time.perf_counter()
        for indices, _ in reader.batches(every, _BATCHES_AHEAD):
            num_records += len(indices)
            if time.perf_counter() - began_s > seconds:
                break
        return Trial(
            num_records,
            time.perf_counter() - began_s,
            reader.reader.bytes_requested,
            reader.reader.engine,
            reader.reader.direct,
        )


def _sample(records: Records, most: int) -> NDArray[np.int64]:
    positions = np.arange(min(len(records), most))
    return RandomOrder(seed=0).indices(positions, len(records), 0)
