"""Orders: exact covers, values that never change, and chance that looks like chance."""

import itertools
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.order import RandomOrder, SequentialOrder
from headrace.data.permutation import LARGEST_ARRAY, NUM_ROUNDS, keyed_bijection
from headrace.errors import DataError
from tests.data.chance import assert_covers, assert_even
from tests.oracle.permutation import WORD, keys_of_text, philox, plain_permutation, splitmix

GOLDEN = Path(__file__).parent.parent / "golden" / "order_random_v1.txt"
POWERS = [2**k + near for k in range(1, 18) for near in (-1, 0, 1)]
SIZES = sorted({0, 1, 2, 3, *POWERS, 65537, 262145, 4**9 + 1, 1000003})


def whole(order, num_records, epoch=0):
    return order.indices(np.arange(num_records), num_records, epoch)


def keys_of(number):
    """Keys of a bijection that share nothing with how RandomOrder makes its own."""
    return np.random.default_rng(number).integers(0, WORD, NUM_ROUNDS, np.uint64, endpoint=True)


# Each record once.


@pytest.mark.parametrize("num_records", SIZES)
def test_every_record_comes_exactly_once(num_records):
    """In any epoch, with any seed, an epoch holds each record once."""
    for seed, epoch in ((0, 0), (0, 1), (123456789, 42)):
        assert_covers(whole(RandomOrder(seed), num_records, epoch), num_records)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 3000), st.lists(st.integers(0, WORD), min_size=1, max_size=10))
def test_bijection_for_any_size_and_keys(num_records, keys):
    """Whatever the keys, their number and the size, the network can be undone."""
    found = keyed_bijection(np.arange(num_records), num_records, np.array(keys, np.uint64))

    assert_covers(found, num_records)


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 3000), st.integers(0, 2**70), st.integers(0, 2**40))
def test_random_order_for_any_size_seed_and_epoch(num_records, seed, epoch):
    """Seeds may be larger than a machine word."""
    assert_covers(whole(RandomOrder(seed), num_records, epoch), num_records)


# Values that never change, computed twice in different ways.


def plain_order(positions, num_records, seed, epoch):
    """What RandomOrder version 1 is, in plain Python."""
    keys = keys_of_text(f"headrace random order 1, seed {seed}, epoch {epoch}")
    return plain_permutation(positions, num_records, keys)


def test_published_values():
    """The two generators inside are the published ones: Random123's and SplitMix64's vectors."""
    assert [splitmix(n * 0x9E3779B97F4A7C15 & WORD) for n in (1, 2, 3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert philox((0, 0), 4, start=0) == [
        0x16554D9ECA36314C,
        0xDB20FE9D672D0FDC,
        0xD7E772CEE186176B,
        0x7E68B68AEC7BA23B,
    ]


@pytest.mark.parametrize("line", GOLDEN.read_text().splitlines())
def test_values_are_pinned(line):
    """A run can be resumed by any later release: what version 1 gives never changes."""
    head, _, tail = line.partition(": ")
    num_records, seed, epoch, first = map(int, head.split())
    expected = [int(word) for word in tail.split()]
    positions = np.arange(first, first + len(expected))

    assert RandomOrder(seed).indices(positions, num_records, epoch).tolist() == expected
    assert plain_order(positions.tolist(), num_records, seed, epoch) == expected


@pytest.mark.parametrize("num_records", [10, 1000, 65536, 65537, 70001, 10**9, 2**40, 2**62])
def test_agrees_with_plain_python(num_records):
    """Positions from all over the epoch, of sizes drawn and computed."""
    generator = np.random.default_rng(num_records)
    positions = generator.integers(0, num_records, 50)

    found = RandomOrder(5).indices(positions, num_records, 3)

    assert found.tolist() == plain_order(positions.tolist(), num_records, 5, 3)


def test_identity_is_stored_with_a_run():
    """Kind, version and seed fix the order."""
    assert RandomOrder(7).identity == {"kind": "random", "version": 1, "seed": 7}
    assert SequentialOrder().identity == {"kind": "sequential", "version": 1}


# Chance. Seeds are fixed, so these either always pass or always fail.


def test_all_orders_of_four_are_equally_likely():
    """24 orders, 9600 epochs."""
    number = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    order = RandomOrder(0)

    seen = [number[tuple(whole(order, 4, epoch).tolist())] for epoch in range(9600)]

    assert_even(np.bincount(seen, minlength=24))


def test_each_record_is_as_likely_at_each_position():
    """7 records by 7 positions, once over epochs and once over seeds."""
    for orders in (
        (whole(RandomOrder(3), 7, epoch) for epoch in range(3000)),
        (whole(RandomOrder(seed), 7, 3) for seed in range(3000)),
    ):
        counts = np.zeros((7, 7), int)
        for indices in orders:
            counts[np.arange(7), indices] += 1
        assert_even(counts)


@pytest.mark.parametrize("num_records", [5, 8, 13])
def test_bijection_is_even_at_small_sizes(num_records):
    """Position by record; and what follows what, as the first differences around the ring."""
    positions = np.arange(num_records)
    places = np.zeros((num_records, num_records), int)
    pairs = np.zeros((num_records, num_records), int)
    for number in range(2000):
        indices = keyed_bijection(positions, num_records, keys_of(number))
        places[positions, indices] += 1
        pairs[indices[:-1], indices[1:]] += 1

    assert_even(places)
    assert (np.diag(pairs) == 0).all()
    distinct = pairs[~np.eye(num_records, dtype=bool)]
    expected = 2000 / num_records  # N - 1 neighbours in each order, N (N - 1) pairs
    assert abs(distinct - expected).max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("num_records", [1000, LARGEST_ARRAY + 4465])
def test_orders_of_epochs_and_seeds_are_unrelated(num_records):
    """Of two unrelated orders, the records at the same place in both number 1 on average (Poisson).

    The same holds of an order and the records' own, and of neighbours that stay neighbours.
    """
    base = whole(RandomOrder(0), num_records, 0)
    others = [whole(RandomOrder(0), num_records, epoch) for epoch in range(1, 41)]
    others += [whole(RandomOrder(seed), num_records, 0) for seed in range(1, 41)]
    agreeing = {
        "with the first": [(other == base).sum() for other in others],
        "with the records": [(other == np.arange(num_records)).sum() for other in others],
        "neighbours": [(np.diff(other) == 1).sum() for other in others],
        "reversed neighbours": [(np.diff(other) == -1).sum() for other in others],
    }

    for what, counts in agreeing.items():
        assert abs(np.mean(counts) - 1) < 5 / math.sqrt(len(counts)), what
        assert 0.3 < np.var(counts) < 2.2, what


def test_batches_of_a_large_order_spread_over_all_records():
    """A batch of 64 out of 1e9: each sixteenth of the records comes as often."""
    indices = RandomOrder(1).indices(np.arange(64 * 500), 10**9, 0)

    assert_even(np.bincount(indices * 16 // 10**9, minlength=16))
    assert_even(np.bincount(indices % 16, minlength=16))


@pytest.mark.parametrize("num_records", [100, 100_000])
def test_seed_and_epoch_do_not_add_up(num_records):
    """Runs with seeds 0 and 1 share no epoch, as they would if the two numbers were added."""
    orders = {
        tuple(RandomOrder(seed).indices(np.arange(20), num_records, epoch).tolist())
        for seed in range(12)
        for epoch in range(12)
    }

    assert len(orders) == 144


# A pure function.


@pytest.mark.parametrize("num_records", [1000, 100_000])
def test_any_positions_in_any_order(num_records):
    """What comes at a position does not depend on what else is asked, or was before."""
    order = RandomOrder(9)
    expected = whole(order, num_records, 4)
    positions = np.random.default_rng(0).integers(0, num_records, 500)

    assert (order.indices(positions, num_records, 4) == expected[positions]).all()
    assert order.indices(np.array([17, 17]), num_records, 4).tolist() == [expected[17]] * 2
    assert order.indices(np.empty(0, np.int64), num_records, 4).tolist() == []
    for dtype in (np.int32, np.uint16, np.uint64):
        found = order.indices(np.array([3], dtype), num_records, 4)
        assert (found.dtype, found.tolist()) == (np.int64, [expected[3]])


def test_sequential_order_is_the_positions():
    """In an array of its own."""
    positions = np.array([4, 0, 2])

    found = SequentialOrder().indices(positions, 5, 3)

    assert found.tolist() == [4, 0, 2]
    assert not np.shares_memory(found, positions)


def test_memory_does_not_grow_with_the_records():
    """1000 positions of 1e9 records take the memory of 1000 positions."""
    positions = np.arange(1000)
    RandomOrder(0).indices(positions, 10**9, 0)
    tracemalloc.start()
    try:
        RandomOrder(0).indices(positions, 10**9, 0)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak_bytes < 20 * positions.nbytes


# What is refused.


@pytest.mark.parametrize("seed", [-1, 1.0, "1", None, True, np.int64(1)])
def test_bad_seed(seed):
    """Whole numbers only: 1.0 and 1 would be two orders."""
    with pytest.raises(DataError, match="the seed is wrong: got .*, expected a whole number"):
        RandomOrder(seed)


@pytest.mark.parametrize("order", [RandomOrder(0), SequentialOrder()])
@pytest.mark.parametrize(
    "positions, num_records, epoch, message",
    [
        ([0], 5, -1, "no such epoch: got -1, expected a whole number, at least 0"),
        ([0], 5, 1.0, "no such epoch: got 1.0, expected"),
        ([], -1, 0, "no such number of records: got -1"),
        ([0], 5.0, 0, "no such number of records: got 5.0"),
        ([-1, 2], 5, 0, "a position outside the epoch: got -1 to 2, expected 0 to 4"),
        ([0, 5], 5, 0, "a position outside the epoch: got 0 to 5, expected 0 to 4"),
        ([70_000], 70_000, 0, "got 70000 to 70000, expected 0 to 69999"),
        ([0], 0, 0, "expected none: there are no records"),
        ([0.5], 5, 0, r"positions must be a 1-D array of whole numbers: got float64 of shape \(1"),
        ([True], 5, 0, "whole numbers: got bool"),
        ([[0, 1]], 5, 0, r"1-D array of whole numbers: got int64 of shape \(1, 2\)"),
        (3, 5, 0, r"1-D array of whole numbers: got int64 of shape \(\)"),
    ],
)
def test_what_is_outside_is_refused(order, positions, num_records, epoch, message):
    """Positions, sizes and epochs that make no sense, in words."""
    with pytest.raises(DataError, match=message):
        order.indices(np.array(positions), num_records, epoch)
