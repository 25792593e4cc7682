"""Permutations that are computed, each position by itself, and the random numbers behind them."""

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_ARRAY", "NUM_ROUNDS", "hashed", "keyed_bijection", "keys_of", "permuted"]

LARGEST_ARRAY = 1 << 16
"""Up to so many numbers a permutation is drawn as one array; above, it is computed."""

NUM_ROUNDS = 8


def keys_of(text: str) -> NDArray[np.uint64]:
    """uint64[NUM_ROUNDS] from BLAKE2b: no two texts share them, however alike they are."""
    digest = hashlib.blake2b(text.encode(), digest_size=8 * NUM_ROUNDS).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def permuted(
    positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """What a random permutation of [0, size) has at these positions.

    Up to LARGEST_ARRAY numbers are sorted by distinct random 64-bit keys, which prefers none of the
    orders; a call draws them all. Above, see keyed_bijection.

    Args:
        positions: int64[P], in [0, size).
        size: how many numbers.
        keys: from keys_of.
    """
    if size <= LARGEST_ARRAY:
        return _drawn(size, keys)[positions]
    return keyed_bijection(positions, size, keys)


def _drawn(size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Sorts by random numbers; drawn again should two be equal, so that no order is preferred."""
    raw = np.random.Philox(key=keys[:2], counter=0)
    while True:
        numbers = raw.random_raw(size)
        order: NDArray[np.int64] = np.argsort(numbers)
        ranked = numbers[order]
        if (ranked[1:] != ranked[:-1]).all():
            return order


def keyed_bijection(
    positions: NDArray[np.int64], size: int, keys: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """A Feistel network over pairs (x, y), x < a, y < b, with a * b the least that holds the size.

    Each round adds a keyed hash of one half to the other, modulo its size, which can be undone; so
    the whole is a bijection of [0, a * b). Results of N = size or more go through again ("cycle
    walking", Black and Rogaway 2002), which leaves a bijection of [0, N). With a = ceil(sqrt(N))
    fewer than a of a * b numbers walk.

    Args:
        positions: int64[P], in [0, size).
        size: at least 1.
        keys: uint64[rounds], or uint64[rounds, P]: of each position its own, for as many bijections
            at once as there are different keys.

    Returns:
        int64[P].
    """
    a = math.isqrt(size - 1) + 1 if size > 1 else 1
    b = -(-size // a)
    found = _feistel(positions.astype(np.uint64), a, b, keys)
    outside = np.flatnonzero(found >= size)
    while len(outside):
        theirs = keys if keys.ndim == 1 else keys[:, outside]
        found[outside] = _feistel(found[outside], a, b, theirs)
        outside = outside[found[outside] >= size]
    return found.astype(np.int64)


def _feistel(
    numbers: NDArray[np.uint64], a: int, b: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    size_a, size_b = np.uint64(a), np.uint64(b)
    x, y = np.divmod(numbers, size_b)
    for number, key in enumerate(keys):
        if number % 2 == 0:
            x = (x + hashed(y, key) % size_a) % size_a
        else:
            y = (y + hashed(x, key) % size_b) % size_b
    joined: NDArray[np.uint64] = x * size_b + y
    return joined


def hashed(numbers: NDArray[np.uint64], key: np.uint64 | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What SplitMix64 (Steele, Lea and Flood 2014), started at the key, gives as its n-th number.

    So the numbers of 0, 1, 2, ... are random ones, each computed by itself.
    """
    z: NDArray[np.uint64] = numbers * np.uint64(0x9E3779B97F4A7C15) + key
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z
