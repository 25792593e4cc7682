"""Parquet files, against pyarrow's own take(); and the groups that are kept of them."""

import sys

import numpy as np
import pytest

import headrace
from headrace.data.columns import InGroups
from headrace.data.formats.parquet import Parquet
from headrace.data.groups import GroupReader
from headrace.errors import DataError, ReadError
from tests.data.formats.epochs import epoch
from tests.data.formats.test_arrow import NUMBERS, assert_same, expected, table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def full_table(num_rows, seed=0):
    """What Arrow files can be read of, and what pyarrow must unpack."""
    generator = np.random.default_rng(seed)
    texts = [f"text {number % 3}" for number in range(num_rows)]
    extra = {
        "flag": pa.array(generator.random(num_rows) < 0.5),
        "dictionary": pa.array(texts).dictionary_encode(),
        "category": pa.array(generator.integers(0, 3, num_rows)).dictionary_encode(),
        "maybe": pa.array([None if number % 4 == 0 else f"{number}" for number in range(num_rows)]),
    }
    whole = table(num_rows, seed)
    for name, column in extra.items():
        whole = whole.append_column(name, column)
    return whole


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("row_group_size", [1, 7, 1000])
def test_every_type(tmp_path, row_group_size, compression):
    """Any row groups, compressed or not, in a random order; nulls of text are None."""
    truth = full_table(40)
    pq.write_table(
        truth, tmp_path / "a.parquet", row_group_size=row_group_size, compression=compression
    )

    records = headrace.open(tmp_path / "a.parquet")
    indices, batch = epoch(records)

    assert len(records) == 40
    for kind in NUMBERS:
        assert batch[kind].dtype == np.dtype(kind)
    assert batch["flag"].dtype == bool
    assert batch["list"][0].dtype == np.int32 and batch["large_list"][0].dtype == np.float64
    assert_same(batch, expected(truth, indices))


def test_several_files_and_groups_without_rows(tmp_path):
    """Groups of 0 rows first, last and between; a file of none at all."""
    truth = full_table(30)
    none = truth.slice(0, 0)
    parts = [
        [none, truth.slice(0, 5), none, none, truth.slice(5, 6), none],
        [none],
        [],
        [truth.slice(11)],
    ]
    for number, groups in enumerate(parts):
        with pq.ParquetWriter(tmp_path / f"{number}.parquet", truth.schema) as writer:
            for group in groups:
                writer.write_table(group)

    records = headrace.open(tmp_path / "*.parquet")
    indices, batch = epoch(records)

    assert_same(batch, expected(truth, indices))
    for name in ("1", "2"):
        empty = headrace.open(tmp_path / f"{name}.parquet")
        assert len(empty) == 0
        with headrace.Loader(empty, 4) as loader:
            assert list(loader) == []


def test_tensors_and_shards_of_replicas(tmp_path):
    """Arrays are tensors; replicas share the records."""
    torch = pytest.importorskip("torch")
    pq.write_table(pa.table({"x": range(20), "t": ["a"] * 20}), tmp_path / "a.parquet")
    records = headrace.open(tmp_path / "a.parquet")
    seen = []
    for replica in (0, 1):
        with headrace.Loader(
            records, 4, num_micro_batches=2, replica=replica, num_replicas=2, tensors=True
        ) as loader:
            for batch in loader:
                assert batch["x"].dtype == torch.int64 and batch["t"] == ["a", "a"]
                seen += batch["x"].tolist()

    assert sorted(seen) == list(range(20))


@pytest.mark.parametrize("statistics", [True, False])
def test_nulls_among_numbers(tmp_path, statistics):
    """Are refused at once where the footer tells of them, else when their group is decoded."""
    columns = {
        "x": pa.array([1, None, 3]),
        "y": [1, 2, 3],
        "vector": pa.array([[1, 2], None, [3, 4]], pa.list_(pa.int8(), 2)),
    }
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", write_statistics=statistics)

    message = "records lack a value: got 1 nulls" if statistics else "1 nulls among its numbers"
    with pytest.raises((DataError, ReadError), match=f"field 'x' c.*{message}.*fill them"):
        epoch(headrace.open(tmp_path / "a.parquet", fields=("x",)))
    with pytest.raises(ReadError, match="field 'vector' could not be decoded: got 1 nulls among"):
        epoch(headrace.open(tmp_path / "a.parquet", fields=("vector",)))
    indices, batch = epoch(headrace.open(tmp_path / "a.parquet", fields=("y",)))
    assert batch["y"].tolist() == [index + 1 for index in indices.tolist()]


def test_nulls_within_lists(tmp_path):
    """A list is None, but no number in it."""
    column = pa.array([[1], None, [2, None]], pa.list_(pa.int32()))
    pq.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    records = headrace.open(tmp_path / "a.parquet")

    with headrace.Loader(records[:2], 2, order=headrace.SequentialOrder()) as loader:
        first, second = next(iter(loader))["x"]
    assert first.tolist() == [1] and second is None
    with pytest.raises(
        ReadError, match="got 1 nulls in a list of numbers; in .*a.parquet, group 0"
    ):
        epoch(records)


def test_structs(tmp_path):
    """As Hugging Face stores images; a struct that is null has null members."""
    column = pa.array([{"bytes": b"a", "path": "p"}, None, {"bytes": b"c", "path": None}])
    pq.write_table(pa.table({"image": column, "x": [0, 1, 2]}), tmp_path / "a.parquet")

    indices, batch = epoch(headrace.open(tmp_path / "a.parquet"))

    assert batch["image.bytes"] == [[b"a", None, b"c"][index] for index in indices]
    assert batch["image.path"] == [["p", None, None][index] for index in indices]


@pytest.mark.parametrize(
    "column, message",
    [
        (pa.array([[[1]], [], [[2]]]), "it is nested: got list<.*list<"),
        (pa.array([["a"], [], []]), "it is nested: got list<.*string>"),
        (pa.array([1, 2, 3], pa.timestamp("us")), "it holds times: got timestamp"),
        (pa.array([1, 2, 3], pa.decimal128(9)), "it holds neither numbers nor text nor bytes"),
    ],
)
def test_columns_that_are_refused(tmp_path, column, message):
    """By name, when they are asked for."""
    pq.write_table(pa.table({"x": [5, 6, 7], "odd": column}), tmp_path / "a.parquet")

    with pytest.raises(DataError, match=f"field 'odd' cannot be read: {message}.*fields="):
        headrace.open(tmp_path / "a.parquet")
    assert len(headrace.open(tmp_path / "a.parquet", fields=("x",))) == 3


def groups_of(path, num_groups, num_rows=10):
    """A file of so many groups of int64, and places of records in them."""
    numbers = np.arange(num_groups * num_rows)
    pq.write_table(pa.table({"x": numbers}), path, row_group_size=num_rows)
    return numbers


def places(records):
    """Of records, in groups of ten."""
    records = np.array(records)
    return InGroups(
        np.zeros(len(records), np.int32), records // 10, records % 10, np.dtype(np.int64), ()
    )


def test_a_group_is_decoded_once_a_batch_and_kept(tmp_path):
    """As many groups as fit are kept; the least recently used goes first."""
    numbers = groups_of(tmp_path / "a.parquet", 5)
    with GroupReader([tmp_path / "a.parquet"], most_bytes=2 * 80) as reader:
        decoded = []
        for records in ([3, 40, 5, 41, 3], [44, 9], [20], [30], [49], [1], [20]):
            values = reader.values("x", Parquet(), places(records))
            assert values.tolist() == numbers[records].tolist()
            decoded.append(reader.num_decoded)
            assert reader.num_bytes <= 160

    # Groups 0 and 4; both kept; 2 drops 0; 3 drops 4; 4 drops 2; 0 drops 3; 2 drops 4.
    assert decoded == [2, 2, 3, 4, 5, 6, 7]


def test_a_group_beyond_the_limit(tmp_path):
    """Is decoded once a batch all the same, and nothing else is kept beside it."""
    groups_of(tmp_path / "a.parquet", 3)
    with GroupReader([tmp_path / "a.parquet"], most_bytes=10) as reader:
        assert reader.values("x", Parquet(), places([0, 10, 1, 11])).tolist() == [0, 10, 1, 11]
        assert (reader.num_decoded, reader.num_bytes) == (2, 80)


def test_only_the_columns_asked_for_are_decoded(tmp_path):
    """A label of a row group of much text costs the memory of the labels."""
    data = pa.table({"text": ["x" * 10_000] * 5000, "label": range(5000)})
    pq.write_table(data, tmp_path / "a.parquet")
    records = headrace.open(tmp_path / "a.parquet", fields=("label",))
    with GroupReader(records.paths) as reader:
        found = records.found(np.array([4000, 7]), "label")
        assert reader.values("label", Parquet(), found).tolist() == [4000, 7]
        assert reader.num_bytes == 5000 * 8


def test_more_files_than_are_kept_open(tmp_path):
    """Forty, of which sixteen are open at a time."""
    for number in range(40):
        pq.write_table(pa.table({"x": [number, number]}), tmp_path / f"{number:02}.parquet")

    indices, batch = epoch(headrace.open(tmp_path / "*.parquet"))

    assert batch["x"].tolist() == (indices // 2).tolist()


def test_damaged_files(tmp_path):
    """A footer at once, pages when they are decoded, checked by their checksums."""
    path = tmp_path / "a.parquet"
    data = pa.table({"x": np.arange(1000)})
    pq.write_table(data, path, compression="none", write_page_checksum=True, use_dictionary=False)
    content = path.read_bytes()
    for length in (5, 100, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(
            DataError, match="the Parquet file is damaged or truncated: got .*; copy"
        ):
            headrace.open(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="the file is empty"):
        headrace.open(path, format="parquet")
    place = content.index((500).to_bytes(8, "little"))
    path.write_bytes(content[:place] + b"\xff" + content[place + 1 :])
    with pytest.raises(
        ReadError, match=r"field 'x' could not be decoded: got .*a.parquet, group 0"
    ):
        epoch(headrace.open(path))


def test_a_file_that_was_replaced(tmp_path):
    """By one with fewer records: an error, not the wrong ones."""
    path = tmp_path / "a.parquet"
    groups_of(path, 3)
    records = headrace.open(path)
    groups_of(path, 1, 5)

    with pytest.raises(
        ReadError, match="got the file has changed since it was opened; in .*a.parq"
    ):
        epoch(records)


def test_spans_are_for_fields_in_bytes(tmp_path):
    """Row groups have no place for a record; the message says who brings it."""
    groups_of(tmp_path / "a.parquet", 1)
    records = headrace.open(tmp_path / "a.parquet")

    with pytest.raises(DataError, match="not in the files as they are: got 'x'; headrace.Loader"):
        records.spans(np.array([0]), "x")
    np.save(tmp_path / "y.npy", np.zeros(10))
    both = headrace.open({"x": tmp_path / "a.parquet", "y": tmp_path / "y.npy"})
    with pytest.raises(
        DataError, match="not in the files as they are: got 'x', expected 'y'; head"
    ):
        both.spans(np.array([0]), "x")
    with pytest.raises(
        DataError, match="the records of this field are bytes in the files: got 'y'"
    ):
        both.found(np.array([0]), "y")
    indices, batch = epoch(both)
    assert batch["x"].tolist() == indices.tolist() and batch["y"].tolist() == [0] * 10


def test_resuming(tmp_path):
    """The state of a loader holds for row groups as for all else."""
    groups_of(tmp_path / "a.parquet", 5)
    records = headrace.open(tmp_path / "a.parquet")
    with headrace.Loader(records, 8) as whole:
        batches = [batch["x"].tolist() for batch in whole]
    with headrace.Loader(records, 8) as first:
        iterator = iter(first)
        for _ in range(3):
            next(iterator)
        state = first.state_dict()
    with headrace.Loader(headrace.open(tmp_path / "a.parquet"), 8) as second:
        second.load_state_dict(state)
        assert [batch["x"].tolist() for batch in second] == batches[3:]


def test_without_pyarrow(tmp_path, monkeypatch):
    """The message says what to install."""
    groups_of(tmp_path / "a.parquet", 1)
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"need the package pyarrow; pip install headrace\[arrow\]"):
        headrace.open(tmp_path / "a.parquet")
