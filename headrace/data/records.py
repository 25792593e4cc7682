"""What a data set on disk is: named fields whose records lie in files, read in place."""

import glob
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats import FORMATS, Layout, detect, scan
from headrace.data.plan import Spans
from headrace.errors import DataError

__all__ = ["Field", "Records", "Source", "open"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a glob (sorted), or a list of them (in its order)."""

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_END_BYTES = 4096  # of a file's head and tail, for the fingerprint


@dataclass(frozen=True)
class Field:
    """What a record has under one name.

    Args:
        dtype: of the elements in the file, with their byte order; arrays arrive in native order.
        shape: of one record.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class _Column:
    """Where the records of a field lie: file j has those up to stops[j], at one stride."""

    files: NDArray[np.int32]  # numbers into Records.paths
    begins: NDArray[np.int64]  # the file's first byte of records
    stops: NDArray[np.int64]  # records in the files up to and with this one
    stride_bytes: int
    record_bytes: int


@final
class Records:
    """A data set on disk; made by ``headrace.open``. ``len`` is its number of records.

    Attributes:
        fields: name -> Field.
        paths: the files, absolute, which spans refer to by number.
        fingerprint: short text that changes when the data set does: names (relative to the folder
            that all files lie in), sizes, heads and tails of the files, dtypes and shapes.
    """

    def __init__(self, layouts: Mapping[str, Sequence[tuple[Path, Layout]]]) -> None:
        self.paths: tuple[Path, ...] = tuple(
            dict.fromkeys(path for parts in layouts.values() for path, _ in parts)
        )
        number = {path: position for position, path in enumerate(self.paths)}
        self.fields: Mapping[str, Field] = {
            name: Field(parts[0][1].dtype, parts[0][1].shape) for name, parts in layouts.items()
        }
        self._columns = {name: _column(parts, number) for name, parts in layouts.items()}
        self._num_records = _common_length(self._columns)
        self.fingerprint = _fingerprint(self.paths, layouts)

    def __len__(self) -> int:
        return self._num_records

    def __repr__(self) -> str:
        fields = ", ".join(
            f"{name}: {field.dtype}{list(field.shape)}" for name, field in self.fields.items()
        )
        return f"<{len(self)} records of {fields} in {len(self.paths)} files>"

    def spans(self, indices: NDArray[np.int64], field: str) -> Spans:
        """Where the bytes of one field of R records lie.

        Args:
            indices: int64[R], in [0, len(self)); any order, repeats allowed.
            field: its name.

        Raises:
            DataError: no such field, or an index that is no whole number or out of range.
        """
        column = self._columns.get(field)
        if column is None:
            raise DataError("no such field", got=repr(field), expected=_named(self.fields))
        indices = self._checked(indices)
        if len(column.files) == 1:
            files = np.full(len(indices), column.files[0], np.int32)
            offsets = indices * column.stride_bytes + column.begins[0]
        else:
            part = np.searchsorted(column.stops, indices, side="right")
            files = column.files[part]
            firsts = np.concatenate([[0], column.stops[:-1]])
            offsets = (indices - firsts[part]) * column.stride_bytes + column.begins[part]
        lengths = np.full(len(indices), column.record_bytes, np.int64)
        return Spans(files, offsets, lengths, np.arange(len(indices) + 1, dtype=np.int64))

    def _checked(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        array = np.asarray(indices)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise DataError(
                "indexes of records must be a 1-D array of whole numbers",
                got=f"{array.dtype} of shape {array.shape}",
            )
        array = array.astype(np.int64, copy=False)
        if array.size and not 0 <= array.min() <= array.max() < self._num_records:
            wrong = array[(array < 0) | (array >= self._num_records)][0]
            expected = f"0 to {self._num_records - 1}" if self._num_records else "none: it is empty"
            raise DataError("no such record", got=wrong, expected=expected)
        return array


def open(
    source: Source | Mapping[str, Source], format: str | None = None, **options: object
) -> Records:
    """Opens a data set where it lies; nothing is copied and the files are never written.

    Args:
        source: a path, a glob (its files in sorted order are one data set) or a list of these; or
            a mapping of field names to them, for fields that lie in different files.
        format: "npy", "idx" or "windows"; None looks at the files: .npy and IDX are recognised.
        options: of the format. "windows" takes length, stride (by default the length) and ahead.

    Returns:
        The records. Their field is called "data" ("window", and "next" with ahead, for windows)
        unless ``source`` names them.

    Raises:
        DataError: a file that is missing, damaged or of another format, dtype or shape than the
            rest; fields that differ in length; a glob without files; wrong options.
    """
    if format is not None and format not in FORMATS:
        raise DataError("unknown format", got=repr(format), expected=_named(FORMATS))
    if not isinstance(source, Mapping):
        return Records(_layouts(source, format, options))
    if not source:
        raise DataError("no fields", got="{}", expected="{name: path or glob, ...}")
    layouts = {}
    for name, files in source.items():
        if not isinstance(name, str):
            raise DataError("a field's name is not text", got=repr(name))
        found = _layouts(files, format, options)
        if len(found) > 1:
            raise DataError(
                "ahead= gives two fields, which a mapping cannot name",
                got=f"a mapping of {_named(source)}",
                expected="a path, a glob or a list",
            )
        (layouts[name],) = found.values()
    return Records(layouts)


def _layouts(
    source: Source, format: str | None, options: Mapping[str, object]
) -> dict[str, list[tuple[Path, Layout]]]:
    """Per field the files and what is in them, all of one format, dtype and shape."""
    paths = _paths(source)
    if format is None:
        format = _common_format(paths)
    found: dict[str, list[tuple[Path, Layout]]] = {}
    for path in paths:
        for name, layout in _reading(path, scan, path, format, options).items():
            found.setdefault(name, []).append((path, layout))
    for parts in found.values():
        first_path, first = parts[0]
        for path, layout in parts:
            if (layout.dtype, layout.shape) != (first.dtype, first.shape):
                raise DataError(
                    "files of one data set differ",
                    got=f"{layout.dtype} of shape {list(layout.shape)} a record",
                    expected=f"{first.dtype} of shape {list(first.shape)} as in {first_path}",
                    where=path,
                )
    return found


def _paths(source: Source) -> list[Path]:
    """The files of a path, a glob or a list."""
    if isinstance(source, str | os.PathLike):
        return _reading(source, _files, os.fspath(source))
    if not isinstance(source, Sequence) or isinstance(source, bytes):
        raise DataError("not a path", got=repr(source), expected="a path, a glob or a list of them")
    if not source:
        raise DataError("no files", got="an empty list", expected="at least one path")
    return [path for part in source for path in _paths(part)]


def _files(name: str) -> list[Path]:
    """Absolute, so that a later change of the working directory changes nothing."""
    path = Path(os.path.abspath(name))
    if path.is_dir():
        raise DataError("a folder is not a data set", got=repr(name), remedy=f"try {path / '*'}")
    if path.exists():
        found = [path]
    elif glob.has_magic(name):
        matches = (
            Path(os.path.abspath(match)) for match in sorted(glob.glob(name, recursive=True))
        )
        found = [match for match in matches if not match.is_dir()]
        if not found:
            raise DataError("no file matches", got=repr(name), where=os.getcwd())
    else:
        raise DataError("no such file", got=repr(name), where=os.getcwd())
    for match in found:
        if match.exists() and not match.is_file():
            raise DataError("not a regular file, which could be read anywhere", got=match)
    return found


def _common_format(paths: Sequence[Path]) -> str:
    first = _reading(paths[0], detect, paths[0])
    for path in paths[1:]:
        format = _reading(path, detect, path)
        if format != first:
            raise DataError(
                "two formats in one data set",
                got=format,
                expected=f"{first} as in {paths[0]}",
                where=path,
                remedy="give a glob that leaves out the others",
            )
    return first


def _reading(
    path: object,
    function: Callable[_Arguments, _Result],
    *args: _Arguments.args,
    **kwargs: _Arguments.kwargs,
) -> _Result:
    """Calls what looks into a file; what the system refuses becomes an error that names it."""
    try:
        return function(*args, **kwargs)
    except OSError as error:
        raise DataError("a file cannot be read", got=error.strerror, where=path) from error


def _column(parts: Sequence[tuple[Path, Layout]], number: Mapping[Path, int]) -> _Column:
    filled = [(path, layout) for path, layout in parts if layout.num_records] or parts[:1]
    layout = filled[0][1]
    return _Column(
        files=np.array([number[path] for path, _ in filled], np.int32),
        begins=np.array([layout.start_bytes for _, layout in filled], np.int64),
        stops=np.cumsum([layout.num_records for _, layout in filled], dtype=np.int64),
        stride_bytes=layout.stride_bytes,
        record_bytes=layout.record_bytes,
    )


def _common_length(columns: Mapping[str, _Column]) -> int:
    lengths = {name: int(column.stops[-1]) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            "fields differ in length",
            got=", ".join(f"{name} {length}" for name, length in lengths.items()),
            expected="as many records in each",
        )
    return next(iter(lengths.values()))


def _fingerprint(
    paths: Sequence[Path], layouts: Mapping[str, Sequence[tuple[Path, Layout]]]
) -> str:
    """32 hexadecimal digits; two small reads a file."""
    folder = os.path.commonpath([path.parent for path in paths])
    names = {path: path.relative_to(folder).as_posix() for path in paths}
    digest = hashlib.blake2b(b"headrace records 1", digest_size=16)
    for path in paths:
        size_bytes, ends = _reading(path, _ends, path)
        digest.update(f"\n{names[path]!r} {size_bytes} ".encode() + hashlib.blake2b(ends).digest())
    for name, parts in layouts.items():
        digest.update(f"\n{name!r}".encode())
        for path, layout in parts:
            facts = (layout.dtype.str, layout.shape, layout.num_records)
            places = (layout.start_bytes, layout.stride_bytes)
            digest.update(f"\n{names[path]!r} {facts} {places}".encode())
    return digest.hexdigest()


def _ends(path: Path) -> tuple[int, bytes]:
    """A file's size, and its first and last bytes."""
    with path.open("rb") as file:
        head = file.read(_END_BYTES)
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(len(head), size_bytes - _END_BYTES))
        return size_bytes, head + file.read(_END_BYTES)


def _named(names: Sequence[str] | Mapping[str, object]) -> str:
    return ", ".join(map(repr, names))
