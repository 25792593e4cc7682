"""What a data set is like: how large its records are, and what reading them in an order costs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.batch_reader import BatchReader
from headrace.data.manner import in_words
from headrace.data.order import Order, RandomOrder
from headrace.data.orders.page import PageOrder
from headrace.data.reader import EngineName
from headrace.data.records import Records
from headrace.errors import DataError

__all__ = ["PAGE_BYTES", "Advice", "Sizes", "Survey", "Trial", "sizes_of"]

PAGE_BYTES = 4096
_MOST_LOOKED_AT = 1 << 16  # records; more say no more of the sizes
_BATCHES_AHEAD = 4


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
    """Some seconds of an epoch in an order.

    Args:
        num_records: read and decoded.
        seconds: it took.
        bytes_read: asked of the system.
        is_direct: whether past the page cache.
        how: the engine, reads at a time and way, in words.
    """

    num_records: int
    seconds: float
    bytes_read: int
    is_direct: bool
    how: str

    @property
    def records_per_s(self) -> float:
        """How fast it went."""
        return self.num_records / self.seconds


@dataclass(frozen=True)
class Advice:
    """What an order by pages would bring, and what it gives up.

    Args:
        order: the groups of it are what a page holds.
        batch_size: records of a batch.
        random: the trial of RandomOrder.
        page: the trial of that order.
    """

    order: PageOrder
    batch_size: int
    random: Trial
    page: Trial

    @property
    def gain(self) -> float:
        """How many times as many records a second it brings."""
        return self.page.records_per_s / self.random.records_per_s

    def __str__(self) -> str:
        group, batch = self.order.group_size, self.batch_size
        least = self.order.independent_records(batch, 1.0)
        return (
            f"headrace.PageOrder(group_size={group}) brings {self.page.records_per_s:,.0f} "
            f"records/s, {self.gain:.1f} times as many as RandomOrder\n"
            f"  training that takes fewer than {self.random.records_per_s:,.0f} records/s never "
            "waits in random order\n"
            f"  given up: each record comes with its {group - 1} neighbours in the file; a batch "
            f"of {batch} counts as\n  {least:,.0f} independent records if those are all alike, as "
            f"{batch} if they are no more alike than any"
        )


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


@final
@dataclass(frozen=True)
class Survey:
    """Reads records in one order or another for a while, as the Loader does.

    Args:
        records: what to read.
        fields: names; None is all.
        batch_size: records of a batch.
        engine: as of Reader.
        direct: as of Reader.
    """

    records: Records
    fields: Sequence[str] | None = None
    batch_size: int = 256
    engine: EngineName = "auto"
    direct: bool | None = None

    def trial(self, order: Order, seconds: float) -> Trial:
        """Epoch 0 of an order, for so long at most, but for the last batches.

        Raises:
            ReadError: a record cannot be read, or is damaged.
        """
        num_records, num_stored = 0, len(self.records)
        num_positions = order.num_positions(num_stored)
        every = (
            order.indices(
                np.arange(start, min(start + self.batch_size, num_positions)), num_stored, 0
            )
            for start in range(0, num_positions, self.batch_size)
        )
        with BatchReader(
            self.records, self._names, engine=self.engine, direct=self.direct
        ) as reader:
            began_s = time.perf_counter()
            for indices, _ in reader.batches(every, _BATCHES_AHEAD):
                num_records += len(indices)
                if time.perf_counter() - began_s > seconds:
                    break
            seconds = time.perf_counter() - began_s
            bytes_read, is_direct = reader.reader.bytes_requested, reader.reader.direct
            return Trial(num_records, seconds, bytes_read, is_direct, in_words(reader.reader))

    def advice(self, random: Trial, seconds: float) -> Advice | None:
        """Tries an order by pages, if a page holds several records and reads go past the cache.

        None if that is not so, or if it brings no more than RandomOrder. Looking ahead is no answer
        to small records: of w records read ahead from P pages, about w / 2 P share a page.

        Args:
            random: a trial of RandomOrder.
            seconds: for the other one.

        Raises:
            ReadError: as of trial.
        """
        sizes = {
            name: some for name in self._names if (some := sizes_of(self.records, name)) is not None
        }
        if not sizes or not random.is_direct:
            return None
        largest = max(sizes, key=lambda name: sizes[name].median)
        try:
            order = PageOrder.for_pages(self.records, largest, PAGE_BYTES)
        except DataError:
            return None  # neighbours do not lie side by side, so no page holds several
        if order.group_size < 2:
            return None
        advice = Advice(order, self.batch_size, random, self.trial(order, seconds))
        return advice if advice.gain > 1 else None

    @property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.records.fields if self.fields is None else self.fields)


def _sample(records: Records, most: int) -> NDArray[np.int64]:
    positions = np.arange(min(len(records), most))
    return RandomOrder(seed=0).indices(positions, len(records), 0)
