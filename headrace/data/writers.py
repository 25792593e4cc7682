"""What writes records in a standard format: one class a format."""

import io
import json
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.checksums import crc32c
from headrace.data.decoding import Batch
from headrace.data.formats.csr import INDPTR, ITEM
from headrace.data.formats.frames import TAIL_BYTES, masked
from headrace.data.formats.sparse import SparseRows
from headrace.data.records import Field
from headrace.errors import DataError
from headrace.files import appearing

__all__ = ["WRITERS", "Writer"]


class Writer(Protocol):
    """Writes a data set batch by batch, in the block of the stack that it was made with.

    Args:
        fields: of the records, by name.
        target: the file or folder to make; it has its name only once it is whole.
        num_records: how many will come.
        stack: whose end is that of the writing; what fails in it leaves nothing behind.

    Raises:
        DataError: the fields do not go into the format.
    """

    def __init__(
        self, fields: Mapping[str, Field], target: Path, num_records: int, stack: ExitStack
    ) -> None: ...

    def write(self, batch: Batch, size: int) -> None:
        """The next so many records.

        Raises:
            DataError: a value does not go into the format.
        """

    def finish(self) -> None:
        """All records have come."""


@final
class _Npy:
    """A folder with an array a field."""

    def __init__(
        self, fields: Mapping[str, Field], target: Path, num_records: int, stack: ExitStack
    ) -> None:
        for name, field in fields.items():
            if field.has_any_length:
                raise DataError(
                    f"records of field {name!r} have no common shape",
                    expected="arrays",
                    remedy="write them as tar or tfrecord; of LIBSVM text, as csr",
                )
        stack.enter_context(_folder(target))
        self._arrays = {}
        for name, field in fields.items():
            temporary = stack.enter_context(appearing(target / f"{name}.npy"))
            self._arrays[name] = np.lib.format.open_memmap(
                temporary, "w+", field.dtype.newbyteorder("="), (num_records, *field.record_shape)
            )
        self._num_written = 0

    def write(self, batch: Batch, size: int) -> None:
        for name, array in self._arrays.items():
            array[self._num_written : self._num_written + size] = batch[name]
        self._num_written += size

    def finish(self) -> None:
        """Nothing is left to do."""


@final
class _Tar:
    """An archive with a member a record and field, as WebDataset has them."""

    def __init__(
        self, fields: Mapping[str, Field], target: Path, num_records: int, stack: ExitStack
    ) -> None:
        path = stack.enter_context(appearing(target))
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

    def finish(self) -> None:
        """The tar's own end comes as it is closed."""


@final
class _TFRecord:
    """A file whose records are those of the one field."""

    def __init__(
        self, fields: Mapping[str, Field], target: Path, num_records: int, stack: ExitStack
    ) -> None:
        if len(fields) != 1 or not next(iter(fields.values())).has_any_length:
            raise DataError(
                "the fields do not go into TFRecord",
                got=_listed(fields),
                expected="one field of bytes, text or JSON",
                remedy="name it (--fields), or write them as tar",
            )
        self._file = stack.enter_context(stack.enter_context(appearing(target)).open("wb"))

    def write(self, batch: Batch, size: int) -> None:
        ((name, values),) = batch.items()
        for row in range(size):
            content, _ = _content(name, values[row])
            length = len(content).to_bytes(8, "little")
            head = length + _checksum(length)
            self._file.write(head + content + _checksum(content))

    def finish(self) -> None:
        """Nothing is left to do."""


@final
class _CSR:
    """An archive of arrays; see formats.csr."""

    def __init__(
        self, fields: Mapping[str, Field], target: Path, num_records: int, stack: ExitStack
    ) -> None:
        others = [name for name in fields if name != "features"]
        if "features" not in fields or set(others) & {"items", "indptr", "shape"}:
            raise DataError(
                "the fields do not go into sparse rows",
                got=_listed(fields),
                expected="features, as of LIBSVM text, and numbers such as label",
                remedy="write them as tar",
            )
        self._path = stack.enter_context(appearing(target))
        # The number of items stands before them, and is known at the end.
        self._items = stack.enter_context(TemporaryFile(dir=target.parent))
        self._indptr = np.zeros(num_records + 1, INDPTR)
        self._num_features = 0
        self._others: dict[str, list[NDArray[Any]]] = {name: [] for name in others}
        self._num_written = 0

    def write(self, batch: Batch, size: int) -> None:
        rows = batch["features"]
        if not isinstance(rows, SparseRows):
            raise DataError(
                "the features are no sparse rows",
                got=type(rows).__name__,
                expected="those of LIBSVM text",
                remedy="write them as tar",
            )
        items = np.empty(len(rows.indices), ITEM)
        items["index"], items["value"] = rows.indices, rows.data
        self._items.write(items.tobytes())
        self._num_features = max(self._num_features, rows.shape[1])
        begin = self._num_written + 1
        self._indptr[begin : begin + size] = self._indptr[begin - 1] + rows.indptr[1:]
        for name, values in self._others.items():
            if not isinstance(batch[name], np.ndarray):
                raise DataError(
                    f"values of field {name!r} do not go into an array",
                    got=type(batch[name]).__name__,
                    remedy="leave it out (--fields), or write as tar",
                )
            values.append(batch[name])
        self._num_written += size

    def finish(self) -> None:
        shape = np.array([self._num_written, self._num_features], INDPTR)
        arrays = {"indptr": self._indptr, "shape": shape}
        for name, values in self._others.items():
            arrays[name] = np.concatenate(values) if values else np.empty(0)
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array)
            with archive.open("items.npy", "w", force_zip64=True) as member:
                header = {
                    "descr": np.lib.format.dtype_to_descr(ITEM),
                    "fortran_order": False,
                    "shape": (int(self._indptr[-1]),),
                }
                np.lib.format.write_array_header_1_0(member, header)
                self._items.seek(0)
                shutil.copyfileobj(self._items, member, 1 << 20)


WRITERS: Mapping[str, type[Writer]] = {
    "npy": _Npy,
    "tar": _Tar,
    "tfrecord": _TFRecord,
    "csr": _CSR,
}


@contextmanager
def _folder(path: Path) -> Iterator[None]:
    """A new folder, which goes again if what should fill it fails."""
    path.mkdir()
    try:
        yield
    except BaseException:
        path.rmdir()
        raise


def _listed(fields: Mapping[str, Field]) -> str:
    return ", ".join(f"{name}: {field}" for name, field in fields.items())


def _checksum(content: bytes) -> bytes:
    return int(masked(crc32c(np.frombuffer(content, np.uint8)))).to_bytes(TAIL_BYTES, "little")


def _content(name: str, value: Any) -> tuple[bytes, str]:
    """A value as the bytes of a member, and the extension that says what they are.

    Raises:
        DataError: it is neither bytes nor text nor an array, and no JSON.
    """
    if isinstance(value, bytes):
        return value, name
    if isinstance(value, str):
        return value.encode(), _named(name, "txt")
    if isinstance(value, np.ndarray | np.generic):
        buffer = io.BytesIO()
        np.save(buffer, np.asarray(value))
        return buffer.getvalue(), _named(name, "npy")
    try:
        return json.dumps(value, ensure_ascii=False).encode(), _named(name, "json")
    except TypeError as error:
        raise DataError(
            f"a value of field {name!r} cannot be written",
            got=type(value).__name__,
            expected="bytes, text, an array, or what JSON can hold",
        ) from error


def _named(name: str, extension: str) -> str:
    return name if name.endswith(extension) else f"{name}.{extension}"
