"""Orders of other loaders, and sampling: what each promises, against plain Python and chance."""

import json
import re
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace import BlockOrder, BucketOrder, BufferOrder, PageOrder, RandomOrder, WeightedOrder
from headrace.data.memory import available_memory_bytes
from headrace.data.orders.mixture import MixtureOrder
from headrace.errors import DataError
from tests.data.chance import assert_covers, assert_even
from tests.oracle.permutation import (
    WORD,
    feistel,
    keys_of_text,
    plain_permutation,
    splitmix,
)

GOLDEN = Path(__file__).parent.parent / "golden" / "orders_v1.txt"
SIZES = [0, 1, 2, 3, 4, 5, 127, 128, 129, 4095, 4096, 4097, 65535, 65536, 65537, 262145]
BIJECTIONS = [
    PageOrder(0, 1),
    PageOrder(1, 13),
    PageOrder(2, 4096),
    BlockOrder(0, 1),
    BlockOrder(1, 7),
    BlockOrder(2, 5000),
    BufferOrder(0, 1),
    BufferOrder(1, 100),
    BufferOrder(2, 70_000),
]
OF_1000 = [
    WeightedOrder(np.arange(1000), seed=3),
    MixtureOrder([700, 299, 1], [2, 1, 0.5], seed=3),
    BucketOrder(np.arange(1000) * 7 % 37, 8, seed=3, window_batches=5),
]
EVERY = [*BIJECTIONS, *OF_1000]
GAMMA = 0x9E3779B97F4A7C15


def whole(order, num_records, epoch=0):
    return order.indices(np.arange(order.num_positions(num_records)), num_records, epoch)


def name(order):
    return repr(order)


# All of them.


@pytest.mark.parametrize("order", BIJECTIONS, ids=name)
@pytest.mark.parametrize("num_records", SIZES)
def test_every_record_comes_exactly_once(order, num_records):
    """In any epoch."""
    assert order.num_positions(num_records) == num_records
    for epoch in (0, 42):
        assert_covers(whole(order, num_records, epoch), num_records)


@pytest.mark.parametrize("order", EVERY, ids=name)
@pytest.mark.parametrize("num_records", [1000, 70_001])
def test_any_positions_in_any_order(order, num_records):
    """What comes at a position does not depend on what else is asked; epochs differ."""
    if order in OF_1000 and num_records != 1000:
        num_records = 1000
    expected = whole(order, num_records, 4)
    positions = np.random.default_rng(0).integers(0, num_records, 500)

    assert (order.indices(positions, num_records, 4) == expected[positions]).all()
    assert order.indices(np.array([17, 17]), num_records, 4).tolist() == [expected[17]] * 2
    assert order.indices(np.empty(0, np.int64), num_records, 4).tolist() == []
    found = order.indices(np.array([3], np.uint16), num_records, 4)
    assert (found.dtype, found.tolist()) == (np.int64, [expected[3]])
    if order not in (BufferOrder(0, 1), PageOrder(2, 4096)):
        assert (whole(order, num_records, 5) != expected).mean() > 0.5


@pytest.mark.parametrize("order", EVERY, ids=name)
def test_identity_tells_orders_apart(order):
    """JSON holds it, and it is nobody else's."""
    assert json.loads(json.dumps(order.identity)) == order.identity
    assert order.identity["version"] == order.version == 1
    assert [other.identity == order.identity for other in EVERY].count(True) == 1


@pytest.mark.parametrize("order", EVERY, ids=name)
def test_what_is_outside_is_refused(order):
    """As by RandomOrder."""
    for positions, epoch, message in (
        ([1000], 0, "a position outside the epoch: got 1000 to 1000, expected 0 to 999"),
        ([-1], 0, "a position outside the epoch"),
        ([0.5], 0, "positions must be a 1-D array of whole numbers"),
        ([0], -1, "no such epoch: got -1"),
    ):
        with pytest.raises(DataError, match=message):
            order.indices(np.array(positions), 1000, epoch)


ORDERS_BY_NAME = {
    "page": lambda seed, size: PageOrder(seed, size),
    "block": lambda seed, size: BlockOrder(seed, size),
    "buffer": lambda seed, size: BufferOrder(seed, size),
    "weighted": lambda seed, size: WeightedOrder(np.arange(1, size + 1), seed, epoch_length=10**9),
    "bucket": lambda seed, size: BucketOrder(np.arange(size) ** 2 % 101, 4, seed, window_batches=3),
    "mixture": lambda seed, size: MixtureOrder([size, 5], [3, 2], seed, epoch_length=10**9),
}


@pytest.mark.parametrize("line", GOLDEN.read_text().splitlines())
def test_values_are_pinned(line):
    """What version 1 gives never changes, whatever the process."""
    head, _, tail = line.partition(": ")
    kind, *numbers = head.split()
    seed, size, num_records, epoch, first = map(int, numbers)
    expected = [int(word) for word in tail.split()]
    positions = np.arange(first, first + len(expected))

    found = ORDERS_BY_NAME[kind](seed, size).indices(positions, num_records, epoch)

    assert found.tolist() == expected


def test_the_same_in_a_fresh_process():
    """Whatever Python's hash seed."""
    code = """if True:
        import numpy as np
        from tests.data.test_orders import EVERY, whole
        print([whole(order, 1000, 9).tolist() for order in EVERY])
    """
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == [whole(order, 1000, 9).tolist() for order in EVERY]


@pytest.mark.parametrize(
    "order",
    [
        PageOrder(0, 16),
        BlockOrder(0, 1000),
        BufferOrder(0, 1_000_000),
        MixtureOrder([999_999_000, 1000], [9, 1]),
    ],
    ids=name,
)
@pytest.mark.parametrize("first", [0, 500_000_000, 10**9 - 1000])
def test_a_billion_records_take_little_memory(order, first):
    """Anywhere in the epoch, at once, within 64 MiB."""
    tracemalloc.start()
    try:
        found = order.indices(np.arange(first, first + 1000), 10**9, 3)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert len(np.unique(found)) > 900
    assert peak_bytes < 64 << 20


@pytest.mark.parametrize(
    "num_records", [10**7, pytest.param(10**9, marks=pytest.mark.slow)], ids=["1e7", "1e9"]
)
def test_weights_take_eight_bytes_a_record(num_records):
    """And no more while they are looked at, nor for a batch; a billion needs 8 GB."""
    if num_records * 9 > available_memory_bytes():
        pytest.skip("not enough memory")
    weights = np.broadcast_to(np.float64(1), num_records)
    tracemalloc.start()
    try:
        order = WeightedOrder(weights, 3)
        built_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        kept_bytes = tracemalloc.get_traced_memory()[0]
        found = order.indices(np.arange(1000), num_records, 0)
        batch_bytes = tracemalloc.get_traced_memory()[1] - kept_bytes
    finally:
        tracemalloc.stop()

    assert len(np.unique(found)) > 900 and found.max() > num_records * 0.9
    assert built_bytes < num_records * 8 + (64 << 20)
    assert kept_bytes < num_records * 8 + (1 << 20)
    assert batch_bytes < 64 << 20


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: PageOrder(-1), "the seed is wrong: got -1"),
        (lambda: PageOrder(0, 0), "group_size is wrong: got 0, expected a whole number, at least"),
        (lambda: PageOrder(0, 2.0), "group_size is wrong: got 2.0"),
        (lambda: BlockOrder(True, 2), "the seed is wrong: got True"),
        (lambda: BlockOrder(0, 0), "num_blocks is wrong: got 0"),
        (lambda: BufferOrder("0"), "the seed is wrong: got '0'"),
        (lambda: BufferOrder(0, 0), "buffer_size is wrong: got 0"),
        (lambda: WeightedOrder([1], -1), "the seed is wrong"),
        (lambda: WeightedOrder([1], epoch_length=-1), "epoch_length is wrong: got -1"),
        (lambda: WeightedOrder([]), r"weights are wrong: got shape \(0,\), expected a 1-D array"),
        (lambda: WeightedOrder([[1]]), r"the weights are wrong: got shape \(1, 1\)"),
        (lambda: WeightedOrder(["a"]), "the weights are no numbers: got could not convert"),
        (lambda: WeightedOrder([1, -1]), "a weight is wrong: got -1.0, .*; in record 1"),
        (lambda: WeightedOrder([np.nan]), "a weight is wrong: got nan, expected a finite number"),
        (lambda: WeightedOrder([np.inf]), "a weight is wrong: got inf"),
        (lambda: WeightedOrder([0, 0]), "the sum of the weights is wrong: got 0.0, expected above"),
        (lambda: WeightedOrder([1e308, 1e308]), "the sum of the weights is wrong: got inf"),
        (lambda: WeightedOrder([1]).num_positions(2), "another number of records: got 1 weights, "),
        (lambda: BucketOrder([1], 0), "batch_size is wrong: got 0"),
        (lambda: BucketOrder([1], 1, -1), "the seed is wrong: got -1"),
        (lambda: BucketOrder([1], 1, window_batches=0), "window_batches is wrong: got 0"),
        (lambda: BucketOrder([1.5], 1), "the lengths are wrong: got float64 of shape"),
        (lambda: BucketOrder([1], 1).num_positions(2), "another number of records: got 1 lengths"),
        (lambda: MixtureOrder([], []), "a mixture needs data sets, and a weight for each: got 0"),
        (lambda: MixtureOrder([1, 2], [1]), "got 2 sizes and 1 weights"),
        (lambda: MixtureOrder([1, 0], [1, 1]), "the size of a data set is wrong: got 0"),
        (lambda: MixtureOrder([1, 1], [1, 0]), "a weight is wrong: got 0, expected a finite"),
        (lambda: MixtureOrder([1, 1], [1, np.nan]), "a weight is wrong: got nan"),
        (lambda: MixtureOrder([1, 1], [1, 1e-5]), "a weight is too small beside the others: got"),
        (lambda: MixtureOrder([1], [1], -1), "the seed is wrong"),
        (lambda: MixtureOrder([1], [1], epoch_length=1.5), "epoch_length is wrong: got 1.5"),
        (lambda: MixtureOrder([1, 2], [1, 1]).num_positions(4), "another number of records: got 4"),
        (lambda: whole(MixtureOrder([4], [1]), 4, 1 << 62), "no such epoch: got 4611"),
    ],
)
def test_bad_parameters(make, message):
    """Each is named, with what would be right."""
    with pytest.raises(DataError, match=message):
        make()


# What each loses, as docs/shuffle.md says.

DOCS = Path(__file__).parents[2] / "docs" / "shuffle.md"
ROWS = re.findall(
    r"^\| `(\w+)\(([\d, ]*)\)`.*? \| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) \|$",
    DOCS.read_text(),
    re.MULTILINE,
)


def test_the_table_has_seven_rows():
    """None is passed over."""
    assert len(ROWS) == 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0] + row[1])
def test_what_an_order_loses(row):
    """The four numbers of a row, counted anew."""
    kind, arguments, *expected = row
    order = getattr(headrace, kind)(*map(int, re.findall(r"\d+", arguments)))
    size, batch_size = 100_000, 250
    first, second = np.empty((2, size), int)
    for epoch, batch_of in enumerate((first, second)):
        batch_of[whole(order, size, epoch)] = np.arange(size) // batch_size
    indices = whole(order, size)
    together = np.unique(first * size + second, return_counts=True)[1]
    pairs = (together * (together - 1)).sum() / (size * (batch_size - 1))
    classes = [len(set(batch)) for batch in (indices * 10 // size).reshape(-1, batch_size).tolist()]
    found = [
        f"{abs(np.corrcoef(indices, np.arange(size))[0, 1]):.2f}",
        f"{100 * (first[1:] == first[:-1]).mean():.1f}",
        f"{100 * pairs:.1f}",
        f"{np.mean(classes):.1f}",
    ]

    assert found == expected


# PageOrder


@pytest.mark.parametrize("num_records", [64, 67, 70_003])
def test_a_group_comes_within_one_batch(num_records):
    """All but the one that fills the short group's place, if the batch is some groups."""
    for epoch in range(5):
        indices = whole(PageOrder(0, 8), num_records, epoch)
        batch_of = np.empty(num_records, int)
        batch_of[indices] = np.arange(num_records) // 32
        groups = [batch_of[i : i + 8] for i in range(0, num_records, 8)]

        assert sum((group != group[0]).any() for group in groups) <= (1 if num_records % 8 else 0)


def test_records_of_a_group_stay_in_the_order_of_the_file():
    """So a group is read as one."""
    groups = whole(PageOrder(0, 8), 800).reshape(100, 8)

    assert (groups == groups[:, :1] + np.arange(8)).all()
    assert_covers(groups[:, 0] // 8, 100)


def test_every_record_is_at_times_the_last():
    """The short group, and all others, so that drop_last leaves out nobody for good."""
    counts = np.zeros((11, 11), int)
    for seed in range(1000):
        counts[np.arange(11), whole(PageOrder(seed, 3), 11)] += 1

    assert (counts[-1] > 0).sum() == 4  # the second of each group
    assert (counts[-2] > 0).sum() == 4
    assert_even(counts[-1][[1, 4, 7, 10]])
    assert_even(counts[0::3, 0::3])  # groups by their places


def test_page_order_in_plain_python():
    """Groups through the permutation; places past the end filled from the last one."""
    keys = keys_of_text("headrace page order 1, seed 5, epoch 2")
    for num_records in (1000, 1003, 470_005):
        num_groups = -(-num_records // 7)
        groups = plain_permutation(range(num_groups), num_groups, keys)
        expected = [groups[p // 7] * 7 + p % 7 for p in range(num_records)]
        expected = [i if i < num_records else groups[-1] * 7 + i % 7 for i in expected]

        assert whole(PageOrder(5, 7), num_records, 2).tolist() == expected


def test_pages_of_records(tmp_path):
    """As many as a page holds on average; pieces, and random splits, have no neighbours."""
    np.save(tmp_path / "a.npy", np.zeros((100, 12), np.uint8))
    np.save(tmp_path / "one.npy", np.zeros((1, 12), np.uint8))
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((100, 12), np.uint8)))
    records = headrace.open(tmp_path / "a.npy")

    assert PageOrder.for_pages(records, "data") == PageOrder(0, 341)
    assert PageOrder.for_pages(records, "data", page_bytes=512, seed=3) == PageOrder(3, 42)
    assert PageOrder.for_pages(records, "data", page_bytes=1) == PageOrder(0, 1)
    assert PageOrder.for_pages(records[::2], "data", page_bytes=512) == PageOrder(0, 21)
    single = headrace.open(tmp_path / "one.npy")
    assert PageOrder.for_pages(single, "data") == PageOrder(0, 1)
    assert PageOrder.for_pages(single[:0], "data") == PageOrder(0, 1)
    lines = tmp_path / "a.txt"
    lines.write_text("".join("x" * (i % 9) + "\n" for i in range(900)))  # 5 bytes on average
    order = PageOrder.for_pages(headrace.open(lines, format="lines"), "line", page_bytes=1000)
    assert 150 < order.group_size < 260
    for wrong in (headrace.open(tmp_path / "columns.npy"), records.split(0.5)[0]):
        with pytest.raises(DataError, match="records do not lie one after another; in field 'dat"):
            PageOrder.for_pages(wrong, "data")
    with pytest.raises(DataError, match="no such field: got 'x'"):
        PageOrder.for_pages(records, "x")


# BlockOrder


@pytest.mark.parametrize("num_records, num_blocks", [(1000, 10), (1003, 10), (70_001, 9), (5, 8)])
def test_blocks_keep_their_members(num_records, num_blocks):
    """Dealt at random once; their order, and that within each, is another every epoch."""
    larger = num_records % num_blocks
    sizes = [num_records // num_blocks + (b < larger) for b in range(num_blocks)]
    members, firsts = set(), set()
    for epoch in range(20):
        indices = whole(BlockOrder(4, num_blocks), num_records, epoch)
        blocks = cut_into(indices, sizes, members)
        members = members or set(blocks)
        assert set(blocks) == members
        firsts.add(blocks[0])
    assert len(firsts) > min(num_blocks, 10) / 2
    assert sorted(map(len, members)) == sorted(size for size in sizes if size)
    if num_records >= 1000:
        block = np.array(sorted(next(iter(members))))
        assert abs(block.mean() / num_records - 0.5) < 5 * (1 / 12 / len(block)) ** 0.5
        assert len(np.flatnonzero(np.diff(block) == 1)) < 5 * len(block) / num_blocks


def cut_into(indices, sizes, members):
    """An epoch as sets; where sizes differ, the first epoch's tells which block is larger."""
    blocks, start = [], 0
    possible = sorted(set(sizes) - {0})
    of_record = {record: block for block in members for record in block}
    while start < len(indices):
        size = len(of_record[indices[start]]) if members else None
        if size is None:
            size = possible[0] if len(possible) == 1 else size_by_plain_python(len(blocks), sizes)
        blocks.append(frozenset(indices[start : start + size].tolist()))
        start += size
    return blocks


def size_by_plain_python(place, sizes):
    """Of the block at this place of epoch 0, seed 4."""
    keys = keys_of_text("headrace block order 1, seed 4, epoch 0")
    order = plain_permutation(range(len(sizes)), len(sizes), keys)
    return [sizes[b] for b in order if sizes[b]][place]


@pytest.mark.parametrize("num_records, num_blocks", [(1000, 7), (70_001, 300)])
def test_block_order_in_plain_python(num_records, num_blocks):
    """Each block by a network whose keys are hashed with its number."""
    text = "headrace block order 1, seed 4"
    dealt = plain_permutation(range(num_records), num_records, keys_of_text(f"{text}, blocks"))
    within = keys_of_text(f"{text}, within, epoch 6")
    size, larger = divmod(num_records, num_blocks)
    expected = []
    for b in plain_permutation(range(num_blocks), num_blocks, keys_of_text(f"{text}, epoch 6")):
        keys = [splitmix((b * GAMMA + key) & WORD) for key in within]
        mine = size + (b < larger)
        first = b * size + min(b, larger)
        expected += [dealt[first + feistel(i, mine, keys)] for i in range(mine)]

    assert whole(BlockOrder(4, num_blocks), num_records, 6).tolist() == expected


def test_each_record_of_a_block_order_is_as_likely_anywhere():
    """Over seeds; over epochs of one seed the blocks."""
    counts = np.zeros((7, 7), int)
    for seed in range(600):
        counts[np.arange(7), whole(BlockOrder(seed, 3), 7)] += 1
    assert_even(counts)

    first = Counter(frozenset(whole(BlockOrder(1, 3), 9, epoch)[:3]) for epoch in range(300))
    assert len(first) == 3
    assert_even(np.array(list(first.values())))


# BufferOrder


def queue(num_records, buffer_size, seed, epoch):
    """A shuffle queue, one step after another, with the same random numbers."""
    text = f"headrace buffer order 1, seed {seed}, epoch {epoch}"
    key = keys_of_text(text)[0]
    buffer = list(range(min(buffer_size, num_records)))
    given = []
    for step, record in enumerate(range(len(buffer), num_records)):
        slot = splitmix((step * GAMMA + key) & WORD) % len(buffer)
        given.append(buffer[slot])
        buffer[slot] = record
    rest = plain_permutation(range(len(buffer)), len(buffer), keys_of_text(f"{text}, rest"))
    return given + [buffer[slot] for slot in rest]


@pytest.mark.parametrize("num_records", [1, 2, 10, 1000, 150_000])
@pytest.mark.parametrize("buffer_size", [1, 2, 3, 100, 999, 1000, 70_000])
def test_buffer_order_is_a_queue(num_records, buffer_size):
    """Computed from anywhere, it is what a replay from the start gives."""
    assert whole(BufferOrder(8, buffer_size), num_records, 2).tolist() == queue(
        num_records, buffer_size, 8, 2
    )


def test_a_queue_looks_no_further_than_its_size():
    """At position p one of the first p + Q records; late ones wait long, by a geometric law."""
    indices = whole(BufferOrder(0, 50), 100_000)
    ahead = indices - np.arange(len(indices))

    assert ahead.max() == 49
    waited = 49 - ahead[1000:-1000]  # steps in the queue, of probability 1/50 each to end
    assert abs(waited.mean() - 49) < 5 * 50 / len(waited) ** 0.5 * 3
    assert np.corrcoef(indices, np.arange(len(indices)))[0, 1] > 0.999
    assert whole(BufferOrder(0, 1), 1000).tolist() == list(range(1000))


def test_a_queue_of_all_records_is_a_random_order():
    """Record by position, over epochs."""
    counts = np.zeros((7, 7), int)
    for epoch in range(1000):
        counts[np.arange(7), whole(BufferOrder(0, 7), 7, epoch)] += 1
    assert_even(counts)


# WeightedOrder


def test_records_come_as_often_as_their_weights_say():
    """0 never; the classes of an uneven data set equally often."""
    weights = np.array([0, 1, 0, 2, 3, 4, 0])
    counts = np.bincount(whole(WeightedOrder(weights, epoch_length=100_000), 7), minlength=7)

    assert counts[weights == 0].tolist() == [0, 0, 0]
    drawn = weights > 0
    expected = 100_000 * weights[drawn] / 10
    assert ((counts[drawn] - expected) ** 2 / expected).sum() < 3 + 5 * 6**0.5
    labels = np.array([0] * 90 + [1] * 9 + [2])
    order = WeightedOrder(1 / np.bincount(labels)[labels], epoch_length=30_000)
    assert_even(np.bincount(labels[whole(order, 100)]))


def test_draws_are_independent():
    """One position and the next, one epoch and the next."""
    order = WeightedOrder(np.ones(5), epoch_length=20_000)
    first, second = whole(order, 5, 0), whole(order, 5, 1)
    for left, right in ((first[:-1], first[1:]), (first, second)):
        assert_even(np.bincount(5 * left + right, minlength=25))


def test_weighted_order_in_plain_python():
    """A 53-bit number in [0, 1), times the sum, among the cumulative weights."""
    weights = [0.5, 0, 2.25, 1e-3, 7]
    key = keys_of_text("headrace weighted order 1, seed 6, epoch 3")[0]
    expected = []
    for position in range(500):
        random = (splitmix((position * GAMMA + key) & WORD) >> 11) * 2.0**-53
        stops = np.cumsum(weights).tolist()
        expected.append(next(i for i, stop in enumerate(stops) if stop > random * stops[-1]))

    assert whole(WeightedOrder(weights, 6, epoch_length=500), 5, 3).tolist() == expected


def test_identity_of_weights():
    """By their values, whatever held them."""
    assert WeightedOrder([1, 2]).identity == WeightedOrder(np.array([1, 2], "f4")).identity
    assert WeightedOrder([1, 2]).identity != WeightedOrder([1, 2.5]).identity
    assert WeightedOrder([1, 2]).identity != WeightedOrder([1, 2], epoch_length=3).identity


# MixtureOrder


def test_batches_hold_the_mixture():
    """700, 200 and 100 of each thousand."""
    order = MixtureOrder([5000, 3000, 2000], [7, 2, 1])
    indices = whole(order, 10_000)

    for batch in indices.reshape(10, 1000):
        assert np.histogram(batch, [0, 5000, 8000, 10_000])[0].tolist() == [700, 200, 100]


@pytest.mark.parametrize(
    "weights", [[1], [1, 1], [7, 3], [5, 3, 1, 1], [0.61803, 0.30902, 0.07295], [1] * 20, [1, 999]]
)
def test_every_stretch_is_nearly_the_mixture(weights):
    """After any number of positions, within (1 + K w) / 2 of the exact share."""
    sizes = [3000 + i for i in range(len(weights))]
    order = MixtureOrder(sizes, weights, epoch_length=70_000)
    indices = whole(order, sum(sizes))
    stops = np.cumsum(sizes)
    total = np.arange(1, len(indices) + 1)
    for k, weight in enumerate(weights):
        taken = np.cumsum((stops[k] - sizes[k] <= indices) & (indices < stops[k]))
        share = weight / sum(weights)
        off = abs(taken - share * total) - len(indices) / 65536  # weights are rounded to 65536ths
        assert off.max() <= (1 + len(weights) * share) / 2


def test_whole_numbers_are_kept():
    """And everything that is as much in proportion."""
    assert MixtureOrder([1, 1], [14, 6]).identity["turns"] == [7, 3]
    assert MixtureOrder([1, 1], [0.5, 0.25]).identity["turns"] == [2, 1]
    assert MixtureOrder([1] * 3, [1 / 3] * 3).identity["turns"] == [21846, 21845, 21845]
    assert MixtureOrder([1, 1], [65535, 1]).identity["turns"] == [65535, 1]


def test_each_data_set_passes_through_a_random_order_after_another():
    """Across epochs; no record comes twice before all of its data set have come."""
    order = MixtureOrder([10, 4], [2, 1], seed=5, epoch_length=7)
    indices = np.concatenate([whole(order, 14, epoch) for epoch in range(60)])
    for part in (indices[indices < 10], indices[indices >= 10] - 10):
        size = 10 if part.max() > 3 else 4
        passes = [tuple(part[i : i + size]) for i in range(0, len(part) - size + 1, size)]
        assert all(sorted(one) == list(range(size)) for one in passes)
        assert len(set(passes)) > len(passes) / 2


def test_data_sets_of_one_size_have_orders_of_their_own():
    """Else pairs that lie at the same place in both would always meet."""
    indices = whole(MixtureOrder([1000, 1000], [1, 1]), 2000)

    assert (indices[0::2] == indices[1::2] - 1000).sum() < 8


def test_orders_go_together_with_others():
    """A mixture of one data set is a random order of it."""
    assert_covers(whole(MixtureOrder([70_001], [3]), 70_001), 70_001)
    assert RandomOrder(1) != PageOrder(1, 1)


# BucketOrder


def plain_bucket_order(lengths, batch_size, seed, window_batches, epoch):
    """The order in plain Python."""
    size = len(lengths)
    text = f"headrace random order 1, seed {seed}, epoch {epoch}"
    random = plain_permutation(range(size), size, keys_of_text(text))
    whole_window, order = batch_size * window_batches, []
    for window, start in enumerate(range(0, size, whole_window)):
        records = sorted(random[start : start + whole_window], key=lambda record: lengths[record])
        num_full = len(records) // batch_size
        keys = keys_of_text(f"headrace bucket order 1, seed {seed}, epoch {epoch}, window {window}")
        for batch in plain_permutation(range(num_full), num_full, keys):
            order += records[batch * batch_size : (batch + 1) * batch_size]
        order += records[num_full * batch_size :]
    return order


@pytest.mark.parametrize(
    "num_records, batch_size, window_batches",
    [
        *(
            (num_records, *sizes)
            for num_records in (0, 1, 7, 80, 1003)
            for sizes in ((8, 5), (1, 1))
        ),
        (65_537, 100, 64),
    ],
)
def test_bucket_order_in_plain_python(num_records, batch_size, window_batches):
    lengths = np.random.default_rng(0).integers(1, 50, num_records)
    order = BucketOrder(lengths, batch_size, 6, window_batches=window_batches)
    for epoch in (0, 3):
        found = whole(order, num_records, epoch)
        assert_covers(found, num_records)
        expected = plain_bucket_order(lengths, batch_size, 6, window_batches, epoch)
        assert found.tolist() == expected


def test_batches_of_a_bucket_order_need_less_padding():
    """Of lengths 1 to 1000: each batch spans about a window's part of them."""
    lengths = np.random.default_rng(1).integers(1, 1001, 64_000)

    def padding(order):
        batches = lengths[whole(order, len(lengths))].reshape(-1, 32)
        return 1 - batches.sum() / (batches.max(axis=1) * 32).sum()

    assert padding(RandomOrder()) > 0.4
    assert padding(BucketOrder(lengths, 32)) < 0.02


def test_lengths_of_records(tmp_path):
    """Bytes in the file, of views too."""
    lines = ["x" * (number * number % 23) for number in range(500)]
    (tmp_path / "x.txt").write_text("\n".join(lines))
    records = headrace.open(tmp_path / "x.txt")
    name = next(iter(records.fields))
    assert records.lengths(name).tolist() == [len(line) for line in lines]
    assert records[100:200:7].lengths(name).tolist() == [len(line) for line in lines[100:200:7]]
    np.save(tmp_path / "x.npy", np.zeros((10, 3, 2), np.int16))
    assert headrace.open(tmp_path / "x.npy").lengths("data").tolist() == [12] * 10
