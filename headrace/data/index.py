"""The side-car of a file that had to be read through to know where its records lie."""

import hashlib
import json
import mmap
import os
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.lib.format import descr_to_dtype, dtype_to_descr
from numpy.typing import NDArray

from headrace.data.formats.column import Column, Refused, Table
from headrace.data.formats.format import Format, identity_of
from headrace.data.formats.layout import Layout
from headrace.data.memory import available_memory_bytes
from headrace.errors import DataError
from headrace.files import appearing, cache_folder
from headrace.progress import Progress

__all__ = ["FOLDER", "StoredTable", "columns_of", "index_paths", "read_index", "source_of"]

FOLDER = ".headrace"
"""Beside the data; a glob such as * passes it by."""

_MAGIC = b"headrace index 1\n\0\0\0\0\0\0\0"
_BLOCK_BYTES = 1 << 16  # is checked as a whole when it is first looked at
_ALIGNMENT = 64
_END_BYTES = 4096  # of a file's head and tail


@final
class StoredTable:
    """A Table in a side-car that is mapped, and looked at as far as it is asked for.

    Attributes:
        num_records: how many.
        dtype: as of Table.
        shape: as of Table.
        about: as of Table.
        first_missing: the first record without this field, or None.
    """

    def __init__(self, blocks: "_Blocks", facts: Mapping[str, Any]) -> None:
        self._blocks = blocks
        self.num_records: int = facts["num_records"]
        self.dtype: np.dtype[Any] = descr_to_dtype(_tuples(facts["dtype"]))
        self.shape: tuple[int | None, ...] = tuple(facts["shape"])
        self.about: Mapping[str, Any] = facts["about"]
        self.first_missing: int | None = facts["first_missing"]
        self._offsets = _Packed(blocks, facts["offsets"])
        self._lengths = _Packed(blocks, facts["lengths"]) if "lengths" in facts else None
        self._gap: int = facts.get("gap", 0)
        self._end: int = facts.get("end", 0)

    def lookup(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and lengths of records.

        Raises:
            DataError: the side-car is damaged there.
        """
        offsets = self._offsets.at(indices)
        if self._lengths is not None:
            return offsets, self._lengths.at(indices) - 1
        following = indices + 1
        is_last = following == self.num_records
        nexts = self._offsets.at(np.where(is_last, indices, following))
        return offsets, np.where(is_last, self._end, nexts - self._gap) - offsets


Stored = Layout | StoredTable | Refused


def columns_of(path: Path, format: Format, progress: Progress) -> Mapping[str, Column | Stored]:
    """Where the records of each field lie in a file; from its side-car, which is built if need be.

    Raises:
        DataError: the file is damaged, or was written to meanwhile.
        OSError: it cannot be read.
    """
    if not format.is_indexed:
        return format.scan(path, progress)
    for place in index_paths(path, format):
        found = read_index(place, path, format)
        if found is not None:
            return found
    before = source_of(path)
    columns = format.scan(path, progress)
    after = source_of(path)
    if before != after:
        raise DataError(
            "the file changed while it was being indexed",
            got=f"{after['bytes']} bytes",
            expected=f"{before['bytes']} bytes, and the same time of change",
            where=path,
            remedy="wait until whoever writes it is done",
        )
    refusals = []
    for place in index_paths(path, format):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            _write(place, columns, before, format)
        except OSError as error:
            refusals.append(f"{place.parent}: {error.strerror}")
        else:
            return read_index(place, path, format) or columns
    progress.say(f"the index of {path} is not kept: {'; '.join(refusals)}")
    return columns


def index_paths(path: Path, format: Format) -> tuple[Path, Path]:
    """Where the side-car of a file may be: beside it, or in the user's cache folder."""
    key = hashlib.blake2b(identity_of(format, scan=True).encode(), digest_size=4).hexdigest()
    folder = hashlib.blake2b(os.fsencode(path.parent), digest_size=8).hexdigest()
    name = f"{path.name}.{key}.index"
    return path.parent / FOLDER / name, cache_folder() / "index" / folder / name


def read_index(place: Path, path: Path, format: Format) -> Mapping[str, Stored] | None:
    """What a side-car says of its file; None if there is none, or it is of another state of it.

    Raises:
        DataError: it is damaged.
    """
    try:
        with place.open("rb") as file:
            head = file.read(len(_MAGIC) + 16)
            if len(head) < len(_MAGIC) + 16 or not head.startswith(_MAGIC):
                return None
            size, check = np.frombuffer(head[len(_MAGIC) :], np.uint64).tolist()
            text = file.read(min(size, os.fstat(file.fileno()).st_size))
            if len(text) < size or zlib.crc32(text) != check:
                raise _damaged(place)
            header = json.loads(text)
            if header["format"] != identity_of(format, scan=True) or header["source"] != source_of(
                path
            ):
                return None
            blocks = _Blocks(place, _data_start(size), header["data_bytes"])
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    return {name: _stored(facts, blocks) for name, facts in header["fields"].items()}


def source_of(path: Path) -> dict[str, Any]:
    """What tells one state of a file from another: size, time of change, hash of head and tail."""
    with path.open("rb") as file:
        head = file.read(_END_BYTES)
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(len(head), size_bytes - _END_BYTES))
        ends = hashlib.blake2b(head + file.read(_END_BYTES), digest_size=16).hexdigest()
        changed_ns = os.fstat(file.fileno()).st_mtime_ns
    return {"bytes": size_bytes, "changed_ns": changed_ns, "ends": ends}


def _write(
    place: Path, columns: Mapping[str, Column], source: Mapping[str, Any], format: Format
) -> None:
    """Header, arrays, checksums."""
    arrays: list[tuple[int, NDArray[Any]]] = []
    fields = {name: _facts(column, arrays) for name, column in columns.items()}
    data: NDArray[np.uint8] = np.zeros(_end(arrays), np.uint8)
    for start, array in arrays:
        data[start : start + array.nbytes] = array.view(np.uint8)
    header = {
        "format": identity_of(format, scan=True),
        "source": source,
        "fields": fields,
        "data_bytes": len(data),
    }
    text = json.dumps(header).encode()
    with appearing(place) as temporary, temporary.open("wb") as file:
        file.write(_MAGIC + np.array([len(text), zlib.crc32(text)], np.uint64).tobytes() + text)
        file.write(bytes(_data_start(len(text)) - file.tell()))
        file.write(data.data)
        file.write(_checksums(data).tobytes())


def _data_start(header_bytes: int) -> int:
    return -(-(len(_MAGIC) + 16 + header_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE


def _checksums(data: NDArray[np.uint8]) -> NDArray[np.uint32]:
    starts = range(0, len(data), _BLOCK_BYTES)
    return np.array(
        [zlib.crc32(data[start : start + _BLOCK_BYTES].data) for start in starts], np.uint32
    )


def _facts(column: Column, arrays: list[tuple[int, NDArray[Any]]]) -> dict[str, Any]:
    """A column as JSON; its arrays join the others."""
    if isinstance(column, Refused):
        return {"refused": asdict(column)}
    if not isinstance(column, Layout | Table):
        raise TypeError(f"an index does not keep {type(column).__name__}")
    shared = {"dtype": dtype_to_descr(column.dtype), "shape": column.shape}
    if isinstance(column, Layout):
        if column.pieces is not None:
            raise ValueError("records of several pieces are not kept in an index")
        places = {"start_bytes": column.start_bytes, "stride_bytes": column.stride_bytes}
        return shared | places | {"num_records": column.num_records}
    facts = shared | {
        "num_records": column.num_records,
        "about": dict(column.about),
        "first_missing": column.first_missing,
        "offsets": _pack(column.offsets, arrays),
    }
    ends = column.offsets + column.lengths
    gaps = column.offsets[1:] - ends[:-1]
    if len(ends) and column.first_missing is None and (gaps == gaps[:1]).all():
        return facts | {"gap": int(gaps[0]) if len(gaps) else 0, "end": int(ends[-1])}
    return facts | {"lengths": _pack(column.lengths + 1, arrays)}


def _pack(values: NDArray[np.int64], arrays: list[tuple[int, NDArray[Any]]]) -> dict[str, Any]:
    """Values >= 0 in the narrowest whole numbers, without the zero bits that all of them end in."""
    bits = int(np.bitwise_or.reduce(values)) if len(values) else 0
    shift = (bits & -bits).bit_length() - 1 if bits else 0
    dtype = np.min_scalar_type(bits >> shift)
    start = _end(arrays)
    arrays.append((start, (values >> shift).astype(dtype)))
    return {"start": start, "dtype": dtype.str, "shift": shift, "num": len(values)}


def _end(arrays: list[tuple[int, NDArray[Any]]]) -> int:
    """Where the next array begins."""
    if not arrays:
        return 0
    start, array = arrays[-1]
    return -(-(start + array.nbytes) // _ALIGNMENT) * _ALIGNMENT


@final
class _Packed:
    """One array of a side-car, as _pack left it."""

    def __init__(self, blocks: "_Blocks", facts: Mapping[str, Any]) -> None:
        dtype, num = np.dtype(facts["dtype"]), facts["num"]
        self._blocks = blocks
        self._start: int = facts["start"]
        self._shift: int = facts["shift"]
        self._array = blocks.data[self._start : self._start + num * dtype.itemsize].view(dtype)

    def at(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values at these places."""
        self._blocks.check(self._start + indices * self._array.itemsize)
        values: NDArray[np.int64] = self._array[indices].astype(np.int64)
        return values << self._shift


@final
class _Blocks:
    """The mapped data of a side-car, each block checked when it is first looked at.

    All of it at once, in order, if it fits in memory well: a disk reads that far faster than page
    after page as they are asked for.
    """

    def __init__(self, place: Path, start: int, data_bytes: int) -> None:
        num_blocks = -(-data_bytes // _BLOCK_BYTES)
        self._place = place
        if place.stat().st_size != start + data_bytes + 4 * num_blocks:
            raise _damaged(place)
        mapped: NDArray[np.uint8] = np.empty(0, np.uint8)
        if data_bytes:
            mapped = np.memmap(place, np.uint8, "r", start).view(np.ndarray)
        self.data = mapped[:data_bytes]
        self._checksums = mapped[data_bytes:].copy().view(np.uint32)
        self._unchecked = np.ones(num_blocks, bool)
        self._is_checked = num_blocks == 0

    def check(self, places: NDArray[np.int64]) -> None:
        """Makes sure of the bytes at these places, before they are looked at."""
        if self._is_checked:
            return
        if self._unchecked.all() and len(self.data) <= available_memory_bytes() // 8:
            blocks = np.arange(len(self._unchecked))
        else:
            blocks = np.unique(places // _BLOCK_BYTES)
        for block in blocks[self._unchecked[blocks]].tolist():
            start = block * _BLOCK_BYTES
            if zlib.crc32(self.data[start : start + _BLOCK_BYTES].data) != self._checksums[block]:
                raise _damaged(self._place)
            self._unchecked[block] = False
        self._is_checked = not self._unchecked.any()


def _stored(facts: Mapping[str, Any], blocks: _Blocks) -> Stored:
    """A column as _facts left it."""
    if "refused" in facts:
        return Refused(**facts["refused"])
    if "stride_bytes" not in facts:
        return StoredTable(blocks, facts)
    return Layout(
        descr_to_dtype(_tuples(facts["dtype"])),
        tuple(facts["shape"]),
        facts["num_records"],
        facts["start_bytes"],
        facts["stride_bytes"],
    )


def _tuples(description: Any) -> Any:
    """JSON knows only lists; a structured dtype is described by a list of tuples."""
    if isinstance(description, list):
        return [
            tuple(map(_tuples, part)) if isinstance(part, list) else part for part in description
        ]
    return description


def _damaged(place: Path) -> DataError:
    return DataError(
        "the index is damaged",
        got="another checksum or size than it was written with",
        where=place,
        remedy="delete it; it is built again from the data",
    )
