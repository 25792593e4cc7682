"""Arrow's IPC files and streams (.arrow, .feather, Hugging Face data sets), read in place."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.arrow_types import Leaf, decode_value, leaves_of, need_pyarrow
from headrace.data.formats.column import ANY_LENGTH, BYTE, Column, Refused, Runs
from headrace.data.formats.format import Format
from headrace.data.formats.layout import Layout
from headrace.data.formats.mapped import Mapped
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Arrow"]

_FILE_MAGIC = b"ARROW1"
_CONTINUED = b"\xff\xff\xff\xff"  # before each message of a stream
_MOST_HEADER_BYTES = 1 << 28


@final
@dataclass(frozen=True)
class Arrow(Format):
    """A field a column: numbers as arrays, text as str, bytes, lists of numbers as arrays.

    Members of a column of structs are fields of their own, "image.bytes". Columns that have nulls
    or are compressed, packed, dictionary-encoded or nested deeper are refused when they are asked
    for. Places come from the file's own offsets, so there is no other index.

    Source: arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
    Communication".
    """

    name: ClassVar[str] = "arrow"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By the magic number of a file, or the first message of a stream."""
        if head.startswith(_FILE_MAGIC):
            return True
        size = int.from_bytes(head[4:8], "little")
        # The message is a flatbuffer, whose first word says where in it the root is.
        root = int.from_bytes(head[8:12], "little")
        is_sane = 8 <= size < _MOST_HEADER_BYTES and size % 8 == 0 and 4 <= root < size
        return head.startswith(_CONTINUED) and len(head) >= 12 and is_sane

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """From the headers of the record batches.

        Raises:
            DataError: the file is damaged, or pyarrow is missing.
        """
        with _opened(path) as (body, schema, batches):
            found = leaves_of(schema, path, is_decoded=False)
            builders = {
                name: _Builder(path, body, leaf)
                for name, leaf in found.items()
                if isinstance(leaf, Leaf)
            }
            for batch in batches:
                for builder in builders.values():
                    builder.add(batch)
                if builders and all(builder.refused for builder in builders.values()):
                    break  # a compressed file, say: each batch would be unpacked for nothing
            return {
                name: leaf if isinstance(leaf, Refused) else builders[name].column()
                for name, leaf in found.items()
            }

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """Bytes, a str, or an array; see decode_value."""
        return decode_value(record, about)


@dataclass(frozen=True)
class _Body:
    """The mapped file, by which addresses become offsets."""

    address: int
    size_bytes: int

    def offset(self, buffer: Any) -> int | None:
        """Where a buffer lies in the file; None if it is elsewhere in memory."""
        offset: int = buffer.address - self.address
        return offset if 0 <= offset <= self.size_bytes - buffer.size else None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[_Body, Any, Iterator[Any]]]:
    """The mapped file, its schema and its record batches."""
    pyarrow = need_pyarrow()
    with path.open("rb") as file:
        magic = file.read(len(_FILE_MAGIC))
    if not magic:
        raise DataError("the file is empty", got="0 bytes", where=path)
    with pyarrow.memory_map(str(path)) as source:
        whole = source.read_buffer()
        try:
            if magic == _FILE_MAGIC:
                reader = pyarrow.ipc.open_file(whole)
                batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                reader = pyarrow.ipc.open_stream(whole)
                batches = iter(reader)
            yield _Body(whole.address, whole.size), reader.schema, batches
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise _damaged(path, str(error).partition("\n")[0]) from error


def _damaged(path: Path, got: str) -> DataError:
    return DataError(
        "the Arrow file is damaged or truncated",
        got=got,
        where=path,
        remedy="copy or write it again",
    )


@final
class _Builder:
    """Gathers where the records of one column lie, batch by batch."""

    def __init__(self, path: Path, body: _Body, leaf: Leaf) -> None:
        self._path = path
        self._body = body
        self._leaf = leaf
        self._layouts: list[Layout] = []
        self._pieces: list[tuple[int, int, int, int]] = []
        self._num_nulls = 0
        self._width = 0
        self.refused: Refused | None = None

    def add(self, batch: Any) -> None:
        """The records of the next batch."""
        if batch.num_rows == 0 or self.refused:
            return
        array = batch.column(batch.schema.get_field_index(self._leaf.path[0]))
        num_nulls = array.null_count
        for member in self._leaf.path[1:]:
            array = array.field(array.type.get_field_index(member))
            num_nulls += array.null_count
        if self._leaf.kind == "numbers":
            self._add_numbers(array, num_nulls)
        else:
            self._add_pieces(array, num_nulls)

    def column(self) -> Column:
        """All of them."""
        leaf = self._leaf
        if self.refused:
            return self.refused
        if leaf.kind != "numbers":
            pieces = np.array(self._pieces, np.int64).reshape(-1, 4)
            return _Pieces(self._path, self._body.size_bytes, pieces, self._width, leaf)
        none = Layout(leaf.dtype, leaf.record_shape, 0, 0, 0)
        return Runs(tuple(self._layouts) or (none,))

    def _add_numbers(self, array: Any, num_nulls: int) -> None:
        first, num_records = 0, len(array)
        array = getattr(array, "storage", array)  # of a tensor
        while hasattr(array, "values"):
            first = (first + array.offset) * array.type.list_size
            array = array.values
            num_nulls += array.null_count
        leaf, shape = self._leaf, self._leaf.record_shape
        stride = leaf.dtype.itemsize * math.prod(shape)
        begin = (first + array.offset) * array.type.bit_width // 8
        start = self._place(num_nulls, array.buffers()[-1], begin, num_records * stride)
        if start is not None:
            self._layouts.append(Layout(leaf.dtype, shape, num_records, start, stride))

    def _add_pieces(self, array: Any, num_nulls: int) -> None:
        begin = 0
        _, offsets, data = array.buffers()[:3]
        if self._leaf.kind == "list":
            values = array.values
            num_nulls += values.null_count
            begin = values.offset * self._leaf.dtype.itemsize
            data = values.buffers()[1]
        self._width = 8 if str(array.type).startswith("large_") else 4
        size = 0 if data is None else data.size - begin
        start = self._place(num_nulls, data, begin, size)
        table_bytes = (len(array) + 1) * self._width
        table = self._place(num_nulls, offsets, array.offset * self._width, table_bytes)
        if start is None or table is None:
            return
        if table % self._width:
            self.refused = Refused("its offsets are not aligned", f"byte {table}", "write it again")
            return
        self._pieces.append((len(array), table, start, size))

    def _place(self, num_nulls: int, buffer: Any, begin: int, num_bytes: int) -> int | None:
        """Where in the file so many bytes of a buffer lie, from its byte `begin` on.

        None if they are refused.
        """
        if num_nulls:
            got = f"{num_nulls} nulls in a record batch"
            self.refused = Refused("records lack a value", got, "fill them (fill_null)")
            return None
        if num_bytes == 0:
            return 0
        size = 0 if buffer is None else buffer.size
        if size < begin + num_bytes:
            raise _damaged(self._path, f"{size} bytes where {begin + num_bytes} belong")
        offset = self._body.offset(buffer)
        if offset is None:
            self.refused = Refused(
                "its bytes are not in the file as they are",
                "compressed, or in another byte order",
                "write it again without compression",
            )
            return None
        return offset + begin


@final
class _Pieces:
    """Records of any length, whose offsets the file has itself: record batches one after another.

    Args:
        path: the file.
        size_bytes: its size.
        pieces: int64[B, 4], of each batch its records, where its offsets and its bytes begin, and
            how many bytes it has.
        width: of an offset, 4 or 8 bytes.
        leaf: the column.
    """

    dtype: ClassVar[np.dtype[Any]] = BYTE
    shape: ClassVar[tuple[int | None, ...]] = ANY_LENGTH
    first_missing: ClassVar[int | None] = None

    def __init__(
        self, path: Path, size_bytes: int, pieces: NDArray[np.int64], width: int, leaf: Leaf
    ) -> None:
        self._path = path
        self._file = Mapped(path, size_bytes)
        counts, self._offsets, self._starts, self._sizes = pieces.T
        self._stops = np.cumsum(counts)
        self._firsts = self._stops - counts
        self._word = np.dtype(f"<i{width or 4}")
        self._item_bytes = leaf.dtype.itemsize
        self.about: Mapping[str, Any] = leaf.about

    @property
    def num_records(self) -> int:
        """How many."""
        return int(self._stops[-1]) if len(self._stops) else 0

    def lookup(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and lengths of records.

        Raises:
            DataError: the file has changed, or its offsets are damaged.
        """
        if not len(indices):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        batch = np.searchsorted(self._stops, indices, side="right")
        # Who asks for all at once keeps them; in many files that is many mappings.
        content = self._file.content(keep=len(indices) < self.num_records)
        words = content[: len(content) // 8 * 8].view(self._word)
        at = self._offsets[batch] // self._word.itemsize + indices - self._firsts[batch]
        begins, ends = (
            words[places].astype(np.int64) * self._item_bytes for places in (at, at + 1)
        )
        wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > self._sizes[batch]))
        if len(wrong):
            raise DataError(
                "the offsets of an Arrow column are damaged",
                got=f"bytes {begins[wrong[0]]} to {ends[wrong[0]]}",
                expected=f"some of {self._sizes[batch[wrong[0]]]}, in order",
                where=f"{self._path}, record {indices[wrong[0]]}",
            )
        return self._starts[batch] + begins, ends - begins
