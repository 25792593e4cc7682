"""Which record comes at which position of an epoch, as arithmetic; nothing is ever shuffled."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError

__all__ = ["LARGEST_ARRAY", "Order", "RandomOrder", "SequentialOrder", "keyed_bijection"]

LARGEST_ARRAY = 1 << 16
"""Up to so many records an epoch's order is drawn as one array; above, it is computed."""

NUM_ROUNDS = 8


class Order(Protocol):
    """A bijection of the positions of an epoch to the records, the same in every process."""

    version: ClassVar[int]

    @property
    def identity(self) -> Mapping[str, int | str]:
        """What fixes the order: its kind, its version, its parameters; JSON can hold it."""

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """The records at these positions of an epoch.

        Args:
            positions: int64[P], in [0, num_records).
            num_records: N.
            epoch: counted from 0.

        Returns:
            int64[P]; over all N positions, each record once.

        Raises:
            DataError: a position or an epoch that is no whole number or out of range.
        """


@final
@dataclass(frozen=True)
class SequentialOrder:
    """Record i at position i, in every epoch: for evaluation, and to see what shuffling gains."""

    version: ClassVar[int] = 1

    @property
    def identity(self) -> Mapping[str, int | str]:
        """Kind and version."""
        return {"kind": "sequential", "version": self.version}

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """The positions themselves; see Order."""
        return _checked(positions, num_records, epoch).copy()


@final
@dataclass(frozen=True)
class RandomOrder:
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
        if type(self.seed) is not int or self.seed < 0:
            raise DataError(
                "the seed is wrong", got=repr(self.seed), expected="a whole number, at least 0"
            )

    @property
    def identity(self) -> Mapping[str, int | str]:
        """Kind, version and seed."""
        return {"kind": "random", "version": self.version, "seed": self.seed}

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order. Up to LARGEST_ARRAY records a call draws the whole order; ask for many."""
        positions = _checked(positions, num_records, epoch)
        text = f"headrace random order {self.version}, seed {self.seed}, epoch {epoch}"
        digest = hashlib.blake2b(text.encode(), digest_size=8 * NUM_ROUNDS).digest()
        keys = np.frombuffer(digest, "<u8").astype(np.uint64)
        if num_records <= LARGEST_ARRAY:
            return _drawn(num_records, keys)[positions]
        return keyed_bijection(positions, num_records, keys)


def _drawn(num_records: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Sorts by random numbers; drawn again should two be equal, so that no order is preferred."""
    raw = np.random.Philox(key=keys[:2], counter=0)
    while True:
        numbers = raw.random_raw(num_records)
        order: NDArray[np.int64] = np.argsort(numbers)
        ranked = numbers[order]
        if (ranked[1:] != ranked[:-1]).all():
            return order


def keyed_bijection(
    positions: NDArray[np.int64], num_records: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """A Feistel network over pairs (x, y), x < a, y < b, with a * b the least that holds N.

    Each round adds a keyed hash of one half to the other, modulo its size, which can be undone; so
    the whole is a bijection of [0, a * b). Results of N or more go through again ("cycle walking",
    Black and Rogaway 2002), which leaves a bijection of [0, N). With a = ceil(sqrt(N)) fewer than a
    of a * b numbers walk.

    Args:
        positions: int64[P], in [0, N).
        num_records: N >= 1.
        keys: uint64, one a round.

    Returns:
        int64[P].
    """
    a = math.isqrt(num_records - 1) + 1 if num_records > 1 else 1
    b = -(-num_records // a)
    found = _feistel(positions.astype(np.uint64), a, b, keys)
    outside = np.flatnonzero(found >= num_records)
    while len(outside):
        found[outside] = _feistel(found[outside], a, b, keys)
        outside = outside[found[outside] >= num_records]
    return found.astype(np.int64)


def _feistel(
    numbers: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    size_a, size_b = np.uint64(a), np.uint64(b)
    x, y = np.divmod(numbers, size_b)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            x = (x + _hashed(y, key) % size_a) % size_a
        else:
            y = (y + _hashed(x, key) % size_b) % size_b
    joined: NDArray[np.uint64] = x * size_b + y
    return joined


def _hashed(half: NDArray[np.uint64], key: np.uint64) -> NDArray[np.uint64]:
    """The output function of SplitMix64 (Steele, Lea and Flood 2014) over a keyed start."""
    z = half * np.uint64(0x9E3779B97F4A7C15)
    z += key
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


def _checked(positions: NDArray[np.int64], num_records: int, epoch: int) -> NDArray[np.int64]:
    for what, number in (("no such epoch", epoch), ("no such number of records", num_records)):
        if type(number) is not int or number < 0:
            raise DataError(what, got=repr(number), expected="a whole number, at least 0")
    array = np.asarray(positions)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            "positions must be a 1-D array of whole numbers",
            got=f"{array.dtype} of shape {array.shape}",
        )
    if array.size and not 0 <= array.min() <= array.max() < num_records:
        raise DataError(
            "a position outside the epoch",
            got=f"{array.min()} to {array.max()}",
            expected=f"0 to {num_records - 1}" if num_records else "none: there are no records",
        )
    return array.astype(np.int64, copy=False)
