"""What a data set on disk is: named fields whose records lie in files, read in place."""

import copy
import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.columns import (
    Grouped,
    InBytes,
    InGroups,
    Known,
    Part,
    columns_over,
)
from headrace.data.formats.column import Files, Values
from headrace.data.formats.format import ANY_LENGTH, Format, describe, identity_of
from headrace.data.formats.layout import Layout
from headrace.data.index import source_of
from headrace.data.order import require_whole
from headrace.data.plan import Spans
from headrace.data.refusals import reading
from headrace.data.selection import Chained, Drawn, Selection, in_range, selection_of
from headrace.errors import DataError

__all__ = ["Field", "Records"]


_MOST_AT_ONCE = 1 << 20  # records, where all are looked at


@dataclass(frozen=True)
class Field:
    """What a record has under one name.

    Args:
        dtype: of the elements in the file, with their byte order; arrays arrive in native order.
        shape: of one record; (None,) where each has its own number of bytes.
        format: what makes values of such bytes.
        about: what it must know for that.
    """

    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    format: Format
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_any_length(self) -> bool:
        """Whether each record has its own number of bytes."""
        return self.shape == ANY_LENGTH

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape that all records have.

        Raises:
            DataError: each record has its own number of bytes.
        """
        if self.has_any_length:
            raise DataError("records have no common shape", expected="a field of one shape")
        return tuple(size for size in self.shape if size is not None)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record; errors as of record_shape."""
        return self.dtype.itemsize * math.prod(self.record_shape)

    def __str__(self) -> str:
        return describe(self.dtype, self.shape)


@final
class Records:
    """A data set on disk; made by ``headrace.open``. ``len`` is its number of records.

    ``records[10:20]``, ``records[indices]`` and ``records[mask]`` are views, which can be used in
    its place; nothing is copied.

    Attributes:
        fields: name -> Field.
        parts: name -> the files, and where in them the records lie.
        selection: those of them that a view has, or None for all.
        paths: the files to be read, absolute, which spans refer to by number.
        fingerprint: short text that changes when the data set does: names (relative to the folder
            that all files lie in), sizes, heads and tails of the files, dtypes and shapes. Of a
            folder whose files are the records it is names, sizes and times of change, so a copy
            that does not keep the times is another data set.
    """

    def __init__(self, fields: Mapping[str, Field], parts: Mapping[str, Sequence[Part]]) -> None:
        self.fields = fields
        self.parts = parts
        self.selection: Selection | None = None
        self.paths, numbers = _numbered(parts)
        self._columns = {name: columns_over(some, numbers[name]) for name, some in parts.items()}
        lengths = {name: len(columns) for name, columns in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise DataError(
                "fields differ in length",
                got=", ".join(f"{name} {length}" for name, length in lengths.items()),
                expected="as many records in each",
            )
        self._num_records = next(iter(lengths.values()))
        self.fingerprint = _fingerprint(fields, parts)

    def __len__(self) -> int:
        return self._num_records

    @property
    def num_stored(self) -> int:
        """Records in the files, those that a view leaves out too."""
        return len(next(iter(self._columns.values())))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}: {field}" for name, field in self.fields.items())
        return f"<{len(self)} records of {fields} in {len(self.paths)} files>"

    def __getitem__(self, key: Any) -> Self:
        """A view of the records of a slice, of an array of indexes, or of an array of bools.

        Its records have indexes of their own, from 0 on in the order of the key; indexes may repeat
        and do not count from the end. Slices take no memory, arrays 8 bytes a record.

        Raises:
            DataError: something else, or an index that is out of range.
        """
        return self.selected(selection_of(key, len(self)))

    def split(self, fraction: float, seed: int = 0) -> tuple[Self, Self]:
        """Two views that share no record and have all: a random part, and the rest.

        The same for the same seed and number of records, in constant memory. Each view has its
        records in a random order, also for a SequentialOrder.

        Args:
            fraction: of the records that the first view has, rounded to whole records.
            seed: a whole number, at least 0.

        Raises:
            DataError: one of them is out of range.
        """
        require_whole("the seed", seed, 0)
        if isinstance(fraction, bool) or not 0 < fraction < 1:
            raise DataError("the fraction is wrong", got=repr(fraction), expected="between 0 and 1")
        whole = range(len(self))
        count = round(fraction * len(self))
        first, second = (
            self.selected(Drawn(seed, len(self), some)) for some in (whole[:count], whole[count:])
        )
        return first, second

    def selected(self, selection: Selection) -> Self:
        """A view by a selection of one's own."""
        view = copy.copy(self)
        outer = self.selection
        view.selection = selection if outer is None else Chained(outer, selection)
        view._num_records = len(selection)
        text = f"headrace view 1\n{self.fingerprint}\n{selection.identity}"
        view.fingerprint = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
        return view

    def spans(self, indices: NDArray[np.int64], field: str) -> Spans:
        """Where the bytes of one field of R records lie.

        Args:
            indices: int64[R], in [0, len(self)); any order, repeats allowed.
            field: its name.

        Raises:
            DataError: no such field, one whose records are not in the files as they are, or an
                index that is no whole number or out of range.
        """
        column = self._column(field)
        if not isinstance(column, InBytes):
            in_bytes = ", ".join(repr(name) for name in self.fields if self.is_in_bytes(name))
            raise DataError(
                "the records of this field are not in the files as they are",
                got=repr(field),
                expected=in_bytes or None,
                remedy="headrace.Loader brings all fields",
            )
        return column.spans(self._chosen(indices))

    def lengths(self, field: str) -> NDArray[np.int64]:
        """int64[len(self)]: the bytes of one field of each record, as they lie in the files.

        Raises:
            DataError: as of spans.
        """
        lengths = np.empty(len(self), np.int64)
        for start in range(0, len(self), _MOST_AT_ONCE):
            some = np.arange(start, min(start + _MOST_AT_ONCE, len(self)))
            lengths[some] = self.spans(some, field).record_lengths
        return lengths

    def is_in_bytes(self, field: str) -> bool:
        """Whether the records of a field are bytes in the files, which ``spans`` finds."""
        return isinstance(self._column(field), InBytes)

    def found(self, indices: NDArray[np.int64], field: str) -> NDArray[Any] | InGroups:
        """What takes the place of spans for a field that is not in bytes.

        Returns:
            dtype[R, *shape], the values, or where they are in groups that the format decodes.

        Raises:
            DataError: as of spans; or the field is in bytes.
        """
        column = self._column(field)
        if isinstance(column, InBytes):
            raise DataError("the records of this field are bytes in the files", got=repr(field))
        return column.found(self._chosen(indices))

    def _column(self, field: str) -> InBytes | Known | Grouped:
        column = self._columns.get(field)
        if column is None:
            raise DataError(
                "no such field", got=repr(field), expected=", ".join(map(repr, self.fields))
            )
        return column

    def _chosen(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Records of a view as those of the whole."""
        indices = self._checked(indices)
        return indices if self.selection is None else self.selection(indices)

    def _checked(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DataError(
                "indexes of records must be a 1-D array of whole numbers",
                got=f"{array.dtype} of shape {array.shape}",
            )
        return in_range(array, self._num_records)


def _numbered(
    parts: Mapping[str, Sequence[Part]],
) -> tuple[tuple[Path, ...], dict[str, list[int]]]:
    """The files that must be read, and per field the number of each part's file, or first file."""
    paths: list[Path] = []
    number: dict[Path, int] = {}
    numbers: dict[str, list[int]] = {}
    for name, some in parts.items():
        numbers[name] = []
        for path, column in some:
            if isinstance(column, Files):
                numbers[name].append(len(paths))
                folder = str(column.folder)
                paths += [Path(f"{folder}/{inner}") for inner in column.names]
            elif isinstance(column, Values):
                numbers[name].append(-1)
            else:
                if path not in number:
                    number[path] = len(paths)
                    paths.append(path)
                numbers[name].append(number[path])
    return tuple(paths), numbers


def _fingerprint(fields: Mapping[str, Field], parts: Mapping[str, Sequence[Part]]) -> str:
    """32 hexadecimal digits; two small reads a file, but of files that are records."""
    every = [part for some in parts.values() for part in some]
    whole = {path for path, column in every if isinstance(column, Files | Values)}
    paths = list(dict.fromkeys(path for path, _ in every if path not in whole))
    folder = os.path.commonpath([*(path.parent for path in paths), *whole])
    names = {path: path.relative_to(folder).as_posix() for path in (*paths, *whole)}
    digest = hashlib.blake2b(b"headrace records 2", digest_size=16)
    for path in paths:
        source = reading(path, source_of, path)
        digest.update(f"\n{names[path]!r} {source['bytes']} {source['ends']}".encode())
    for name, some in parts.items():
        one = fields[name]
        facts = one.dtype.str, one.shape, identity_of(one.format), dict(one.about)
        digest.update(os.fsencode(f"\n{name!r} {facts}"))
        for path, column in some:
            places = (column.start_bytes, column.stride_bytes) if isinstance(column, Layout) else ()
            digest.update(f"\n{names[path]!r} {column.num_records} {places}".encode())
            if isinstance(column, Values):
                digest.update(column.array.tobytes())
            elif isinstance(column, Files):
                # Names, sizes and times: to look into a million files would take minutes.
                digest.update(os.fsencode("\0".join(column.names)))
                digest.update(column.sizes.tobytes() + column.changed_ns.tobytes())
    return digest.hexdigest()
