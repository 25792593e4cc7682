"""What a format may find of a field in a file: where its records lie, or what they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.layout import Layout
from headrace.errors import DataError

__all__ = [
    "ANY_LENGTH",
    "BYTE",
    "Column",
    "Files",
    "Groups",
    "Located",
    "Refused",
    "Runs",
    "Table",
    "Values",
]

BYTE: np.dtype[Any] = np.dtype(np.uint8)
ANY_LENGTH = (None,)
"""The shape of a record that is so many bytes as it is; what they mean the format says."""


class Located(Protocol):
    """Records anywhere in the file, each in one piece. What most formats find is a Table.

    Attributes:
        num_records: how many the file has.
        dtype: of the elements of records that all have one shape; else bytes.
        shape: of one record; ANY_LENGTH where each has its own number of bytes, which the format's
            ``decode`` makes a value of.
        about: what ``decode`` must know of the file; JSON can hold it.
        first_missing: the first record that lacks this field, or None.
    """

    @property
    def num_records(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def shape(self) -> tuple[int | None, ...]: ...
    @property
    def about(self) -> Mapping[str, Any]: ...
    @property
    def first_missing(self) -> int | None: ...

    def lookup(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and lengths of records."""
        ...


@dataclass(frozen=True)
class Table:
    """Records anywhere in the file: record i is the lengths[i] bytes from offsets[i] on.

    Args:
        offsets: int64[N].
        lengths: int64[N]; -1 where the file lacks this field of a record that has others.
        dtype: as of Located.
        shape: as of Located.
        about: as of Located.
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


@final
@dataclass(frozen=True)
class Runs:
    """Several layouts of one dtype and shape, one after another in one file; at least one."""

    layouts: tuple[Layout, ...]


@final
@dataclass(frozen=True)
class Files:
    """Records that are files, whole: record i is all of file i.

    Args:
        folder: absolute.
        names: N paths relative to the folder.
        sizes: int64[N], in bytes.
        changed_ns: int64[N], when each was last written.
        about: as of Located.
    """

    folder: Path
    names: Sequence[str]
    sizes: NDArray[np.int64]
    changed_ns: NDArray[np.int64]
    about: Mapping[str, Any] = field(default_factory=dict)

    dtype: ClassVar[np.dtype[Any]] = BYTE
    shape: ClassVar[tuple[int | None, ...]] = ANY_LENGTH

    @property
    def num_records(self) -> int:
        """How many files."""
        return len(self.names)


@final
@dataclass(frozen=True)
class Values:
    """The values themselves, which looking at the file has told; no read brings them.

    Args:
        array: dtype[N, *shape], in native byte order.
        about: as of Located.
    """

    array: NDArray[Any]
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """How many."""
        return len(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the elements."""
        return self.array.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one record."""
        return self.array.shape[1:]


@final
@dataclass(frozen=True)
class Groups:
    """Records that only come in groups, which the format's ``open_groups`` decodes as a whole.

    Args:
        num_rows: int64[G], the records of each group.
        dtype: of the values; bytes where they are no numbers.
        shape: of one value; ANY_LENGTH where a batch is a list of values.
        about: as of Located.
    """

    num_rows: NDArray[np.int64]
    dtype: np.dtype[Any] = BYTE
    shape: tuple[int | None, ...] = ANY_LENGTH
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_records(self) -> int:
        """How many the file has."""
        return int(self.num_rows.sum())


@final
@dataclass(frozen=True)
class Refused:
    """A field that the file has and that cannot be read; whoever asks for it hears why.

    Args:
        what: what is wrong with it, in a few words.
        got: what it is.
        remedy: what the user can do.
    """

    what: str
    got: str
    remedy: str

    def error(self, name: str, path: Path) -> DataError:
        """The error of who asked for this field of a file."""
        return DataError(
            f"field {name!r} cannot be read: {self.what}",
            got=self.got,
            where=path,
            remedy=f"{self.remedy}, or open the other fields: fields=(...)",
        )


Column = Layout | Runs | Located | Files | Values | Groups | Refused
"""What a format finds of one field in one file."""
