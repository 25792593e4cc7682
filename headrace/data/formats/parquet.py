"""Parquet files: records come in row groups, each of which is decoded as a whole by pyarrow."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.arrow_types import Leaf, leaves_of, need_pyarrow
from headrace.data.formats.column import Column, Groups, Refused
from headrace.data.formats.format import DecodedGroup, Format
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Parquet"]


@final
@dataclass(frozen=True)
class Parquet(Format):
    """A field a column: numbers as arrays; text, bytes and lists of numbers as lists of values.

    A record cannot be read alone: its row group is decoded, of the columns asked for only, once for
    all records of a batch, and kept as long as memory allows. In a random order over data that
    exceed it that is a row group for nearly every record. For such training write Arrow files, or
    small row groups.

    Numbers must have no nulls; a null among text, bytes and lists is None. Members of a column of
    structs are fields of their own, "image.bytes".

    Source: parquet.apache.org/docs/file-format.
    """

    name: ClassVar[str] = "parquet"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its magic number."""
        return head.startswith(b"PAR1")

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """From the footer.

        Raises:
            DataError: the file is damaged, or pyarrow is missing.
        """
        file = _open(path)
        try:
            metadata = file.metadata
            groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
            num_rows = np.array([group.num_rows for group in groups], np.int64)
            nulls = _nulls(groups)
            found = leaves_of(file.schema_arrow, path, is_decoded=True)
        finally:
            file.close()
        columns: dict[str, Column] = {}
        for name, leaf in found.items():
            if isinstance(leaf, Refused):
                columns[name] = leaf
            elif leaf.kind == "numbers" and nulls.get(name):
                columns[name] = Refused(
                    "records lack a value", f"{nulls[name]} nulls", "fill them (fill_null)"
                )
            else:
                columns[name] = Groups(num_rows, leaf.dtype, leaf.shape, leaf.about)
        return columns

    def open_groups(self, path: Path) -> "_File":
        """The file, opened.

        Raises:
            DataError: it is damaged.
        """
        return _File(path)


@final
class _File:
    """An open file; see GroupFile."""

    def __init__(self, path: Path) -> None:
        self._file = _open(path)
        leaves = leaves_of(self._file.schema_arrow, path, is_decoded=True)
        self._leaves = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Leaf)}

    def decode(self, field: str, group: int) -> DecodedGroup:
        """One column of a row group.

        Raises:
            ValueError: it is damaged, or has nulls among its numbers.
        """
        leaf = self._leaves.get(field)
        if leaf is None or group >= self._file.metadata.num_row_groups:
            raise ValueError("the file has changed since it was opened")
        pyarrow = need_pyarrow()
        try:
            column = self._file.read_row_group(group, columns=[field]).column(0)
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(str(error).partition("\n")[0]) from error
        chunks = [_member(chunk, leaf) for chunk in column.chunks]
        if leaf.kind != "numbers":
            return _Objects(chunks, leaf)
        arrays = [_numbers(chunk, leaf) for chunk in chunks]
        none = np.empty((0, *leaf.record_shape), leaf.dtype)
        return _Numbers(arrays[0] if len(arrays) == 1 else np.concatenate([none, *arrays]))

    def close(self) -> None:
        """Closes it."""
        self._file.close()


@final
class _Numbers:
    """A decoded column of numbers."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array
        self.num_bytes = array.nbytes

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """dtype[R, *shape]."""
        _require(rows, len(self._array))
        return self._array[rows]


@final
class _Objects:
    """A decoded column of text, bytes or lists, still in Arrow's compact form."""

    def __init__(self, chunks: list[Any], leaf: Leaf) -> None:
        self._chunks = chunks
        self._stops = np.cumsum([len(chunk) for chunk in chunks])
        self._leaf = leaf
        self.num_bytes = sum(chunk.nbytes for chunk in chunks)

    def take(self, rows: NDArray[np.int64]) -> list[Any]:
        """R values; None where there is none."""
        _require(rows, int(self._stops[-1]) if len(self._stops) else 0)
        which = np.searchsorted(self._stops, rows, side="right")
        values = []
        for chunk, row in zip(which.tolist(), rows.tolist(), strict=True):
            place = row - (int(self._stops[chunk - 1]) if chunk else 0)
            values.append(self._value(self._chunks[chunk][place]))
        return values

    def _value(self, scalar: Any) -> Any:
        if not scalar.is_valid or self._leaf.kind != "list":
            return scalar.as_py()
        numbers = scalar.values
        if numbers.null_count:
            raise ValueError(f"{numbers.null_count} nulls in a list of numbers")
        return numbers.to_numpy(zero_copy_only=False).astype(self._leaf.dtype)


def _open(path: Path) -> Any:
    """pyarrow's ParquetFile; checks pages against their checksums where they have some."""
    pyarrow = need_pyarrow()
    from pyarrow import parquet

    with path.open("rb") as file:  # what the system refuses, in its own words
        is_empty = not file.read(1)
    if is_empty:
        raise DataError("the file is empty", got="0 bytes", where=path)
    try:
        return parquet.ParquetFile(path, page_checksum_verification=True)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(
            "the Parquet file is damaged or truncated",
            got=str(error).partition("\n")[0],
            where=path,
            remedy="copy or write it again",
        ) from error


def _nulls(groups: list[Any]) -> dict[str, int]:
    """How many nulls the columns have, as far as the footer says."""
    found: dict[str, int] = {}
    for group in groups:
        for index in range(group.num_columns):
            column = group.column(index)
            statistics = column.statistics
            if statistics is not None and statistics.has_null_count and statistics.null_count:
                name = column.path_in_schema
                found[name] = found.get(name, 0) + statistics.null_count
    return found


def _member(chunk: Any, leaf: Leaf) -> Any:
    """The member of a struct, null where the struct is."""
    for _ in leaf.path[1:]:
        (chunk,) = chunk.flatten()  # the other members were not asked for
    return chunk


def _numbers(chunk: Any, leaf: Leaf) -> NDArray[Any]:
    types = need_pyarrow().types
    num_records = len(chunk)
    chunk = getattr(chunk, "storage", chunk)  # of a tensor
    if types.is_dictionary(chunk.type):
        chunk = chunk.dictionary_decode()
    num_nulls = chunk.null_count
    while types.is_fixed_size_list(chunk.type):
        chunk = chunk.flatten()
        num_nulls += chunk.null_count
    if num_nulls:
        raise ValueError(f"{num_nulls} nulls among its numbers; fill them (fill_null)")
    if types.is_fixed_size_binary(chunk.type):
        width = chunk.type.byte_width
        start = chunk.offset * width
        array = np.frombuffer(chunk.buffers()[1], np.uint8)[start : start + len(chunk) * width]
    else:
        array = chunk.to_numpy(zero_copy_only=False)
    return array.astype(leaf.dtype, copy=False).reshape(num_records, *leaf.record_shape)


def _require(rows: NDArray[np.int64], num_rows: int) -> None:
    if len(rows) and int(rows.max()) >= num_rows:
        raise ValueError("the file has changed since it was opened")
