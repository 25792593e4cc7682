"""Which record comes at which position of an epoch, as arithmetic; nothing is ever shuffled."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.permutation import keys_of, permuted
from headrace.errors import DataError

__all__ = [
    "Identity",
    "Order",
    "RandomOrder",
    "SequentialOrder",
    "checked_positions",
    "require_whole",
]

Identity = Mapping[str, int | str | list[int]]
"""What fixes an order, as JSON can hold it."""


class Order(Protocol):
    """Which record comes at each position of an epoch, the same in every process.

    Most orders are bijections: an epoch has as many positions as there are records, and each record
    comes once. Orders that sample (WeightedOrder, MixtureOrder) say themselves how many positions
    an epoch has, and a record may come often, or not at all.
    """

    version: ClassVar[int]

    @property
    def identity(self) -> Identity:
        """What fixes the order: its kind, its version, its parameters; JSON can hold it."""

    def num_positions(self, num_records: int) -> int:
        """Positions of an epoch; for a bijection the number of records, as it is by default.

        Raises:
            DataError: the order does not go with so many records.
        """
        return num_records

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """The records at these positions of an epoch.

        Args:
            positions: int64[P], in [0, num_positions(num_records)).
            num_records: N.
            epoch: counted from 0.

        Returns:
            int64[P], in [0, N).

        Raises:
            DataError: a position or an epoch that is no whole number or out of range.
        """


@final
@dataclass(frozen=True)
class SequentialOrder(Order):
    """Record i at position i, in every epoch: for evaluation, and to see what shuffling gains."""

    version: ClassVar[int] = 1

    @property
    def identity(self) -> Identity:
        """Kind and version."""
        return {"kind": "sequential", "version": self.version}

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """The positions themselves; see Order."""
        return checked_positions(self, positions, num_records, epoch).copy()


@final
@dataclass(frozen=True)
class RandomOrder(Order):
    """A random order of all records, a fresh one each epoch; a pure function of (seed, epoch).

    Up to LARGEST_ARRAY records are sorted by distinct random 64-bit keys, which prefers none of the
    N! orders. Above, a keyed bijection computes each position by itself, in constant memory. Keys
    come from blake2b(seed, epoch), so no (seed, epoch) shares the order of another. What a version
    gives never changes.

    Args:
        seed: a whole number, at least 0.

    Raises:
        DataError: it is something else.
    """

    seed: int = 0
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_whole("the seed", self.seed, 0)

    @property
    def identity(self) -> Identity:
        """Kind, version and seed."""
        return {"kind": "random", "version": self.version, "seed": self.seed}

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order. Up to LARGEST_ARRAY records a call draws the whole order; ask for many."""
        positions = checked_positions(self, positions, num_records, epoch)
        keys = keys_of(f"headrace random order {self.version}, seed {self.seed}, epoch {epoch}")
        return permuted(positions, num_records, keys)


def checked_positions(
    order: Order, positions: NDArray[np.int64], num_records: int, epoch: int
) -> NDArray[np.int64]:
    """The arguments of ``indices``, if they make sense; positions as int64[P].

    Raises:
        DataError: they make none.
    """
    for what, number in (("no such epoch", epoch), ("no such number of records", num_records)):
        if type(number) is not int or number < 0:
            raise DataError(what, got=repr(number), expected="a whole number, at least 0")
    num_positions = order.num_positions(num_records)
    array = np.asarray(positions)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            "positions must be a 1-D array of whole numbers",
            got=f"{array.dtype} of shape {array.shape}",
        )
    if array.size and not 0 <= array.min() <= array.max() < num_positions:
        raise DataError(
            "a position outside the epoch",
            got=f"{array.min()} to {array.max()}",
            expected=f"0 to {num_positions - 1}" if num_positions else "none: there are no records",
        )
    return array.astype(np.int64, copy=False)


def require_whole(what: str, value: object, least: int, most: int | None = None) -> None:
    """Checks a parameter.

    Raises:
        DataError: it is no whole number, too small, or too large.
    """
    if type(value) is not int or value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"{least} to {most}"
        raise DataError(f"{what} is wrong", got=repr(value), expected=f"a whole number, {limits}")
