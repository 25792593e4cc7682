"""How an epoch's records come from the disk: each by a read of its own, or in large ones."""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, final

import numpy as np
from numpy.typing import NDArray
from stored import PIECE_RECORDS, RECORD_BYTES, Rows

import headrace
from headrace.data.order import Order

__all__ = ["BATCH", "Direct", "Source", "Stream", "whole"]

BATCH = 125  # a multiple of the 5 records of a page, and 480 of them make an epoch


class Source(Protocol):
    """One contestant's file, and how it reads it.

    Attributes:
        path: of the file that is read in every epoch.
        setup_s: seconds that writing it took; 0 where the data is read as it lies.
        num_records: of the data set.
    """

    path: Path
    setup_s: float
    num_records: int

    def epoch(self, number: int) -> Iterator[Rows]:
        """The batches of an epoch; nothing is read before the first is asked for."""

    def members(self, epoch: int) -> NDArray[np.int64]:
        """The records of the layout in the order in which the epoch has them."""


@final
class Direct:
    """Reads of the records themselves, wherever they lie, those of twelve batches at a time.

    As many as a sequential read brings at a time, so that everyone asks for the same amount ahead.
    """

    setup_s = 0.0

    def __init__(self, path: Path, order: Order) -> None:
        self.path = path
        self._order = order
        self._records = headrace.open(path)
        self.num_records = len(self._records)

    def epoch(self, number: int) -> Iterator[Rows]:
        """See Source."""
        loader = headrace.Loader(self._records, PIECE_RECORDS, order=self._order, direct=True)
        loader.load_state_dict(loader.state_dict() | {"epoch": number})
        for piece in loader:
            for first in range(0, len(piece["data"]), BATCH):
                yield piece["data"][first : first + BATCH]

    def members(self, epoch: int) -> NDArray[np.int64]:
        """See Source."""
        return whole(self._order, self.num_records, epoch)


@final
class Stream:
    """Large sequential reads; records wait in memory until the order wants them.

    Args:
        path: of the file.
        order: which record comes when: with blocks of the layout, else of the file.
        most_waiting: records that the contestant may hold, beside the pieces that are read ahead.
        stored: the layout's record in each row of the file; None is the layout itself.
        setup_s: what writing the file took.
        block_records: records of a block: blocks come as the order has them, each in one piece and
            before any record of it is given out; None reads from first to last.
    """

    def __init__(
        self,
        path: Path,
        order: Order,
        most_waiting: int,
        *,
        setup_s: float = 0.0,
        stored: NDArray[np.int64] | None = None,
        block_records: int | None = None,
    ) -> None:
        self.path = path
        self.setup_s = setup_s
        self._order = order
        self._records = headrace.open(path)
        self.num_records = len(self._records)
        self._stored = np.arange(self.num_records) if stored is None else stored
        self._block_records = block_records
        self._num_slots = min(most_waiting, self.num_records) + BATCH + PIECE_RECORDS

    def epoch(self, number: int) -> Iterator[Rows]:
        """See Source. What the order is gets computed here, before anybody looks at the clock."""
        wanted = whole(self._order, self.num_records, number)
        if self._block_records is None:
            return self._batches(self._records, wanted, wanted)
        # The order's numbers are the layout's; the file has the blocks one after another.
        rows = np.empty_like(wanted)
        rows[self._stored] = np.arange(len(rows))
        wanted = rows[wanted]
        arriving = np.sort(wanted.reshape(-1, self._block_records), axis=1).ravel()
        arrival = np.empty_like(arriving)
        arrival[arriving] = np.arange(len(arriving))
        return self._batches(self._records[arriving], wanted, arrival[wanted])

    def members(self, epoch: int) -> NDArray[np.int64]:
        """See Source."""
        wanted = whole(self._order, self.num_records, epoch)
        return wanted if self._block_records else self._stored[wanted]

    def _batches(
        self, records: headrace.Records, wanted: NDArray[np.int64], arrival: NDArray[np.int64]
    ) -> Iterator[Rows]:
        """Batches in the order of ``wanted``.

        Args:
            records: in the order in which they arrive.
            wanted: the rows of the file, in the order in which they are given out.
            arrival: the number of each of these among the arriving.
        """
        waiting = Waiting(len(records), self._num_slots)
        order = headrace.SequentialOrder()
        loader = iter(headrace.Loader(records, PIECE_RECORDS, order=order, direct=True))
        for first in range(0, len(wanted), BATCH):
            numbers = arrival[first : first + BATCH]
            while waiting.num_arrived <= numbers.max():
                waiting.put(next(loader)["data"])
            yield waiting.take(numbers)


@final
class Waiting:
    """Records that a sequential read has brought and nobody has taken yet, in a bounded memory."""

    def __init__(self, num_records: int, num_slots: int) -> None:
        self.num_arrived = 0
        self._rows = np.empty((num_slots, RECORD_BYTES), np.uint8)
        self._slots = np.empty(num_records, np.int64)  # of each record, by the number it came with
        self._free = np.arange(num_slots)
        self._num_free = num_slots

    def put(self, rows: Rows) -> None:
        """The next ones have arrived."""
        if len(rows) > self._num_free:
            raise MemoryError(f"{len(rows)} records have come and {self._num_free} places are free")
        self._num_free -= len(rows)
        slots = self._free[self._num_free : self._num_free + len(rows)].copy()
        self._rows[slots] = rows
        self._slots[self.num_arrived : self.num_arrived + len(rows)] = slots
        self.num_arrived += len(rows)

    def take(self, numbers: NDArray[np.int64]) -> Rows:
        """Those that came with these numbers; their places are free again."""
        slots = self._slots[numbers]
        self._free[self._num_free : self._num_free + len(slots)] = slots
        self._num_free += len(slots)
        return self._rows[slots]


def whole(order: Order, num_records: int, epoch: int) -> NDArray[np.int64]:
    """All records of an epoch."""
    return order.indices(np.arange(num_records), num_records, epoch)
