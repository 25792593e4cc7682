"""Sampling with replacement: each record as often as its weight says."""

import hashlib
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.data.order import Identity, checked_positions, require_whole
from headrace.data.permutation import hashed, keys_of
from headrace.errors import DataError

__all__ = ["WeightedOrder"]

_BLOCK = 1 << 20  # weights looked at together: there may be a billion


@final
class WeightedOrder:
    """At each position record i with probability weights[i] / sum(weights), whatever came before.

    Positions are independent: a counter-based random number is looked up among the cumulative
    weights, in O(log N). So an epoch does not hold each record once; its length is given. Memory is
    8 bytes a record, kept.

    Args:
        weights: float64[N], finite, at least 0, not all 0; a record of weight 0 never comes.
        seed: a whole number, at least 0.
        epoch_length: positions of an epoch; None is N.

    Raises:
        DataError: they are something else.

    Example::

        counts = np.bincount(labels)
        order = headrace.WeightedOrder(1 / counts[labels])  # classes equally often
    """

    version: ClassVar[int] = 1

    def __init__(
        self, weights: ArrayLike, seed: int = 0, *, epoch_length: int | None = None
    ) -> None:
        require_whole("the seed", seed, 0)
        if epoch_length is not None:
            require_whole("epoch_length", epoch_length, 0)
        array = _checked(weights)
        self.seed = seed
        self.epoch_length = len(array) if epoch_length is None else epoch_length
        self._weights = _hash(array)
        with np.errstate(over="ignore"):  # said below
            self._stops: NDArray[np.float64] = np.cumsum(array)
        if not 0 < self._stops[-1] < np.inf:
            raise DataError(
                "the sum of the weights is wrong", got=self._stops[-1], expected="above 0, finite"
            )

    def __repr__(self) -> str:
        return (
            f"<WeightedOrder of {len(self._stops)} records, seed={self.seed}, "
            f"epoch_length={self.epoch_length}>"
        )

    @property
    def identity(self) -> Identity:
        """Kind, version, seed, length of an epoch, and a hash of the weights."""
        return {
            "kind": "weighted",
            "version": self.version,
            "seed": self.seed,
            "epoch_length": self.epoch_length,
            "weights": self._weights,
        }

    def num_positions(self, num_records: int) -> int:
        """The length of an epoch; see Order."""
        if num_records != len(self._stops):
            raise DataError(
                "the order has weights for another number of records",
                got=f"{len(self._stops)} weights",
                expected=f"{num_records}, one a record",
            )
        return self.epoch_length

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order; records may repeat."""
        positions = checked_positions(self, positions, num_records, epoch)
        text = f"headrace weighted order {self.version}, seed {self.seed}, epoch {epoch}"
        raw = hashed(positions.astype(np.uint64), keys_of(text)[0])
        # In [0, 1), of 53 bits; so the product is below the sum, also when rounded.
        random = (raw >> np.uint64(11)) * 2.0**-53
        found: NDArray[np.int64] = np.searchsorted(
            self._stops, random * self._stops[-1], side="right"
        ).astype(np.int64, copy=False)
        return found


def _checked(weights: ArrayLike) -> NDArray[np.float64]:
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError("the weights are no numbers", got=error) from error
    if array.ndim != 1 or not len(array):
        raise DataError(
            "the weights are wrong",
            got=f"shape {array.shape}",
            expected="a 1-D array, one number a record",
        )
    for start in range(0, len(array), _BLOCK):
        block = array[start : start + _BLOCK]
        wrong = np.flatnonzero(~((block >= 0) & (block < np.inf)))
        if len(wrong):
            raise DataError(
                "a weight is wrong",
                got=block[wrong[0]],
                expected="a finite number, at least 0",
                where=f"record {start + wrong[0]}",
            )
    return array


def _hash(array: NDArray[np.float64]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for start in range(0, len(array), _BLOCK):
        digest.update(array[start : start + _BLOCK].astype("<f8").tobytes())
    return digest.hexdigest()
