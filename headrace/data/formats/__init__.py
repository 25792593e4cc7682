"""File formats: which one a file has, and where in it the records of each field lie."""

from collections.abc import Mapping
from pathlib import Path

from headrace.data.formats import idx, npy, windows
from headrace.data.formats.layout import Layout
from headrace.errors import DataError

__all__ = ["FORMATS", "Layout", "detect", "scan"]

FORMATS = ("npy", "idx", "windows")

_PACKED = (
    (b"\x1f\x8b", "gzip", "gunzip it"),
    (b"PK\x03\x04", "zip (an .npz, perhaps)", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "zstd", "unpack it"),
    (b"BZh", "bzip2", "unpack it"),
    (b"\xfd7zXZ", "xz", "unpack it"),
)


def detect(path: Path) -> str:
    """The format that a file's first bytes tell: "npy" or "idx".

    Raises:
        DataError: neither; the file may be empty or compressed.
    """
    head = _head(path)
    if head.startswith(npy.MAGIC):
        return "npy"
    if idx.is_idx(head):
        return "idx"
    raise DataError(
        "the file's format is not known",
        got=f"the first bytes {head.hex(' ')}",
        expected="a .npy or IDX file",
        where=path,
        remedy='for text or bytes give format="windows" and length=',
    )


def _head(path: Path) -> bytes:
    """The first bytes of a file that is neither empty nor compressed."""
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise DataError("the file is empty", got="0 bytes", where=path)
    for magic, name, remedy in _PACKED:
        if head.startswith(magic):
            raise DataError(
                "the file is compressed, so its records cannot be read in place",
                got=name,
                where=path,
                remedy=remedy,
            )
    return head


def scan(path: Path, format: str, options: Mapping[str, object]) -> dict[str, Layout]:
    """The layout of each field in a file; formats of one field call it "data".

    Args:
        path: the file.
        format: one of FORMATS.
        options: what the format takes: nothing, or length, stride and ahead of windows.

    Raises:
        DataError: the file is not what the format says, or an option is unknown, missing or wrong.
    """
    known = ("length", "stride", "ahead") if format == "windows" else ()
    unknown = [name for name in options if name not in known]
    if unknown:
        raise DataError(
            f'format "{format}" has no such option',
            got=", ".join(unknown),
            expected=", ".join(known) or "none",
        )
    if format == "windows":
        if "length" not in options:
            raise DataError('format "windows" needs length=, the bytes of a window')
        return windows.scan(path, **options)  # type: ignore[arg-type]
    _head(path)
    return {"data": npy.scan(path) if format == "npy" else idx.scan(path)}
