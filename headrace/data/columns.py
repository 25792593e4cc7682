"""One field over all files of a data set: from indexes of records to spans of bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Table
from headrace.data.formats.layout import Layout
from headrace.data.index import StoredTable
from headrace.data.plan import Spans

__all__ = ["Columns", "Part", "columns_over"]

Part = tuple[Path, Layout | Table | StoredTable]
"""A file, and where in it the records of the field lie."""

_MOST_IN_MEMORY = 1 << 22  # records whose places are kept as arrays over all files


@final
class Columns:
    """The records of the files one after another.

    Args:
        files: int32[F], the number of each file that has records.
        columns: where they lie in it.
    """

    def __init__(
        self, files: NDArray[np.int32], columns: Sequence[Layout | Table | StoredTable]
    ) -> None:
        self._files = files
        self._columns = columns
        counts = np.array([column.num_records for column in columns], np.int64)
        self._stops = np.cumsum(counts)
        self._firsts = self._stops - counts
        self._strided = _Strided.of(columns)
        self._joined: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def __len__(self) -> int:
        return int(self._stops[-1])

    def spans(self, indices: NDArray[np.int64]) -> Spans:
        """Where the bytes of records lie; of one that lacks the field, a length of -1.

        Args:
            indices: int64[R], in [0, len).
        """
        if len(self._columns) == 1:
            part = np.zeros(len(indices), np.intp)
        else:
            part = np.searchsorted(self._stops, indices, side="right")
        local = indices - self._firsts[part]
        if self._strided is not None:
            return self._strided.spans(self._files, part, local)
        offsets, lengths = self._lookup(indices, part, local)
        return Spans(self._files[part], offsets, lengths, np.arange(len(indices) + 1))

    def _lookup(
        self, indices: NDArray[np.int64], part: NDArray[np.intp], local: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        if len(self._columns) == 1:
            return _lookup(self._columns[0], local)
        if len(self) <= _MOST_IN_MEMORY:
            if self._joined is None:
                every = [_lookup(one, np.arange(one.num_records)) for one in self._columns]
                self._joined = (
                    np.concatenate([offsets for offsets, _ in every]),
                    np.concatenate([lengths for _, lengths in every]),
                )
            return self._joined[0][indices], self._joined[1][indices]
        offsets, lengths = np.empty((2, len(indices)), np.int64)
        for number in np.unique(part).tolist():
            mine = part == number
            offsets[mine], lengths[mine] = _lookup(self._columns[number], local[mine])
        return offsets, lengths


@final
class _Strided:
    """Where all columns are of one size and their places follow by arithmetic."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        first = layouts[0]
        self._begins = np.array([layout.start_bytes for layout in layouts], np.int64)
        self._strides = np.array([layout.stride_bytes for layout in layouts], np.int64)
        self._record_bytes = first.record_bytes
        self._pieces = None
        if any(layout.pieces is not None for layout in layouts):
            whole = np.arange(1)
            places = [whole if one.pieces is None else one.pieces for one in layouts]
            self._num_pieces = np.array([len(place) for place in places], np.int64)
            self._piece_firsts = np.cumsum(self._num_pieces) - self._num_pieces
            self._pieces = np.concatenate(places)

    @classmethod
    def of(cls, columns: Sequence[Layout | Table | StoredTable]) -> "_Strided | None":
        layouts = [column for column in columns if isinstance(column, Layout)]
        return cls(layouts) if len(layouts) == len(columns) else None

    def spans(
        self, files: NDArray[np.int32], part: NDArray[np.intp], local: NDArray[np.int64]
    ) -> Spans:
        offsets = local * self._strides[part] + self._begins[part]
        if self._pieces is None:
            lengths = np.full(len(local), self._record_bytes, np.int64)
            return Spans(files[part], offsets, lengths, np.arange(len(local) + 1))
        counts = self._num_pieces[part]
        starts = np.concatenate([[0], np.cumsum(counts)])
        whose = np.repeat(np.arange(len(local)), counts)
        which = np.arange(len(whose)) - starts[whose] + self._piece_firsts[part[whose]]
        lengths = (self._record_bytes // np.maximum(counts, 1))[whose]
        return Spans(files[part[whose]], offsets[whose] + self._pieces[which], lengths, starts)


def _lookup(
    column: Layout | Table | StoredTable, local: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if isinstance(column, Layout):
        offsets = column.start_bytes + local * column.stride_bytes
        return offsets, np.full(len(local), column.record_bytes, np.int64)
    return column.lookup(local)


def columns_over(parts: Sequence[Part], number: Mapping[Path, int]) -> Columns:
    """The columns of a field.

    Args:
        parts: in the order of the records.
        number: of each file, by which spans name it.
    """
    filled = [(path, column) for path, column in parts if column.num_records] or parts[:1]
    files = np.array([number[path] for path, _ in filled], np.int32)
    return Columns(files, [column for _, column in filled])
