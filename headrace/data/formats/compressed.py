"""Files that are compressed as a whole: which compression they have, and their bytes unpacked."""

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from headrace.errors import DataError, RunError

__all__ = ["HEAD_BYTES", "compression_of", "head_of", "name_of", "unpacking"]

HEAD_BYTES = 512
"""Of a file, enough to tell its format."""

_MAGIC: Mapping[bytes, str] = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".zstd", ".lz4")
_OF_ARCHIVES = (".tgz", ".tbz2", ".txz", ".tzst")


def compression_of(head: bytes) -> str | None:
    """What a file is compressed by, from its first bytes; None if it is not."""
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def name_of(path: Path) -> str:
    """The name that a file has once it is unpacked."""
    suffix = path.suffix.lower()
    if suffix in _OF_ARCHIVES:
        return f"{path.stem}.tar"
    return path.stem if suffix in _SUFFIXES else path.name


def head_of(path: Path) -> bytes:
    """The first bytes of what a compressed file holds; b"" where they cannot be had."""
    try:
        with path.open("rb") as file, unpacking(file) as unpacked:
            return bytes(unpacked.read(HEAD_BYTES))
    except (DataError, RunError):
        return b""


@contextmanager
def unpacking(file: BinaryIO) -> Iterator[BinaryIO]:
    """The bytes that a compressed file holds, to be read in order.

    Args:
        file: opened to be read, at its begin.

    Raises:
        DataError: it is damaged or cut short, or is not compressed.
        RunError: a package that unpacks it is missing.
    """
    compression = compression_of(file.read(HEAD_BYTES))
    file.seek(0)
    if compression is None:
        raise DataError("the file is not compressed", where=file.name)
    try:
        with _opened(file, compression) as unpacked:
            yield unpacked
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(
            f"the {compression} file is damaged",
            got=error,
            where=file.name,
            remedy="copy or download it again",
        ) from error


def _opened(file: BinaryIO, compression: str) -> Any:
    if compression == "gzip":
        return gzip.open(file)
    if compression == "bzip2":
        return bz2.open(file)
    if compression == "xz":
        return lzma.open(file)
    try:
        import pyarrow
    except ImportError as error:
        raise RunError(
            f"{compression} files need the package pyarrow",
            where=file.name,
            remedy=f"pip install headrace[arrow], or unpack it by {compression}",
        ) from error
    return pyarrow.CompressedInputStream(file, compression)
