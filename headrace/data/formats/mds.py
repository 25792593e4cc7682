"""MosaicML's MDS shards, uncompressed: samples whose columns lie one after another."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import ANY_LENGTH, BYTE, Column, Refused, Table
from headrace.data.formats.extensions import value_of
from headrace.data.formats.format import Format, of_decoding
from headrace.data.formats.layout import Layout, exact_size
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Mds"]

_INDEX = "index.json"
_HEADS_AT_ONCE = 1 << 16
_DTYPES = "uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 float32 float64".split()
_DTYPE_OF_CODE: Mapping[int, str] = {
    8: "u1", 9: "i1", 16: "u2", 17: "i2", 18: "f2", 32: "u4", 33: "i4", 34: "f4", 64: "u8",
    65: "i8", 66: "f8",
}  # fmt: skip


@final
@dataclass(frozen=True)
class Mds(Format):
    """A field a column, of an index.json, of the folder that has one, or of shards (.mds).

    Of columns int, uint8 to float64 and ndarray:DTYPE:SHAPE a batch is an array; the values of str,
    bytes, json, str_int, str_float and other ndarrays are what MosaicML's own reader has; of jpeg
    and png they are bytes. Other columns are refused when they are asked for: pkl because a pickle
    can run any code.

    Args:
        decoded: values of jpeg and png are uint8[height, width, 3]; needs Pillow.

    Source: mosaicml-streaming, streaming/base/format/mds.
    """

    decoded: bool = of_decoding(False)

    name: ClassVar[str] = "mds"
    takes_folders: ClassVar[bool] = True
    takes_any_bytes: ClassVar[bool] = True  # a shard begins with the number of its samples

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By the name of a shard, or an index of shards."""
        if not head:
            return path.is_dir() and (path / _INDEX).is_file()
        return path.suffix == ".mds" or (path.name == _INDEX and b'"shards"' in head)

    def files(self, path: Path) -> Sequence[Path]:
        """The shards of an index, in its order; a shard is itself.

        Raises:
            DataError: the index is damaged, or its shards are compressed or missing.
        """
        index = path / _INDEX if path.is_dir() else path
        if index.suffix != ".json":
            return (path,)
        try:
            shards = json.loads(index.read_bytes())["shards"]
            found = [self._shard(index, shard) for shard in shards]
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError("not an index of MDS shards", got=repr(error), where=index) from error
        if not found:
            raise DataError("the index lists no shards", where=index)
        return found

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """From the shard's table of samples; where they have several columns of any length, also
        from the sizes at the head of each.

        Raises:
            DataError: the shard is damaged or truncated.
        """
        offsets, config = _table(path)
        names, encodings = config["column_names"], config["column_encodings"]
        fixed = [_fixed(encoding) for encoding in encodings]
        num_bytes = config["column_sizes"]
        for encoding, one, size in zip(encodings, fixed, num_bytes, strict=True):
            if one is not None and one.nbytes != size:
                raise _damaged(path, f"{size} bytes of {encoding}", f"{one.nbytes}")
        sizes = _sizes(path, offsets, num_bytes, progress)
        num_any = num_bytes.count(None)
        begins = offsets[:-1] + 4 * num_any
        columns: dict[str, Column] = {}
        for name, encoding, one, lengths in zip(names, encodings, fixed, sizes, strict=True):
            if one is None:
                columns[name] = _refused(encoding) or Table(
                    begins, lengths, BYTE, ANY_LENGTH, {"encoding": encoding}
                )
            elif num_any:
                columns[name] = Table(begins, lengths, one.dtype, one.shape)
            else:
                stride = int(offsets[1] - offsets[0]) if len(lengths) else 0
                start = int(begins[0]) if len(lengths) else 0
                columns[name] = Layout(one.dtype, one.shape, len(lengths), start, stride)
            begins = begins + lengths
        return columns

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """What the column's encoding says.

        Raises:
            ValueError: the bytes are not of this encoding.
            RunError: Pillow is missing.
        """
        encoding: str = about["encoding"]
        if encoding.startswith("ndarray"):
            return _array(record, encoding)
        content = record.tobytes()
        if encoding in ("jpeg", "png"):
            return value_of(encoding, content) if self.decoded else content
        if encoding == "bytes":
            return content
        text = content.decode()
        if encoding == "str":
            return text
        if encoding == "json":
            return json.loads(text)
        return int(text) if encoding == "str_int" else float(text)

    def _shard(self, index: Path, shard: Mapping[str, Any]) -> Path:
        if shard["format"] != "mds":
            raise DataError(
                "the shards are of another format",
                got=shard["format"],
                expected="mds",
                where=index,
                remedy="open the files themselves",
            )
        path = index.parent / str(shard["raw_data"]["basename"])
        if not path.is_file():
            packed = shard.get("zip_data")
            if packed and (index.parent / packed["basename"]).is_file():
                raise DataError(
                    "a shard is compressed, so its records cannot be read in place",
                    got=packed["basename"],
                    where=index,
                    remedy="unpack the shards beside it, such as by zstd -d",
                )
            raise DataError("a shard is missing", got=path, where=index, remedy="copy it again")
        return path


def _table(path: Path) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """Where the samples of a shard begin and the last one ends, and what their columns are."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(4)
        num_samples = int.from_bytes(head, "little")
        table_bytes = 4 * (num_samples + 2)
        if len(head) < 4 or table_bytes > size_bytes:
            raise _damaged(path, f"{size_bytes} bytes", f"{table_bytes} for {num_samples} samples")
        offsets = np.frombuffer(file.read(table_bytes - 4), "<u4").astype(np.int64)
        if offsets[0] < table_bytes or (np.diff(offsets) < 0).any():
            raise _damaged(path, "places of samples that do not ascend", "a table of them")
        text = file.read(int(offsets[0]) - table_bytes)
    exact_size(path, size_bytes, int(offsets[-1]), f"{num_samples} samples")
    try:
        config = json.loads(text)
        columns = [config[f"column_{facts}"] for facts in ("names", "encodings", "sizes")]
        if config["version"] != 2 or len({len(facts) for facts in columns}) != 1:
            raise ValueError(f"version {config['version']}, columns {columns}")
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, repr(error), "the columns, of version 2") from error
    return offsets, config


def _damaged(path: Path, got: str, expected: str) -> DataError:
    return DataError(
        "not an MDS shard, or a damaged one",
        got=got,
        expected=expected,
        where=path,
        remedy="copy or write it again",
    )


@dataclass(frozen=True)
class _Fixed:
    """A column whose values are all of one shape."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        num_bytes = self.dtype.itemsize
        for extent in self.shape:
            num_bytes *= extent
        return num_bytes


def _fixed(encoding: str) -> _Fixed | None:
    kind, _, arguments = encoding.partition(":")
    if kind == "int":
        return _Fixed(np.dtype("<i8"), ())
    if kind in _DTYPES:
        return _Fixed(np.dtype(kind).newbyteorder("<"), ())
    dtype, _, shape = arguments.partition(":")
    if kind == "ndarray" and dtype in _DTYPES and shape:
        return _Fixed(np.dtype(dtype).newbyteorder("<"), tuple(map(int, shape.split(","))))
    return None


def _refused(encoding: str) -> Refused | None:
    kind = encoding.partition(":")[0]
    if kind in ("bytes", "str", "json", "str_int", "str_float", "ndarray", "jpeg", "png"):
        return None
    what = "a pickle can run any code" if kind == "pkl" else "its encoding is not known here"
    return Refused(what, encoding, "write it as bytes, json or ndarray")


def _sizes(
    path: Path,
    offsets: NDArray[np.int64],
    fixed: Sequence[int | None],
    progress: Progress,
) -> list[NDArray[np.int64]]:
    """Per column the bytes of each sample."""
    num_samples, num_any = len(offsets) - 1, sum(size is None for size in fixed)
    left = np.diff(offsets) - 4 * num_any - sum(size or 0 for size in fixed)
    heads = left[:, None] if num_any == 1 else _heads(path, offsets, num_any, progress)
    wrong = np.flatnonzero((heads.sum(1) != left) | (left < 0))
    if len(wrong):
        raise DataError(
            "the columns of a sample are not as long as the sample",
            got=f"{heads[wrong[0]].sum()} bytes of any length",
            expected=int(left[wrong[0]]),
            where=f"{path}, record {wrong[0]}",
            remedy="copy or write it again",
        )
    columns = iter(heads.T)
    return [
        next(columns) if size is None else np.full(num_samples, size, np.int64) for size in fixed
    ]


def _heads(
    path: Path, offsets: NDArray[np.int64], num_any: int, progress: Progress
) -> NDArray[np.int64]:
    """int64[N, num_any], the sizes at the head of each sample."""
    heads = np.zeros((len(offsets) - 1, num_any), np.int64)
    if not heads.size:
        return heads
    mapped = np.memmap(path, np.uint8, "r").view(np.ndarray)
    inner = np.arange(4 * num_any)
    for first in range(0, len(heads), _HEADS_AT_ONCE):
        starts = offsets[first : min(first + _HEADS_AT_ONCE, len(heads))]
        # A sample shorter than its head is found by its sizes; here it must only stay in the file.
        places = np.minimum(starts[:, None] + inner, len(mapped) - 1)
        heads[first : first + len(starts)] = mapped[places].view("<u4")
        progress.update({"bytes": int(starts[-1])})
    return heads


def _array(record: NDArray[np.uint8], encoding: str) -> NDArray[Any]:
    """An array that says its own shape, and dtype unless the encoding does.

    Source: NDArray in mosaicml-streaming, streaming/base/format/mds/encodings.py.
    """
    _, _, name = encoding.partition(":")
    content = record.tobytes()
    try:
        at = 0
        if name:
            dtype = np.dtype(name).newbyteorder("<")
        else:
            dtype, at = np.dtype(f"<{_DTYPE_OF_CODE[content[0]]}"), 1
        num_axes, width = content[at] >> 2, 1 << content[at] % 4
        shape = np.frombuffer(content, f"<u{width}", num_axes, at + 1)
        values = np.frombuffer(content, dtype, offset=at + 1 + num_axes * width)
        return values.reshape([int(extent) for extent in shape]).copy()
    except (IndexError, KeyError, TypeError) as error:
        raise ValueError(f"no array: {error!r}") from error
