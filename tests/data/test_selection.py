"""Views of data sets: slices, lists, masks, splits; and several data sets mixed into one."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import headrace
from headrace import (
    BlockOrder,
    BufferOrder,
    Loader,
    PageOrder,
    RandomOrder,
    Records,
    SequentialOrder,
    WeightedOrder,
)
from headrace.data.formats.format import Format, Table
from headrace.data.formats.lines import lines_in
from headrace.errors import DataError
from headrace.progress import Progress

N = 1003


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arrays whose records tell their number, a field of another dtype, and lines of text."""
    path: Path = tmp_path_factory.mktemp("sets")
    np.save(path / "x.npy", np.arange(N, dtype="<i8"))
    np.save(path / "y.npy", np.arange(N, dtype="<i8") * 10)
    np.save(path / "more.npy", np.arange(5000, 5100, dtype="<i8"))
    np.save(path / "few.npy", np.arange(9000, 9007, dtype="<i8"))
    np.save(path / "floats.npy", np.zeros(5))
    (path / "a.txt").write_text("".join(f"a{i}\n" for i in range(50)))
    (path / "b.txt").write_text("".join(f"b{i}\n" for i in range(20)))
    return path


@pytest.fixture
def records(folder: Path) -> Records:
    return headrace.open({"x": folder / "x.npy", "y": folder / "y.npy"})


def read(records: Records, field: str = "x", **options: object) -> list:
    """An epoch, in the order of the records unless another is given."""
    options = {"order": SequentialOrder()} | options
    return [value for batch in Loader(records, 1000, **options) for value in list(batch[field])]


# Views


@pytest.mark.parametrize(
    "key",
    [
        slice(10, 20),
        slice(None, None, 2),
        slice(None, None, -1),
        slice(900, 5000),
        slice(-3, None),
        slice(7, 7),
        slice(800, 100, -7),
        np.array([5, 1002, 0, 5]),
        [3, 2, 1],
        np.array([4], np.uint8),
        [],
        np.arange(N) % 3 == 0,
        np.zeros(N, bool),
    ],
    ids=str,
)
def test_views_select_as_numpy_does(records: Records, key: object) -> None:
    """Through a loader, every field."""
    expected = np.arange(N)[key if not isinstance(key, list) else np.array(key, int)]
    view = records[key]

    assert len(view) == len(expected)
    assert read(view) == expected.tolist()
    assert read(view, "y") == (10 * expected).tolist()


def test_views_of_views(records: Records) -> None:
    """Each selects from the one before; the whole stays as it was."""
    view = records[100:900][::-2][np.array([0, 1, 5])]

    assert read(view) == np.arange(N)[100:900][::-2][[0, 1, 5]].tolist()
    assert len(records) == N and read(records) == list(range(N))
    assert repr(view) == "<3 records of x: int64[], y: int64[] in 2 files>"


def test_fingerprints_tell_views_apart(records: Records) -> None:
    """And are the same for the same selection."""
    mask = np.arange(N) < 10

    def views() -> list[Records]:
        return [
            records,
            records[:10],
            records[:11],
            records[1:11],
            records[:20:2],
            records[mask],
            records[~mask],
            records[[1, 2]],
            records[[2, 1]],
            records[:10][:5],
            *records.split(0.5),
            *records.split(0.4),
            *records.split(0.5, seed=1),
        ]

    found = [view.fingerprint for view in views()]
    assert len(set(found)) == len(found)
    assert found == [view.fingerprint for view in views()]


@pytest.mark.parametrize("num_records", [0, 1, 2, 10, 1003, 65_537])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_a_split_has_every_record_once(
    folder: Path, tmp_path: Path, num_records: int, fraction: float
) -> None:
    """Two parts of the sizes asked for, at random; the same for the same seed."""
    np.save(tmp_path / "a.npy", np.arange(num_records, dtype="<u4"))
    records = headrace.open(tmp_path / "a.npy")
    first, second = records.split(fraction, seed=3)
    ones, others = read(first, "data"), read(second, "data")

    assert len(first) == round(fraction * num_records)
    assert sorted(ones + others) == list(range(num_records))
    again, _ = records.split(fraction, seed=3)
    assert read(again, "data") == ones
    if num_records > 100:
        assert ones != sorted(ones)
        assert abs(np.mean(ones) - num_records / 2) < num_records / 4
        assert set(read(records.split(fraction, seed=4)[0], "data")) != set(ones)


def test_a_split_prefers_no_record(records: Records) -> None:
    """Of 5 records 2: each of 10 pairs as often, over seeds."""
    few = records[:5]
    pairs = [tuple(sorted(few.split(0.4, seed)[0].selection(np.arange(2)))) for seed in range(2000)]
    counts = np.unique(pairs, axis=0, return_counts=True)[1]

    assert len(counts) == 10
    assert ((counts - 200) ** 2 / 200).sum() < 9 + 5 * 18**0.5


@pytest.mark.parametrize(
    "key, message",
    [
        (5, "not a selection of records: got 5, expected a slice, indexes, or a bool for each of"),
        ("x", "not a selection of records: got 'x'"),
        ([0.5], r"not a selection of records: got float64 of shape \(1,\)"),
        ([[1]], r"got int64 of shape \(1, 1\)"),
        ([True, False], r"got bool of shape \(2,\), expected .* a bool for each of 1003 records"),
        ([-1], "no such record: got -1, expected 0 to 1002"),
        ([0, N], "no such record: got 1003, expected 0 to 1002"),
        (slice("a", "b"), "not a slice of records: got slice"),
        (slice(0, 5, 0), "not a slice of records: got slice"),
    ],
)
def test_what_cannot_be_selected(records: Records, key: object, message: str) -> None:
    """In words; a data set cannot be iterated over either, which a loader is for."""
    with pytest.raises(DataError, match=message):
        records[key]
    with pytest.raises(DataError, match="a Loader gives the records themselves"):
        list(records)


def test_what_is_outside_a_view(records: Records) -> None:
    """Not even records that the whole has."""
    with pytest.raises(DataError, match="no such record: got 10, expected 0 to 9"):
        records[:10].spans(np.array([10]), "x")
    with pytest.raises(DataError, match="no such record: got 0, expected none: it is empty"):
        records[:0][[0]]


@pytest.mark.parametrize(
    "fraction, seed, message",
    [
        (0, 0, "the fraction is wrong: got 0, expected between 0 and 1"),
        (1.0, 0, "the fraction is wrong: got 1.0"),
        (float("nan"), 0, "the fraction is wrong: got nan"),
        (True, 0, "the fraction is wrong: got True"),
        (0.5, -1, "the seed is wrong: got -1"),
        (0.5, 1.5, "the seed is wrong: got 1.5"),
    ],
)
def test_bad_splits(records: Records, fraction: float, seed: int, message: str) -> None:
    """Nothing, everything, or no number."""
    with pytest.raises(DataError, match=message):
        records.split(fraction, seed)


# Loaders


@pytest.mark.parametrize(
    "order",
    [
        PageOrder(3, 8),
        BlockOrder(3, 5),
        BufferOrder(3, 100),
        WeightedOrder(np.arange(N), 3, epoch_length=777),
    ],
    ids=repr,
)
def test_loaders_take_any_order_and_resume(records: Records, order: object) -> None:
    """An epoch is as long as the order says, and goes on after any batch."""
    length = order.num_positions(N)
    expected = [order.indices(np.arange(length), N, epoch).tolist() for epoch in range(2)]
    loader = Loader(records, 64, order=order)
    assert len(loader) == -(-length // 64)
    assert sum(loader.batch_sizes()) == length
    assert [x for batch in loader for x in batch["x"]] == expected[0]

    iterator = iter(loader)
    found = [x for _ in range(5) for x in next(iterator)["x"]]
    state = json.loads(json.dumps(loader.state_dict()))
    other = Loader(records, 50, order=order)
    other.load_state_dict(state)

    assert found + [x for batch in other for x in batch["x"]] == expected[1]
    dropping = Loader(records, 64, order=order, drop_last=True)
    assert sum(len(batch["x"]) for batch in dropping) == length - length % 64


def test_a_position_may_lie_beyond_the_records(records: Records) -> None:
    """Where an epoch is longer than the data set."""
    order = WeightedOrder(np.ones(10), epoch_length=1000)
    loader = Loader(records[:10], 64, order=order)
    other = Loader(records[:10], 64, order=order)
    state = other.state_dict() | {"position": 960}
    loader.load_state_dict(state)

    assert [x for batch in loader for x in batch["x"]] == order.indices(
        np.arange(960, 1000), 10, 0
    ).tolist()
    with pytest.raises(DataError, match="position of the state is wrong: got 1001"):
        loader.load_state_dict(state | {"position": 1001})


def test_states_of_other_orders_and_selections_are_refused(records: Records) -> None:
    """Also where they differ in one parameter."""
    mixed, mixture = headrace.mix([(records, 2), (records[:7], 1)])
    weights = np.ones(N)
    every = [
        Loader(records, 64),
        Loader(records, 64, order=PageOrder(0, 8)),
        Loader(records, 64, order=PageOrder(0, 16)),
        Loader(records, 64, order=BlockOrder(0, 8)),
        Loader(records, 64, order=BufferOrder(0, 8)),
        Loader(records, 64, order=BufferOrder(1, 8)),
        Loader(records, 64, order=WeightedOrder(weights)),
        Loader(records, 64, order=WeightedOrder(weights + np.eye(1, N)[0])),
        Loader(records[::-1], 64),
        Loader(records[:500], 64),
        Loader(records[500:1000], 64),
        Loader(records.split(0.5)[0], 64),
        Loader(mixed, 64, order=mixture),
    ]
    for one in every:
        for other in every:
            if one is other:
                one.load_state_dict(json.loads(json.dumps(other.state_dict())))
                continue
            with pytest.raises(DataError, match="the state is of a loader of another"):
                one.load_state_dict(other.state_dict())


def test_an_order_that_does_not_fit_is_refused_at_once(records: Records) -> None:
    """Before anything is read."""
    with pytest.raises(DataError, match="weights for another number of records: got 3 weights"):
        Loader(records, 64, order=WeightedOrder(np.ones(3)))


def test_a_billion_records_go_on_anywhere(tmp_path: Path) -> None:
    """A sparse file of a billion bytes: views, splits and states of it take no time and no list."""
    num_records, order = 10**9, RandomOrder(1)
    path = tmp_path / "sparse.bin"
    positions = np.arange(900_000_000, 900_000_064)
    with path.open("wb") as file:
        file.truncate(num_records)
        for value, index in enumerate(order.indices(positions, num_records, 7).tolist()):
            file.seek(index)
            file.write(bytes([value + 1]))
    records = headrace.open(path, format="windows", length=1)
    loader = Loader(records, 64, order=order)
    state = loader.state_dict() | {"epoch": 7, "position": int(positions[0])}
    loader.load_state_dict(state)
    with loader:
        assert next(iter(loader))["window"][:, 0].tolist() == list(range(1, 65))

    half, rest = records.split(0.5)
    assert len(half) == len(rest) == num_records // 2
    assert len(records[::-1][10:]) == num_records - 10
    with Loader(rest, 64) as loader:
        assert next(iter(loader))["window"].shape == (64, 1)


# Mixtures


@dataclass(frozen=True)
class RawLines(Format):
    """Lines as bytes."""

    name: ClassVar[str] = "raw lines"

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Table]:
        return {"line": lines_in(path, progress)}


def test_data_sets_are_mixed_by_weight(folder: Path) -> None:
    """In every batch, from both; resumed anywhere; passes end and begin within an epoch."""
    many, few = headrace.open(folder / "more.npy"), headrace.open(folder / "few.npy")
    records, order = headrace.mix([(many, 3), (few, 1)], seed=2, epoch_length=400)
    batches = [batch["data"] for batch in Loader(records, 40, order=order)]

    assert [(batch < 9000).sum() for batch in batches] == [30] * 10
    joined = np.concatenate(batches)
    ones, others = joined[joined < 9000], joined[joined >= 9000]
    for start in range(0, 300, 100):
        assert sorted(ones[start : start + 100]) == list(range(5000, 5100))
    for start in range(0, 98, 7):
        assert sorted(others[start : start + 7]) == list(range(9000, 9007))


def test_views_are_mixed_too(records: Records, folder: Path) -> None:
    """Even two of one data set, beside a whole one."""
    train, test = records.split(0.9)
    x = headrace.open({"x": folder / "more.npy", "y": folder / "more.npy"})
    joined, order = headrace.mix([(test, 1), (x, 1), (train[::-1], 2), (train[:0:-5], 1)])
    expected = read(test) + list(range(5000, 5100)) + read(train[::-1]) + read(train[:0:-5])

    assert read(joined) == expected
    assert len(joined.paths) == 3
    assert sorted(read(joined[::2])) == sorted(expected[::2])
    nested, _ = headrace.mix([(joined[10:], 1), (x, 1)])
    assert read(nested) == [*expected[10:], *range(5000, 5100)]
    assert len(read(joined, order=order)) == len(joined)


def test_whole_data_sets_joined_are_one_data_set(folder: Path) -> None:
    """As if opened together: same records, same fingerprint."""
    together = headrace.open([folder / "more.npy", folder / "few.npy"])
    joined, _ = headrace.mix(
        [(headrace.open(folder / "more.npy"), 1), (headrace.open(folder / "few.npy"), 1)]
    )

    assert joined.fingerprint == together.fingerprint
    assert read(joined, "data") == read(together, "data")
    assert joined.fingerprint != joined[::-1].fingerprint


def test_records_of_any_length_are_mixed(folder: Path) -> None:
    """Each is decoded as in its own data set."""
    a, b = (headrace.open(folder / f"{name}.txt", format="lines") for name in "ab")
    (field,) = a.fields
    joined, order = headrace.mix([(a, 2), (b[::-1], 1)])

    assert read(joined, field) == read(a, field) + read(b[::-1], field)
    assert len(read(joined, field, order=order)) == 70


def test_what_does_not_mix(folder: Path, records: Records) -> None:
    """Fields of other names, dtypes, formats; nothing."""
    x = headrace.open(folder / "x.npy")
    floats = headrace.open(folder / "floats.npy")
    lines, raw = (headrace.open(folder / "a.txt", format=f) for f in ("lines", RawLines()))
    for parts, message in (
        ([(lines, 1), (raw, 1)], "differ in the format of 'line': got .*RawLines.*, expected .*L"),
        ([], "no data sets to mix: expected"),
        ([(x, 1), (records, 1)], "differ in fields: got 'x', 'y', expected 'data'; in part 1 of"),
        ([(x, 1), (floats, 1)], r"differ in 'data': got float64\[\], expected int64\[\]; in part"),
        ([(x, 1), (x[:0], 1)], "a data set without records; in part 1 of the mixture"),
        ([(x, 1), (x, -1)], "a weight is wrong: got -1, expected a finite number above 0"),
    ):
        with pytest.raises(DataError, match=message):
            headrace.mix(parts)
