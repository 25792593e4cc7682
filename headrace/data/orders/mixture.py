"""Mixing data sets: each position from the data set whose turn it is by weight."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd, lcm
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.order import Identity, RandomOrder, checked_positions, require_whole
from headrace.errors import DataError

__all__ = ["MixtureOrder"]

_MOST_PARTS = 1 << 16


@final
@dataclass(frozen=True)
class MixtureOrder:
    """Data sets interleaved by weight; within each one a random order, pass after pass.

    Whose turn it is repeats after a period of at most 65536 positions, in which data set k has a
    number of turns in proportion to its weight: exactly so for whole numbers of a sum up to 65536,
    else to a 65536th. Turns are spread evenly: after any number T of positions data set k
    has had w_k T (w_k its share of K), and at most (1 + K w_k) / 2 more or less. So a batch holds
    the mixture, not just an epoch.

    The n-th turn of a data set of N_k records is position n mod N_k of its pass n // N_k, each in a
    RandomOrder of its own. Turns are counted on from epoch to epoch: no record comes twice before
    all others of its data set have come once. Each position is computed by itself.

    Args:
        sizes: the number of records of each data set, which lie one after another.
        weights: of each; above 0.
        seed: a whole number, at least 0.
        epoch_length: positions of an epoch; None is the sum of the sizes.

    Raises:
        DataError: they are something else, or a weight is below a 65536th of the sum.
    """

    sizes: Sequence[int]
    weights: Sequence[float]
    seed: int = 0
    epoch_length: int | None = None
    version: ClassVar[int] = 1
    _turns: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _whose: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    _number: NDArray[np.int64] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_whole("the seed", self.seed, 0)
        if self.epoch_length is not None:
            require_whole("epoch_length", self.epoch_length, 0)
        if len(self.sizes) != len(self.weights) or not self.sizes:
            raise DataError(
                "a mixture needs data sets, and a weight for each",
                got=f"{len(self.sizes)} sizes and {len(self.weights)} weights",
            )
        for size in self.sizes:
            require_whole("the size of a data set", size, 1)
        turns = _turns(self.weights)
        object.__setattr__(self, "sizes", tuple(self.sizes))
        object.__setattr__(self, "weights", tuple(self.weights))
        object.__setattr__(self, "_turns", turns)
        whose, number = _interleaved(turns)
        object.__setattr__(self, "_whose", whose)
        object.__setattr__(self, "_number", number)

    @property
    def identity(self) -> Identity:
        """Kind, version, seed, sizes, turns of each data set in a period, length of an epoch."""
        return {
            "kind": "mixture",
            "version": self.version,
            "seed": self.seed,
            "sizes": list(self.sizes),
            "turns": list(self._turns),
            "epoch_length": self.num_positions(sum(self.sizes)),
        }

    def num_positions(self, num_records: int) -> int:
        """The length of an epoch; see Order."""
        if num_records != sum(self.sizes):
            raise DataError(
                "the order mixes data sets of another number of records",
                got=f"{num_records} records",
                expected=f"{sum(self.sizes)}, of sizes {', '.join(map(str, self.sizes))}",
            )
        return num_records if self.epoch_length is None else self.epoch_length

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order."""
        positions = checked_positions(self, positions, num_records, epoch)
        num_positions = self.num_positions(num_records)
        if (epoch + 1) * num_positions >= 1 << 63:
            raise DataError("no such epoch", got=epoch, expected="fewer than 2^63 records before")
        periods, places = np.divmod(positions + epoch * num_positions, len(self._whose))
        found = np.empty_like(positions)
        first = 0
        for k, size in enumerate(self.sizes):
            mine = self._whose[places] == k
            turns = periods[mine] * self._turns[k] + self._number[places[mine]]
            found[mine] = first + self._passes(k, size, turns)
            first += size
        return found

    def _passes(self, k: int, size: int, turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The records of data set k at these of its turns."""
        text = f"headrace mixture order {self.version}, seed {self.seed}, data set {k}"
        order = RandomOrder(int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()))
        passes, within = np.divmod(turns, size)
        found = np.empty_like(turns)
        for number in np.unique(passes).tolist():
            some = passes == number
            found[some] = order.indices(within[some], size, number)
        return found


def _turns(weights: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to the weights, of a sum up to _MOST_PARTS.

    As they are, if their sum allows; else by the rule of the largest remainders.
    """
    for weight in weights:
        if isinstance(weight, bool) or not 0 < weight < float("inf"):
            raise DataError("a weight is wrong", got=weight, expected="a finite number above 0")
    exact = [Fraction(weight) for weight in weights]
    whole = Fraction(lcm(*(share.denominator for share in exact)))
    scale = min(whole, _MOST_PARTS / sum(exact, Fraction()))
    exact = [share * scale for share in exact]
    turns = [int(share) for share in exact]
    if min(turns) < 1:
        raise DataError(
            "a weight is too small beside the others",
            got=min(weights),
            expected=f"at least 1/{_MOST_PARTS} of their sum",
        )
    by_remainder = sorted(range(len(turns)), key=lambda k: turns[k] - exact[k])
    for k in by_remainder[: int(sum(exact)) - sum(turns)]:
        turns[k] += 1
    divisor = gcd(*turns)
    return tuple(number // divisor for number in turns)


def _interleaved(turns: Sequence[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each position of a period whose turn it is, and the how-manieth of that data set.

    The j-th of c turns is due at (j + 1/2) / c of the period; sorted by that (Webster's rule).
    """
    whose = np.repeat(np.arange(len(turns)), turns)
    number = np.concatenate([np.arange(count) for count in turns])
    due = (2 * number + 1) / np.array(turns)[whose]
    in_turn = np.argsort(due, kind="stable")
    return whose[in_turn], number[in_turn]
