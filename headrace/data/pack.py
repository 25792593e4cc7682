"""Rewrites records, in their order or shuffled, into a standard format that is read in place."""

import io
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Protocol, final

import numpy as np

from headrace.data.batch_reader import BatchReader
from headrace.data.checksums import crc32c
from headrace.data.decoding import Batch
from headrace.data.formats.frames import TAIL_BYTES, masked
from headrace.data.order import Order
from headrace.data.records import Records
from headrace.errors import DataError
from headrace.files import appearing
from headrace.progress import Progress

__all__ = ["PackedFormat", "pack"]

PackedFormat = Literal["npy", "tar", "tfrecord"]

_BATCH = 256


def pack(
    records: Records, target: Path, format: PackedFormat, order: Order, progress: Progress
) -> None:
    """Writes a data set anew.

    "npy": fields of one shape, each as ``target/<field>.npy``. "tar": any fields, a member each as
    WebDataset has them; arrays as .npy. "tfrecord": one field of bytes or text. What is written
    has its name only once it is whole.

    Args:
        records: what to write.
        target: a folder to make for "npy", else a file.
        format: of what is written.
        order: which record comes when; epoch 0 of it.
        progress: is told ``records`` written so far and ``num_records``.

    Raises:
        DataError: the target exists, or the fields do not go into the format.
        ReadError: a record could not be read; nothing is left behind.
    """
    if format not in ("npy", "tar", "tfrecord"):
        raise DataError("unknown format to write", got=format, expected="npy, tar or tfrecord")
    if target.exists():
        raise DataError("the target exists", got=target, remedy="give another name, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        writer: _Writer
        if format == "npy":
            writer = _Npy(records, target, order, stack)
        elif format == "tar":
            writer = _Tar(stack.enter_context(appearing(target)), stack)
        else:
            writer = _TFRecord(records, stack.enter_context(appearing(target)), stack)
        num_done, num_records = 0, order.num_positions(len(records))
        for batch, size in _batches(records, order):
            writer.write(batch, size)
            num_done += size
            progress.update({"records": num_done, "num_records": num_records})


def _batches(records: Records, order: Order) -> Iterator[tuple[Batch, int]]:
    """All records in the order, the next batch under way while one is written."""
    num_positions = order.num_positions(len(records))
    every = (
        order.indices(np.arange(start, min(start + _BATCH, num_positions)), len(records), 0)
        for start in range(0, num_positions, _BATCH)
    )
    with BatchReader(records, tuple(records.fields)) as reader:
        for indices, batch in reader.batches(every, num_ahead=1):
            yield batch, len(indices)


class _Writer(Protocol):
    def write(self, batch: Batch, size: int) -> None:
        """The next so many records."""


@final
class _Npy:
    """An array a field."""

    def __init__(self, records: Records, folder: Path, order: Order, stack: ExitStack) -> None:
        for name, field in records.fields.items():
            if field.has_any_length:
                raise DataError(
                    f"records of field {name!r} have no common shape",
                    expected="arrays",
                    remedy="write them as tar or tfrecord",
                )
        num_records = order.num_positions(len(records))
        folder.mkdir()
        self._arrays = {}
        for name, field in records.fields.items():
            temporary = stack.enter_context(appearing(folder / f"{name}.npy"))
            self._arrays[name] = np.lib.format.open_memmap(
                temporary, "w+", field.dtype.newbyteorder("="), (num_records, *field.record_shape)
            )
        self._num_written = 0

    def write(self, batch: Batch, size: int) -> None:
        for name, array in self._arrays.items():
            array[self._num_written : self._num_written + size] = batch[name]
        self._num_written += size


@final
class _Tar:
    """A member a record and field."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self._tar = stack.enter_context(tarfile.open(path, "w", format=tarfile.USTAR_FORMAT))
        self._num_written = 0

    def write(self, batch: Batch, size: int) -> None:
        for row in range(size):
            for name, values in batch.items():
                content, extension = _content(name, values[row])
                member = tarfile.TarInfo(f"{self._num_written:09}.{extension}")
                member.size = len(content)
                self._tar.addfile(member, io.BytesIO(content))
            self._num_written += 1


@final
class _TFRecord:
    """A record a record."""

    def __init__(self, records: Records, path: Path, stack: ExitStack) -> None:
        if len(records.fields) != 1 or not next(iter(records.fields.values())).has_any_length:
            raise DataError(
                "the fields do not go into TFRecord",
                got=", ".join(f"{name}: {field}" for name, field in records.fields.items()),
                expected="one field of bytes or text",
                remedy="name it (--fields), or write them as tar",
            )
        self._file = stack.enter_context(path.open("wb"))

    def write(self, batch: Batch, size: int) -> None:
        ((name, values),) = batch.items()
        for row in range(size):
            content, _ = _content(name, values[row])
            length = len(content).to_bytes(8, "little")
            head = length + _checksum(length)
            self._file.write(head + content + _checksum(content))


def _checksum(content: bytes) -> bytes:
    return int(masked(crc32c(np.frombuffer(content, np.uint8)))).to_bytes(TAIL_BYTES, "little")


def _content(name: str, value: Any) -> tuple[bytes, str]:
    """A value as the bytes of a member, and the extension that says what they are."""
    if isinstance(value, bytes):
        return value, name
    if isinstance(value, str):
        return value.encode(), name if name.endswith("txt") else f"{name}.txt"
    if isinstance(value, np.ndarray | np.generic):
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value))
        return buffer.getvalue(), f"{name}.npy"
    raise DataError(
        f"a value of field {name!r} cannot be written",
        got=type(value).__name__,
        expected="bytes, text or an array",
    )
