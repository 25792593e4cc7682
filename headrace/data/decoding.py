"""From the bytes of a batch's records to what the batch holds, wherever that is done."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.blanks import spread, taken
from headrace.data.collate import dense
from headrace.data.plan import Spans
from headrace.data.reader import Pieces
from headrace.data.records import Field
from headrace.data.transforming import Transforming
from headrace.errors import ReadError

__all__ = ["VALID", "Arrived", "Batch", "Decoded", "Decoding"]

Batch = dict[str, Any]
"""A batch: field -> one row a record: an array, a list, or what the format collates to."""

VALID = "valid"
"""The name under which a batch says which of its rows hold a record."""


@dataclass(frozen=True)
class Arrived:
    """A batch whose reads have ended.

    Args:
        indices: int64[R], its records.
        found: field -> the bytes of the records, or their values where the reading has made them.
        spans: where they were, of the fields that are bytes.
        lost: row -> why the record of that row could not be had.
    """

    indices: NDArray[np.int64]
    found: Mapping[str, Any]
    spans: Mapping[str, Spans]
    lost: Mapping[int, ReadError]

    def taken(self, rows: NDArray[np.int64]) -> "Arrived":
        """Some rows of it, none of which is lost."""
        return Arrived(
            self.indices[rows],
            {
                name: found.taken(rows) if isinstance(found, Pieces) else taken(found, rows)
                for name, found in self.found.items()
            },
            {name: spans.taken(rows) for name, spans in self.spans.items()},
            {},
        )


@dataclass(frozen=True)
class Decoded:
    """A batch, and what was left out of it.

    Args:
        batch: with a row for every record, ``VALID`` among its fields where rows may be blank.
        damage: a message for every record that was left out since it is damaged.
        num_filtered: records that the transform has left out.
    """

    batch: Batch
    damage: tuple[str, ...] = ()
    num_filtered: int = 0


@final
@dataclass(frozen=True)
class Decoding:
    """What a batch's bytes become. Pickled, it goes to other processes.

    Args:
        fields: those of the batch.
        paths: the files, for messages.
        skips: whether a damaged record leaves its row blank; else it is an error.
        transforming: what becomes of the decoded records, or None.
    """

    fields: Mapping[str, Field]
    paths: Sequence[Path]
    skips: bool = False
    transforming: Transforming | None = None

    @property
    def has_valid(self) -> bool:
        """Whether batches say which of their rows hold a record."""
        return self.skips or (self.transforming is not None and self.transforming.may_filter)

    def __call__(self, arrived: Arrived, positions: NDArray[np.int64], epoch: int) -> Decoded:
        """Decodes a batch.

        Args:
            arrived: R records.
            positions: int64[R], where in the epoch each comes, for the transform's generators.
            epoch: counted from 0, likewise.

        Raises:
            ReadError: a record is damaged, and such are not skipped; names the first.
            RunError: the transform failed.
        """
        damage = arrived.lost
        batch: Batch | None = None
        if not damage:
            try:
                batch = self._values(arrived)
            except ReadError:
                if not self.skips:
                    raise
        if batch is None:
            damage = {**damage, **dict(self._damaged(arrived))}
        num_rows = len(arrived.indices)
        rows = np.delete(np.arange(num_rows), list(damage)) if damage else np.arange(num_rows)
        if batch is None:
            batch = self._values(arrived.taken(rows))
        filtered = 0
        if self.transforming is not None:
            batch, stay = self.transforming(batch, arrived.indices[rows], positions[rows], epoch)
            filtered = len(rows) - len(stay)
            rows = rows[stay]
        batch = {name: spread(values, rows, num_rows) for name, values in batch.items()}
        if self.has_valid:
            batch[VALID] = np.zeros(num_rows, bool)
            batch[VALID][rows] = True
        messages = tuple(str(damage[row]) for row in sorted(damage))
        return Decoded(batch, messages, filtered)

    def _values(self, arrived: Arrived) -> Batch:
        """Every field of every record."""
        return {name: self._column(name, arrived) for name in self.fields}

    def _column(self, name: str, arrived: Arrived) -> Any:
        one, pieces = self.fields[name], arrived.found[name]
        if not isinstance(pieces, Pieces):
            return pieces
        if not one.has_any_length:
            return dense(pieces, one.dtype, one.record_shape)
        whole = one.format.decode_batch(
            name, pieces.buffer, pieces.positions, pieces.lengths, one.about
        )
        if whole is not None:
            return whole
        decode, about = one.format.decode, one.about
        try:
            values = [decode(name, record, about) for record in pieces.records()]
        except ValueError:
            # Which it was, and where.
            values = [self._value(name, arrived, row) for row in range(len(arrived.indices))]
        return one.format.collate(name, values, about)

    def _damaged(self, arrived: Arrived) -> Iterator[tuple[int, ReadError]]:
        """The rows whose bytes are there and mean nothing; of each the first field of that kind."""
        for name, one in reversed(list(self.fields.items())):
            pieces = arrived.found[name]
            if not one.has_any_length or not isinstance(pieces, Pieces):
                continue
            for row in range(len(arrived.indices)):
                if row in arrived.lost:
                    continue
                try:
                    self._value(name, arrived, row)
                except ReadError as error:
                    yield row, error

    def _value(self, name: str, arrived: Arrived, row: int) -> Any:
        """One field, of any length, of one record."""
        one, pieces = self.fields[name], arrived.found[name]
        try:
            return one.format.decode(name, pieces.record(row), one.about)
        except ValueError as error:
            place = self._place(name, arrived, row)
            raise ReadError("a record is damaged", got=error, where=place) from error

    def _place(self, name: str, arrived: Arrived, row: int) -> str:
        """Where a record lies."""
        spans = arrived.spans[name]
        piece = int(spans.starts[row])
        path = self.paths[int(spans.files[piece])]
        return f"{path}, record {arrived.indices[row]}, offset {spans.offsets[piece]}"
