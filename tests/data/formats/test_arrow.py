"""Arrow files and streams, against pyarrow's own take()."""

import pickle
import sys

import numpy as np
import pytest

import headrace
from headrace.errors import DataError, ReadError
from tests.data.formats.epochs import ENGINES, epoch

pa = pytest.importorskip("pyarrow")

NUMBERS = "i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8".split()


def table(num_rows, seed=0):
    """A column of every type that is read in place, random values."""
    generator = np.random.default_rng(seed)
    columns = {
        kind: pa.array(generator.integers(0, 100, num_rows).astype(kind)) for kind in NUMBERS
    }
    texts = ["ü" * int(size) for size in generator.integers(0, 9, num_rows)]
    contents = [generator.bytes(int(size)) for size in generator.integers(0, 5000, num_rows)]
    lists = [list(range(int(size))) for size in generator.integers(0, 6, num_rows)]
    vectors = generator.random((num_rows, 3)).tolist()
    matrices = generator.integers(0, 99, (num_rows, 2, 3)).tolist()
    columns |= {
        "text": pa.array(texts, pa.string()),
        "large_text": pa.array(texts, pa.large_string()),
        "bytes": pa.array(contents, pa.binary()),
        "large_bytes": pa.array(contents, pa.large_binary()),
        "four": pa.array([content[:4].ljust(4) for content in contents], pa.binary(4)),
        "list": pa.array(lists, pa.list_(pa.int32())),
        "large_list": pa.array(lists, pa.large_list(pa.float64())),
        "vector": pa.array(vectors, pa.list_(pa.float32(), 3)),
        "matrix": pa.array(matrices, pa.list_(pa.list_(pa.int16(), 3), 2)),
        "image": pa.array([{"bytes": content, "id": 7} for content in contents]),
    }
    return pa.table(columns)


def write(path, table, *, max_chunksize=None, stream=False, **options):
    """As an IPC file, or as Hugging Face datasets does as a stream."""
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=max_chunksize)


def expected(table, indices):
    """What pyarrow has in these rows, by field."""
    rows = table.take(pa.array(indices)).flatten()
    found = {}
    for name in rows.column_names:
        column = rows.column(name)
        if pa.types.is_fixed_size_binary(column.type):
            found[name] = [list(value) for value in column.to_pylist()]
        else:
            found[name] = column.to_pylist()
    return found


def assert_same(batch, truth):
    assert list(batch) == list(truth)
    for name, values in truth.items():
        got = batch[name]
        got = got.tolist() if isinstance(got, np.ndarray) else got
        got = [one.tolist() if isinstance(one, np.ndarray) else one for one in got]
        assert got == values, name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_chunksize", [None, 1, 7])
def test_every_type(tmp_path, engine, stream, max_chunksize):
    """In one record batch or several, as file or stream, in a random order."""
    path = tmp_path / "a.arrow"
    truth = table(40)
    write(path, truth, max_chunksize=max_chunksize, stream=stream)

    records = headrace.open(path)
    indices, batch = epoch(records, engine)

    assert len(records) == 40
    for kind in NUMBERS:
        assert batch[kind].dtype == np.dtype(kind)
    assert (batch["vector"].shape, batch["matrix"].shape) == ((40, 3), (40, 2, 3))
    assert batch["list"][0].dtype == np.int32 and batch["large_list"][0].dtype == np.float64
    assert_same(batch, expected(truth, indices))


def test_feather(tmp_path):
    """Feather version 2 is an IPC file; its writer compresses unless told otherwise."""
    feather = pytest.importorskip("pyarrow.feather")
    truth = table(10)
    feather.write_feather(truth, str(tmp_path / "a.feather"), compression="uncompressed")

    indices, batch = epoch(headrace.open(tmp_path / "a.feather"))

    assert_same(batch, expected(truth, indices))


@pytest.mark.parametrize("stream", [False, True])
def test_several_files_and_empty_batches(tmp_path, stream):
    """Batches without rows, files without rows or batches, slices of larger tables."""
    whole = table(50)
    parts = [whole.slice(5, 9), whole.slice(0, 0), whole.slice(30, 20)]
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    for number, part in enumerate(parts):
        with make(str(tmp_path / f"{number}.arrow"), whole.schema) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist([], whole.schema))
            for batch in part.to_batches(max_chunksize=4):
                writer.write_batch(batch)
                writer.write_batch(pa.RecordBatch.from_pylist([], whole.schema))
    with make(str(tmp_path / "3.arrow"), whole.schema):
        pass

    records = headrace.open(tmp_path / "*.arrow")
    indices, batch = epoch(records)

    assert len(records) == 29
    assert_same(batch, expected(pa.concat_tables(parts), indices))
    assert len(headrace.open(tmp_path / "3.arrow")) == 0
    assert len(headrace.open(tmp_path / "1.arrow")) == 0


def test_more_records_than_are_kept_in_memory(tmp_path, monkeypatch):
    """Places then come from the files' own offsets batch by batch."""
    monkeypatch.setattr("headrace.data.columns._MOST_IN_MEMORY", 10)
    truth = table(60)
    for number in range(3):
        write(tmp_path / f"{number}.arrow", truth.slice(20 * number, 20), max_chunksize=6)

    indices, batch = epoch(headrace.open(tmp_path / "*.arrow"))

    assert_same(batch, expected(truth, indices))


def test_records_by_pickle(tmp_path, monkeypatch):
    """As processes are given them: small, without the file's content."""
    monkeypatch.setattr("headrace.data.columns._MOST_IN_MEMORY", 10)
    write(tmp_path / "a.arrow", pa.table({"text": [f"{i} " * 1000 for i in range(100)]}))
    records = headrace.open(tmp_path / "a.arrow")
    spans = records.spans(np.array([5, 3]), "text")

    content = pickle.dumps(records)

    assert len(content) < 5000
    again = pickle.loads(content).spans(np.array([5, 3]), "text")
    assert np.array_equal(again.offsets, spans.offsets)
    assert np.array_equal(again.lengths, spans.lengths)


def test_only_the_fields_asked_for(tmp_path):
    """One member of a struct, and one column; nothing else is read."""
    truth = table(20)
    write(tmp_path / "a.arrow", truth)

    records = headrace.open(tmp_path / "a.arrow", fields=("image.bytes", "i4"))
    indices, batch = epoch(records)

    assert list(batch) == ["image.bytes", "i4"]
    assert batch["image.bytes"] == expected(truth, indices)["image.bytes"]


def test_a_tensor_type(tmp_path):
    """Arrow's canonical tensors have the shape that they say."""
    arrays = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    column = pa.FixedShapeTensorArray.from_numpy_ndarray(arrays)
    write(tmp_path / "a.arrow", pa.table({"x": column}), max_chunksize=3)

    indices, batch = epoch(headrace.open(tmp_path / "a.arrow"))

    assert np.array_equal(batch["x"], arrays[indices])


REFUSED = {
    "nulls": (
        pa.array([1, None, 3]),
        "records lack a value: got 1 nulls in a record batch; in .*fill_null",
    ),
    "text_nulls": (pa.array(["a", None, "c"]), "records lack a value: got 1 nulls"),
    "inner_nulls": (pa.array([[1], [None], []], pa.list_(pa.int32())), "records lack a value"),
    "vector_nulls": (pa.array([[1], [None], [2]], pa.list_(pa.int32(), 1)), "records lack a value"),
    "dictionary": (
        pa.array(["a", "b", "a"]).dictionary_encode(),
        "it is dictionary-encoded: got di",
    ),
    "nested": (pa.array([[[1]], [], [[2]]]), r"it is nested: got list<item: list<item: int64>>"),
    "texts": (pa.array([["a"], [], ["b"]]), "it is nested: got list<item: string>; in .*; store"),
    "bool": (pa.array([True, False, True]), "it is packed, eight values a byte: got bool; .*uint8"),
    "bools": (pa.array([[True], [False], []]), "it is nested: got list<item: bool>"),
    "time": (
        pa.array([1, 2, 3], pa.timestamp("s")),
        "it holds times: got timestamp.s.; in .*; cast",
    ),
    "view": (
        pa.array(["a", "b", "c"], pa.string_view()),
        "it holds neither numbers nor text nor by",
    ),
    "decimal": (pa.array([1, 2, 3], pa.decimal128(9)), "neither numbers nor text .*decimal128"),
    "null": (pa.array([None] * 3), "it holds neither numbers nor text nor bytes: got null"),
    "map": (pa.array([[("a", 1)]] * 3, pa.map_(pa.string(), pa.int8())), "nor bytes: got map<"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_columns_that_cannot_be_read_in_place(tmp_path, name, stream):
    """Are refused by name when they are asked for; the others can be used."""
    column, message = REFUSED[name]
    write(tmp_path / "a.arrow", pa.table({"x": [5, 6, 7], name: column}), stream=stream)

    with pytest.raises(DataError, match=f"field '{name}' cannot be read: .*{message}"):
        headrace.open(tmp_path / "a.arrow")
    with pytest.raises(DataError, match=f"field '{name}' .*or open the other fields: fields="):
        headrace.open(tmp_path / "a.arrow", fields=(name,))
    indices, batch = epoch(headrace.open(tmp_path / "a.arrow", fields=("x",)))
    assert batch["x"].tolist() == [5 + index for index in indices.tolist()]


def test_nulls_of_a_struct(tmp_path):
    """A member of a record that is null as a whole has no value either."""
    column = pa.StructArray.from_arrays([pa.array([1, 2])], ["a"], mask=pa.array([False, True]))
    write(tmp_path / "a.arrow", pa.table({"s": column}))

    with pytest.raises(DataError, match="field 's.a' cannot be read: records lack a value"):
        headrace.open(tmp_path / "a.arrow")


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_compressed_files(tmp_path, compression, stream):
    """Say so, and what to do; Hugging Face's and pyarrow's own files are not compressed."""
    data = pa.table({"x": np.zeros(1000), "text": ["a" * 50] * 1000})
    write(tmp_path / "a.arrow", data, stream=stream, compression=compression)

    with pytest.raises(DataError, match="field 'x' .*compressed.*; write it again without compres"):
        headrace.open(tmp_path / "a.arrow")
    with pytest.raises(DataError, match="field 'text' cannot be read: its bytes are not in the f"):
        headrace.open(tmp_path / "a.arrow", fields=("text",))


@pytest.mark.parametrize("stream", [False, True])
def test_cut_short_anywhere(tmp_path, stream):
    """Is damaged, or, where a stream is cut between its messages, has the batches before."""
    truth = pa.table({"x": np.arange(9), "text": [str(i) * i for i in range(9)]})
    write(tmp_path / "a.arrow", truth, max_chunksize=3, stream=stream)
    content = (tmp_path / "a.arrow").read_bytes()
    num_opened = 0
    for length in range(1, len(content), 7):
        (tmp_path / "a.arrow").write_bytes(content[:length])
        try:
            records = headrace.open(tmp_path / "a.arrow", format="arrow")
        except DataError as error:
            assert "the Arrow file is damaged or truncated: got " in str(error)
            assert "a.arrow; copy or write it again" in str(error)
            continue
        num_opened += 1
        indices, batch = epoch(records)
        assert_same(batch, expected(truth, indices))
        assert len(records) in (0, 3, 6, 9)

    assert num_opened < (8 if stream else 1)


def test_damaged_offsets(tmp_path):
    """Offsets that point outside their column never become reads."""
    write(tmp_path / "a.arrow", pa.table({"text": ["one", "two", "three"]}))
    content = (tmp_path / "a.arrow").read_bytes()
    offsets = np.array([0, 3, 6, 11], "<i4").tobytes()
    for wrong in ([0, 3, 2, 11], [0, 3, 6, 12], [-1, 3, 6, 11]):
        (tmp_path / "a.arrow").write_bytes(
            content.replace(offsets, np.array(wrong, "<i4").tobytes())
        )
        with pytest.raises((DataError, ReadError), match="offsets of an Arrow column are damaged"):
            epoch(headrace.open(tmp_path / "a.arrow"))


def test_text_that_is_no_utf8(tmp_path):
    """Is a damaged record, named."""
    write(tmp_path / "a.arrow", pa.table({"text": ["one", "zwei", "three"]}))
    content = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "a.arrow").write_bytes(content.replace(b"zwei", b"z\xffei"))

    with pytest.raises(
        ReadError, match=r"a record is damaged: got 'utf-8'.*a.arrow, record 1, off"
    ):
        epoch(headrace.open(tmp_path / "a.arrow"))


def test_a_file_that_has_grown(tmp_path):
    """Its batches may lie elsewhere now."""
    write(tmp_path / "a.arrow", pa.table({"text": ["one", "two"]}))
    records = headrace.open(tmp_path / "a.arrow")
    with (tmp_path / "a.arrow").open("ab") as file:
        file.write(b"more")

    with pytest.raises(
        DataError, match="the file has changed since it was opened: got .* bytes, e"
    ):
        records.spans(np.array([0]), "text")
    (tmp_path / "a.arrow").unlink()
    with pytest.raises(DataError, match="a file cannot be read: got No such file.*a.arrow"):
        records.spans(np.array([0]), "text")


def test_columns_of_one_name(tmp_path):
    """Cannot be told apart."""
    data = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])
    write(tmp_path / "a.arrow", data)

    with pytest.raises(DataError, match="two columns have one name: got 'x'; in .*a.arrow; rename"):
        headrace.open(tmp_path / "a.arrow")


def test_files_of_different_types(tmp_path):
    """Are no data set."""
    write(tmp_path / "a.arrow", pa.table({"x": pa.array([[1]], pa.list_(pa.int32()))}))
    write(tmp_path / "b.arrow", pa.table({"x": pa.array([[1]], pa.list_(pa.int64()))}))

    with pytest.raises(DataError, match="files of one data set differ: got .*<i8"):
        headrace.open(tmp_path / "*.arrow")


def test_without_pyarrow(tmp_path, monkeypatch):
    """The message says what to install."""
    write(tmp_path / "a.arrow", pa.table({"x": [1]}))
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(DataError, match=r"need the package pyarrow; pip install headrace\[arrow\]"):
        headrace.open(tmp_path / "a.arrow")
