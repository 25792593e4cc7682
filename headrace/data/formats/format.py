"""What a format is: it finds where records lie, and knows what their bytes mean."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import ANY_LENGTH, BYTE, Column, Table
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = [
    "ANY_LENGTH",
    "BYTE",
    "Column",
    "DecodedGroup",
    "Format",
    "GroupFile",
    "Table",
    "bytes_of",
    "describe",
    "identity_of",
    "of_decoding",
]

_OF_DECODING: Mapping[str, str] = {"of": "decoding"}


class DecodedGroup(Protocol):
    """One field of a group of records, in memory."""

    @property
    def num_bytes(self) -> int:
        """Of memory."""
        ...

    def take(self, rows: NDArray[np.int64]) -> NDArray[Any] | list[Any]:
        """The values of records by their place in the group: an array, or a list of objects.

        Raises:
            ValueError: one of them has no value; says which.
        """
        ...


class GroupFile(Protocol):
    """A file whose records come in groups, opened."""

    def decode(self, field: str, group: int) -> DecodedGroup:
        """One field of a group.

        Raises:
            ValueError: its bytes are damaged; says how.
        """
        ...

    def close(self) -> None:
        """No group is decoded after this."""
        ...


class Format(Protocol):
    """A file format. To make your own, derive from this, and write ``scan`` and ``decode``.

    A format is a value: a frozen dataclass, whose attributes are the options that ``headrace.open``
    takes. See docs/formats.md for one in thirty lines.

    Attributes:
        name: what ``headrace.open(format=)`` and messages call it.
        takes_folders: whether a folder may be meant; then ``matches`` is asked of folders too.
        takes_any_bytes: whether files that are compressed, say, may be meant.
        is_indexed: whether ``scan`` must read the file through, so that its result is worth keeping
            beside the file; False where a look at a header is enough.
        version: raised whenever ``scan`` finds something else in the same file than before.
    """

    name: ClassVar[str]
    takes_folders: ClassVar[bool] = False
    takes_any_bytes: ClassVar[bool] = False
    is_indexed: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """Whether a file is of this format, by its name and its first 512 bytes."""
        return False

    def files(self, path: Path) -> Sequence[Path]:
        """What to scan where a path was given: the path, or the files that it is a list of.

        Raises:
            DataError: the list is damaged.
        """
        return (path,)

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """Where the records of each field lie in a file.

        Args:
            path: the file.
            progress: hears of long scans: ``progress.update({"bytes": read so far})``.

        Raises:
            DataError: the file is damaged, or not of this format.
        """
        raise NotImplementedError

    def join(self, abouts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """What ``decode`` is told of all files together, from what each of them said; see Table.

        Raises:
            ValueError: they do not go together; says why.
        """
        if any(about != abouts[0] for about in abouts):
            raise ValueError(f"{next(about for about in abouts if about != abouts[0])}")
        return abouts[0]

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """The value of one record of ANY_LENGTH from its bytes; by default bytes.

        The bytes may lie in memory that is used again: what is kept of them must be a copy.

        Raises:
            ValueError: the bytes are damaged; says how. Reader and loader add where.
        """
        return record.tobytes()

    def collate(self, field: str, values: list[Any], about: Mapping[str, Any]) -> Any:
        """What a batch holds of so many decoded values; by default the list itself."""
        return values

    def decode_batch(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> Any:
        """What a batch holds of records of ANY_LENGTH, all at once: for formats that do this faster
        than ``decode`` of each and ``collate``, with the same result.

        Args:
            field: its name.
            memory: uint8[any], which is used again.
            begins: int64[R], where in it each record begins.
            lengths: int64[R], its bytes.
            about: as of decode.

        Returns:
            The batch; None leaves it to decode and collate. So must be done where a record is
            damaged, since decode finds out which. By default the bytes, unless there is a decode.
        """
        if type(self).decode is Format.decode and type(self).collate is Format.collate:
            return bytes_of(memory, begins, lengths)
        return None

    def open_groups(self, path: Path) -> GroupFile:
        """A file of which ``scan`` found Groups, to decode them."""
        raise DataError("the format has no groups", got=self.name, where=path)


def bytes_of(
    memory: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> list[bytes]:
    """The bytes of each record, copied; see Format.decode_batch for the arguments."""
    whole = memory.data
    starts, stops = begins.tolist(), (begins + lengths).tolist()
    return [whole[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]


def of_decoding(default: Any) -> Any:
    """An option of a format's dataclass that ``decode`` or ``join`` heeds and ``scan`` does not, so
    that an index is good for all its values."""
    return field(default=default, metadata=_OF_DECODING)


def identity_of(format: Format, *, scan: bool = False) -> str:
    """Text that two formats share if they find the same values in the same file.

    Args:
        format: one.
        scan: leave out the options that do not change where the records are found.
    """
    kind = f"{type(format).__module__}.{type(format).__qualname__} {format.version}"
    if is_dataclass(format):
        options = {
            option.name: getattr(format, option.name)
            for option in fields(format)
            if not (scan and option.metadata == _OF_DECODING)
        }
    else:
        options = dict(sorted(vars(format).items()))
    return f"{kind} {options!r}"


def describe(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """A field's type for messages, such as "uint8[28, 28]" or "bytes"."""
    return "bytes" if tuple(shape) == ANY_LENGTH else f"{dtype}{list(shape)}"
