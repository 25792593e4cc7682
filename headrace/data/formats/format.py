"""What a format is: it finds where records lie, and knows what their bytes mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.layout import Layout
from headrace.progress import Progress

__all__ = ["ANY_LENGTH", "BYTE", "Column", "Format", "Table", "describe", "identity_of"]

BYTE: np.dtype[Any] = np.dtype(np.uint8)
ANY_LENGTH = (None,)
"""The shape of a record that is so many bytes as it is; what they mean the format says."""


@dataclass(frozen=True)
class Table:
    """Records anywhere in the file: record i is the lengths[i] bytes from offsets[i] on.

    Args:
        offsets: int64[N].
        lengths: int64[N]; -1 where the file lacks this field of a record that has others.
        dtype: of the elements of records that all have one shape; else bytes.
        shape: of one record; ANY_LENGTH where each has its own number of bytes, which the format's
            ``decode`` makes a value of.
        about: as of Layout; JSON can hold it.
    """

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    dtype: np.dtype[Any] = BYTE
    shape: tuple[int | None, ...] = ANY_LENGTH
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """How many the file has."""
        return len(self.offsets)

    @property
    def first_missing(self) -> int | None:
        """The first record that lacks this field."""
        missing = np.flatnonzero(self.lengths < 0)
        return int(missing[0]) if len(missing) else None

    def lookup(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and lengths of records."""
        return self.offsets[indices], self.lengths[indices]


Column = Layout | Table
"""Where the records of one field lie in one file."""


class Format(Protocol):
    """A file format. To make your own, derive from this, and write ``scan`` and ``decode``.

    A format is a value: a frozen dataclass, whose attributes are the options that ``headrace.open``
    takes. See docs/formats.md for one in thirty lines.

    Attributes:
        name: what ``headrace.open(format=)`` and messages call it.
        takes_any_bytes: whether files that are compressed, say, may be meant.
        is_indexed: whether ``scan`` must read the file through, so that its result is worth keeping
            beside the file; False where a look at a header is enough.
        version: raised whenever ``scan`` finds something else in the same file than before.
    """

    name: ClassVar[str]
    takes_any_bytes: ClassVar[bool] = False
    is_indexed: ClassVar[bool] = True
    version: ClassVar[int] = 1

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """Whether a file is of this format, by its name and its first 512 bytes."""
        return False

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


def identity_of(format: Format) -> str:
    """Text that two formats share if they find the same records in the same file."""
    kind = f"{type(format).__module__}.{type(format).__qualname__} {format.version}"
    if is_dataclass(format):
        options = {option.name: getattr(format, option.name) for option in fields(format)}
    else:
        options = dict(sorted(vars(format).items()))
    return f"{kind} {options!r}"


def describe(dtype: np.dtype[Any], shape: Sequence[int | None]) -> str:
    """A field's type for messages, such as "uint8[28, 28]" or "bytes"."""
    return "bytes" if tuple(shape) == ANY_LENGTH else f"{dtype}{list(shape)}"
