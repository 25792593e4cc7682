"""NumPy's .npz files whose arrays are stored as they are: a zip archive of .npy files."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, final

from headrace.data.formats.format import Format
from headrace.data.formats.layout import Layout
from headrace.data.formats.npy import MAX_HEADER_BYTES, columns_at
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Npz", "arrays_in"]

_LOCAL_HEADER_BYTES = 30  # before the member's name; its last four bytes are two lengths


@final
@dataclass(frozen=True)
class Npz(Format):
    """A field for each array, by its name; all must have as many records.

    Source: numpy.savez; PKWARE's APPNOTE, 4.3.7 "Local file header".
    """

    name: ClassVar[str] = "npz"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """A zip archive, by its magic number."""
        return head.startswith(b"PK\x03\x04")

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Layout]:
        """From the archive's directory and the arrays' headers.

        Raises:
            DataError: no zip archive, or one that is compressed or holds other things than arrays;
                an array that cannot be read in place.
        """
        return {
            (name if part == "data" else f"{name}.{part}"): layout
            for name, found in arrays_in(path).items()
            for part, layout in found.items()
        }


def arrays_in(path: Path) -> dict[str, dict[str, Layout]]:
    """Where the records of each array of an archive lie, by the array's name; see columns_at.

    Raises:
        DataError: see Npz.scan.
    """
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            arrays = {
                member.filename.removesuffix(".npy"): columns_at(path, *_place(path, file, member))
                for member in archive.infolist()
            }
    except zipfile.BadZipFile as error:
        raise DataError(
            "the archive is damaged", got=error, where=path, remedy="copy or write it again"
        ) from error
    if not arrays:
        raise DataError("the archive holds no array", got="an empty archive", where=path)
    return arrays


def _place(path: Path, file: BinaryIO, member: zipfile.ZipInfo) -> tuple[bytes, int, int]:
    """The first bytes of a member, where it begins, and its size."""
    if not member.filename.endswith(".npy"):
        raise DataError(
            "the archive holds something else than arrays",
            got=member.filename,
            expected="names that end in .npy",
            where=path,
            remedy="unpack it",
        )
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise DataError(
            "an array in the archive is compressed, so its records cannot be read in place",
            got=member.filename,
            where=path,
            remedy="write it by np.savez, which does not compress, or as .npy files",
        )
    file.seek(member.header_offset)
    lengths = file.read(_LOCAL_HEADER_BYTES)[-4:]
    if len(lengths) < 4:
        raise zipfile.BadZipFile(f"{member.filename} has no header")
    name_bytes, extra_bytes = lengths[:2], lengths[2:]
    begin = member.header_offset + _LOCAL_HEADER_BYTES
    begin += int.from_bytes(name_bytes, "little") + int.from_bytes(extra_bytes, "little")
    file.seek(begin)
    return file.read(min(member.file_size, 12 + MAX_HEADER_BYTES)), begin, member.file_size
