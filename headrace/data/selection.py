"""Which records of a data set a view of it has: arithmetic where that is enough, else a list."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.permutation import keyed_bijection, keys_of
from headrace.errors import DataError

__all__ = [
    "Chained",
    "Drawn",
    "Joined",
    "Listed",
    "Selection",
    "Sliced",
    "in_range",
    "selection_of",
]


class Selection(Protocol):
    """A function from the indexes of a view to those of what it is a view of."""

    @property
    def identity(self) -> str:
        """Text that tells selections apart."""

    def __len__(self) -> int:
        """Records of the view."""

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        """Their indexes in what it is a view of; int64[P] in [0, len) to int64[P]."""


@final
@dataclass(frozen=True)
class Sliced:
    """Those of a slice."""

    range: range

    @property
    def identity(self) -> str:
        """Start, step and length."""
        return f"sliced {self.range.start} {self.range.step} {len(self.range)}"

    def __len__(self) -> int:
        return len(self.range)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return indices * self.range.step + self.range.start


@final
class Listed:
    """Those of a list, in its order, repeats included; 8 bytes each."""

    def __init__(self, indices: NDArray[np.int64]) -> None:
        self._indices = indices

    @property
    def identity(self) -> str:
        """A hash of them all."""
        return f"listed {hashlib.blake2b(self._indices.tobytes(), digest_size=16).hexdigest()}"

    def __len__(self) -> int:
        return len(self._indices)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._indices[indices]


@final
@dataclass(frozen=True)
class Drawn:
    """A stretch of a random permutation of all records, whatever their number in no memory.

    Stretches that do not overlap have no record in common.

    Args:
        seed: of the permutation.
        num_records: of the whole.
        range: the stretch.
    """

    seed: int
    num_records: int
    range: range

    @property
    def identity(self) -> str:
        """What fixes them; 1 is the version."""
        return f"drawn 1 {self.seed} {self.range.start} {len(self.range)} of {self.num_records}"

    def __len__(self) -> int:
        return len(self.range)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        keys = keys_of(f"headrace split 1, seed {self.seed}")
        return keyed_bijection(indices + self.range.start, self.num_records, keys)


@final
@dataclass(frozen=True)
class Chained:
    """A view of a view.

    Args:
        outer: the view that lies nearer to the files.
        inner: the selection from it.
    """

    outer: Selection
    inner: Selection

    @property
    def identity(self) -> str:
        """Of both."""
        return f"({self.inner.identity}) of ({self.outer.identity})"

    def __len__(self) -> int:
        return len(self.inner)

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.outer(self.inner(indices))


@final
class Joined:
    """Views of several data sets, one after another, over these data sets one after another.

    Args:
        selections: of each.
        sizes: the records of the data sets that they are views of.
    """

    def __init__(self, selections: Sequence[Selection], sizes: Sequence[int]) -> None:
        self._selections = selections
        self._stops = np.cumsum([len(selection) for selection in selections])
        self._firsts = np.cumsum([0, *sizes[:-1]])

    @property
    def identity(self) -> str:
        """Of all."""
        return " and ".join(f"({selection.identity})" for selection in self._selections)

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __call__(self, indices: NDArray[np.int64]) -> NDArray[np.int64]:
        part = np.searchsorted(self._stops, indices, side="right")
        found = np.empty_like(indices)
        for number, selection in enumerate(self._selections):
            mine = part == number
            local = indices[mine] - (self._stops[number] - len(selection))
            found[mine] = self._firsts[number] + selection(local)
        return found


def selection_of(key: Any, num_records: int) -> Selection:
    """What ``records[key]`` selects.

    Args:
        key: a slice, indexes from 0 on in any order, or a bool for each record.
        num_records: of what it selects from.

    Raises:
        DataError: it is something else, or names a record that is not there.
    """
    if isinstance(key, slice):
        try:
            return Sliced(range(num_records)[key])
        except (TypeError, ValueError) as error:
            raise DataError("not a slice of records", got=key) from error
    array = np.asarray(key)
    if array.dtype.kind == "b" and array.shape == (num_records,):
        return Listed(np.flatnonzero(array).astype(np.int64))
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            "not a selection of records",
            got=repr(key) if array.ndim == 0 else f"{array.dtype} of shape {array.shape}",
            expected=f"a slice, indexes, or a bool for each of {num_records} records",
            remedy="a Loader gives the records themselves",
        )
    return Listed(in_range(array, num_records).copy())


def in_range(indices: NDArray[Any], num_records: int) -> NDArray[np.int64]:
    """Indexes of records as int64, if there are such records.

    Raises:
        DataError: one is out of range.
    """
    if indices.size and not 0 <= indices.min() <= indices.max() < num_records:
        wrong = indices[(indices < 0) | (indices >= num_records)][0]
        expected = f"0 to {num_records - 1}" if num_records else "none: it is empty"
        raise DataError("no such record", got=wrong, expected=expected)
    return indices.astype(np.int64, copy=False)
