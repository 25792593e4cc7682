"""One field over all files of a data set: from indexes of records to spans of bytes, or values."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import Files, Groups, Located, Values
from headrace.data.formats.layout import Layout
from headrace.data.plan import Spans

__all__ = [
    "Columns",
    "Grouped",
    "InBytes",
    "InGroups",
    "Known",
    "Part",
    "WholeFiles",
    "columns_over",
]

Part = tuple[Path, Layout | Located | Files | Values | Groups]
"""A file, and what of the field it has."""

_MOST_IN_MEMORY = 1 << 22  # records whose places are kept as arrays over all files


@final
class Columns:
    """The records of the files one after another.

    Args:
        files: int32[F], the number of each file that has records.
        columns: where they lie in it.
    """

    def __init__(self, files: NDArray[np.int32], columns: Sequence[Layout | Located]) -> None:
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
        if len(self) <= _MOST_IN_MEMORY:
            if self._joined is None:
                every = [_lookup(one, np.arange(one.num_records)) for one in self._columns]
                self._joined = (
                    np.concatenate([offsets for offsets, _ in every]),
                    np.concatenate([lengths for _, lengths in every]),
                )
            return self._joined[0][indices], self._joined[1][indices]
        if len(self._columns) == 1:
            return _lookup(self._columns[0], local)
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
    def of(cls, columns: Sequence[Layout | Located]) -> "_Strided | None":
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
    column: Layout | Located, local: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if isinstance(column, Layout):
        offsets = column.start_bytes + local * column.stride_bytes
        return offsets, np.full(len(local), column.record_bytes, np.int64)
    return column.lookup(local)


@final
class WholeFiles:
    """Records that are files, whole.

    Args:
        first: the number of the first file; the others follow.
        sizes: int64[N], in bytes.
    """

    def __init__(self, first: int, sizes: NDArray[np.int64]) -> None:
        self._first = first
        self._sizes = sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def spans(self, indices: NDArray[np.int64]) -> Spans:
        """As Columns.spans."""
        files = (self._first + indices).astype(np.int32)
        offsets = np.zeros(len(indices), np.int64)
        return Spans(files, offsets, self._sizes[indices], np.arange(len(indices) + 1))


@final
class Known:
    """Values that no read brings."""

    def __init__(self, columns: Sequence[Values]) -> None:
        self._values = np.concatenate([column.array for column in columns])

    def __len__(self) -> int:
        return len(self._values)

    def found(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """The values of records, in memory of their own."""
        return self._values[indices]


@dataclass(frozen=True)
class InGroups:
    """Where R records are that come in groups.

    Args:
        files: int32[R], the number of the file of each.
        groups: int64[R], its group there.
        rows: int64[R], its place in the group.
        dtype: of the values.
        shape: of one value; ANY_LENGTH where they are objects.
    """

    files: NDArray[np.int32]
    groups: NDArray[np.int64]
    rows: NDArray[np.int64]
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


@final
class Grouped:
    """Records in groups of the files, one after another.

    Args:
        files: int32[F], the number of each file.
        columns: its groups.
    """

    def __init__(self, files: NDArray[np.int32], columns: Sequence[Groups]) -> None:
        counts = np.array([len(column.num_rows) for column in columns], np.int64)
        num_rows = np.concatenate([column.num_rows for column in columns])
        self._files = np.repeat(files, counts)
        self._groups = np.arange(len(num_rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        self._dtype, self._shape = columns[0].dtype, columns[0].shape
        self._stops = np.cumsum(num_rows)
        self._firsts = self._stops - num_rows

    def __len__(self) -> int:
        return int(self._stops[-1]) if len(self._stops) else 0

    def found(self, indices: NDArray[np.int64]) -> InGroups:
        """File, group and row of records."""
        which = np.searchsorted(self._stops, indices, side="right")
        rows = indices - self._firsts[which]
        return InGroups(self._files[which], self._groups[which], rows, self._dtype, self._shape)


InBytes = Columns | WholeFiles
"""Fields whose records are read from the files as they are."""


def columns_over(
    parts: Sequence[Part], numbers: Sequence[int]
) -> Columns | WholeFiles | Known | Grouped:
    """The records of a field.

    Args:
        parts: in the order of the records; all in bytes, all known, or all in groups.
        numbers: of the file of each part, by which spans name it; of whole files the first one's.
    """
    columns = [column for _, column in parts]
    known = [column for column in columns if isinstance(column, Values)]
    if known:
        return Known(known)
    files = [column for column in columns if isinstance(column, Files)]
    if files:
        # The files of one part follow those of the part before.
        return WholeFiles(numbers[0], np.concatenate([column.sizes for column in files]))
    groups = [column for column in columns if isinstance(column, Groups)]
    if groups:
        return Grouped(np.array(numbers, np.int32), groups)
    placed = [column for column in columns if not isinstance(column, Values | Files | Groups)]
    filled = [row for row, column in enumerate(placed) if column.num_records] or [0]
    of_each = np.array([numbers[row] for row in filled], np.int32)
    return Columns(of_each, [placed[row] for row in filled])
