"""MDS shards, against a writer that follows the layout's description, and MosaicML's own."""

import io
import json
import struct

import numpy as np
import pytest

import headrace
from headrace.errors import DataError, ReadError
from tests.data.formats.epochs import ENGINES, epoch

SIZES = {"int": 8, "int128": 16, "uint8": 1, "float32": 4, "ndarray:int16:2,3": 12}


def shard(columns, samples, **changes):
    """The bytes of a shard: columns name -> encoding, samples as dicts of encoded bytes."""
    names = sorted(columns)
    sizes = [SIZES.get(columns[name]) for name in names]
    config = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": sizes,
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 67108864,
        "version": 2,
    }
    text = json.dumps(config | changes, sort_keys=True).encode()
    bodies = []
    for sample in samples:
        head = b"".join(
            struct.pack("<I", len(sample[name]))
            for name, size in zip(names, sizes, strict=True)
            if size is None
        )
        bodies.append(head + b"".join(sample[name] for name in names))
    start = 4 * (len(samples) + 2) + len(text)
    offsets = [start]
    for body in bodies:
        offsets.append(offsets[-1] + len(body))
    return struct.pack(f"<{len(offsets) + 1}I", len(samples), *offsets) + text + b"".join(bodies)


def write_set(folder, columns, shards, **changes):
    """Shards and their index."""
    folder.mkdir(exist_ok=True)
    listed = []
    for number, samples in enumerate(shards):
        name = f"shard.{number:05}.mds"
        (folder / name).write_bytes(shard(columns, samples))
        size = (folder / name).stat().st_size
        raw = {"basename": name, "bytes": size, "hashes": {}}
        listed.append(
            {"format": "mds", "raw_data": raw, "samples": len(samples), "zip_data": None} | changes
        )
    (folder / "index.json").write_text(json.dumps({"shards": listed, "version": 2}))


COLUMNS = {
    "label": "int",
    "image": "bytes",
    "text": "str",
    "weight": "float32",
    "grid": "ndarray:int16:2,3",
    "facts": "json",
}


def samples(numbers):
    """Values, and the same encoded."""
    values = [
        {
            "label": -number,
            "image": bytes([number]) * (number * 37 % 200),
            "text": "ü" * (number % 5),
            "weight": number / 4,
            "grid": np.arange(6, dtype="<i2").reshape(2, 3) + number,
            "facts": {"n": [number]},
        }
        for number in numbers
    ]
    encoded = [
        {
            "label": struct.pack("<q", value["label"]),
            "image": value["image"],
            "text": value["text"].encode(),
            "weight": struct.pack("<f", value["weight"]),
            "grid": value["grid"].tobytes(),
            "facts": json.dumps(value["facts"]).encode(),
        }
        for value in values
    ]
    return values, encoded


def assert_same(batch, values, indices):
    for name, column in batch.items():
        for found, index in zip(column, indices, strict=True):
            assert np.array_equal(found, values[index][name]), name


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("source", ["index.json", "", "*.mds"])
def test_several_columns_and_shards(tmp_path, source, engine):
    """By index, folder or glob; several columns of any length, one shard of no samples."""
    values, encoded = samples(range(30))
    write_set(tmp_path / "set", COLUMNS, [encoded[:13], [], encoded[13:14], encoded[14:]])

    records = headrace.open(tmp_path / "set" / source)
    indices, batch = epoch(records, engine)

    assert sorted(batch) == sorted(COLUMNS)
    assert batch["label"].dtype == np.int64 and batch["weight"].dtype == np.float32
    assert (batch["grid"].dtype, batch["grid"].shape) == (np.int16, (30, 2, 3))
    assert_same(batch, values, indices)
    again = headrace.open(tmp_path / "set" / source)  # now by the index beside the shards
    assert again.fingerprint == records.fingerprint
    assert_same(epoch(again, engine)[1], values, indices)


@pytest.mark.parametrize("names", [("label",), ("label", "grid"), ("image",), ("label", "image")])
def test_at_most_one_column_of_any_length(tmp_path, names):
    """All of fixed size, or one whose sizes follow from the samples'."""
    values, encoded = samples(range(1, 20))
    columns = {name: COLUMNS[name] for name in names}
    write_set(tmp_path / "set", columns, [encoded[:7], encoded[7:]])

    indices, batch = epoch(headrace.open(tmp_path / "set"))

    assert sorted(batch) == sorted(names)
    assert_same(batch, values, indices)


def test_order_is_the_indexs(tmp_path):
    """Not that of the names of the shards."""
    _, encoded = samples(range(4))
    write_set(tmp_path, {"label": "int"}, [encoded[:1], encoded[1:]])
    index = json.loads((tmp_path / "index.json").read_text())
    index["shards"].reverse()
    (tmp_path / "index.json").write_text(json.dumps(index))

    records = headrace.open(tmp_path)

    with headrace.Loader(records, 4, order=headrace.SequentialOrder()) as loader:
        assert next(iter(loader))["label"].tolist() == [-1, -2, -3, 0]


def encoded_array(array, *, with_dtype):
    """An ndarray of dynamic shape, of two axes of less than 256."""
    code = {"uint8": 8, "float32": 34, "int64": 65}[array.dtype.name]
    head = bytes([code] if with_dtype else []) + bytes([2 << 2, *array.shape])
    return head + array.tobytes()


def test_arrays_of_any_shape(tmp_path):
    """With the dtype in the encoding, or before each array."""
    arrays = [np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((1, 4), np.float32)]
    others = [np.arange(200, dtype=np.int64).reshape(100, 2), np.ones((3, 1), np.uint8)]
    encoded = [
        {
            "a": encoded_array(one, with_dtype=False),
            "b": encoded_array(other, with_dtype=True),
        }
        for one, other in zip(arrays, others, strict=True)
    ]
    write_set(tmp_path, {"a": "ndarray:float32", "b": "ndarray"}, [encoded])

    indices, batch = epoch(headrace.open(tmp_path))

    for index, one, other in zip(indices, batch["a"], batch["b"], strict=True):
        assert one.dtype == np.float32 and np.array_equal(one, arrays[index])
        assert other.dtype == others[index].dtype and np.array_equal(other, others[index])
    encoded[1]["b"] = b"\x07\x08"
    write_set(tmp_path, {"a": "ndarray:float32", "b": "ndarray"}, [encoded])
    with pytest.raises(ReadError, match="a record is damaged: got no array: KeyError.*record 1"):
        epoch(headrace.open(tmp_path))


def test_numbers_as_text(tmp_path):
    """Of any size."""
    encoded = [{"i": b"123456789012345678901234567890", "f": b"0.125"}]
    write_set(tmp_path, {"i": "str_int", "f": "str_float"}, [encoded])

    _, batch = epoch(headrace.open(tmp_path))

    assert batch == {"i": [123456789012345678901234567890], "f": [0.125]}


def test_images(tmp_path):
    """Bytes as they are, or decoded when asked."""
    image_of = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    file = io.BytesIO()
    image_of.fromarray(pixels).save(file, "PNG")
    write_set(tmp_path, {"x": "png"}, [[{"x": file.getvalue()}]])

    assert epoch(headrace.open(tmp_path))[1]["x"] == [file.getvalue()]
    _, batch = epoch(headrace.open(tmp_path, format="mds", decoded=True))
    assert np.array_equal(batch["x"][0], pixels)


@pytest.mark.parametrize(
    "encoding, message",
    [
        ("pkl", "a pickle can run any code: got pkl; in .*shard.00000.mds; write it as bytes, js"),
        ("pil", "its encoding is not known here: got pil"),
        ("int128", "its encoding is not known here: got int128"),
        ("list[jpeg]", "its encoding is not known here: got list.jpeg."),
    ],
)
def test_encodings_that_are_refused(tmp_path, encoding, message):
    """By name, when they are asked for; also from the index that is kept."""
    encoded = [{"odd": b"a" * 16, "x": b"b"}, {"odd": b"a" * 16, "x": b""}]
    write_set(tmp_path, {"odd": encoding, "x": "bytes"}, [encoded])

    for _ in range(2):
        with pytest.raises(DataError, match=f"field 'odd' cannot be read: {message}"):
            headrace.open(tmp_path)
        indices, batch = epoch(headrace.open(tmp_path, fields=("x",)))
        assert batch["x"] == [[b"b", b""][index] for index in indices]


def test_truncated_shard(tmp_path):
    """One byte less is told with the file and both sizes; any other length is an error too."""
    _, encoded = samples(range(5))
    content = shard(COLUMNS, encoded)
    path = tmp_path / "a.mds"
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        message = "is truncated|a damaged one: got"
        with pytest.raises(DataError, match=rf"({message}).*a\.mds"):
            headrace.open(path)
    size = len(content)
    with pytest.raises(DataError, match=f"got {size - 1} bytes, expected {size} for 5 samples"):
        headrace.open(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(DataError, match="more bytes than its header says"):
        headrace.open(path)


def test_damaged_shards(tmp_path):
    """Sizes that do not add up, places that do not ascend, columns of another version."""
    _, encoded = samples(range(5))
    content = shard(COLUMNS, encoded)
    path = tmp_path / "a.mds"
    start = struct.unpack_from("<I", content, 12)[0]
    path.write_bytes(content[:start] + struct.pack("<I", 10**6) + content[start + 4 :])
    with pytest.raises(
        DataError, match="columns of a sample are not as long as the sample: .*record 2"
    ):
        headrace.open(path)
    path.write_bytes(content[:12] + struct.pack("<I", 5) + content[16:])
    with pytest.raises(DataError, match="damaged one: got places of samples that do not ascend"):
        headrace.open(path)
    path.write_bytes(shard(COLUMNS, encoded, version=3))
    with pytest.raises(DataError, match="got ValueError.*version 3.*expected the columns, of vers"):
        headrace.open(path)
    path.write_bytes(shard({"label": "int"}, [{"label": bytes(8)}], column_sizes=[4]))
    with pytest.raises(DataError, match="damaged one: got 4 bytes of int, expected 8; in .*a.mds"):
        headrace.open(path)
    path.write_bytes(shard(COLUMNS, encoded, column_names=["x"]))
    with pytest.raises(DataError, match="damaged one: got ValueError"):
        headrace.open(path)


def test_an_index_that_does_not_open(tmp_path):
    """Compressed, missing or foreign shards, none, or no index at all."""
    _, encoded = samples(range(2))
    columns = {"label": "int"}
    index = tmp_path / "index.json"
    write_set(tmp_path, columns, [encoded], zip_data={"basename": "shard.00000.mds.zstd"})
    (tmp_path / "shard.00000.mds").rename(tmp_path / "shard.00000.mds.zstd")
    with pytest.raises(DataError, match="a shard is compressed, .*: got shard.00000.mds.zstd; in"):
        headrace.open(tmp_path)
    (tmp_path / "shard.00000.mds.zstd").unlink()
    with pytest.raises(
        DataError, match="a shard is missing: got .*/shard.00000.mds; in .*index.js"
    ):
        headrace.open(index)
    write_set(tmp_path, columns, [encoded], format="json")
    with pytest.raises(DataError, match="the shards are of another format: got json, expected mds"):
        headrace.open(index)
    write_set(tmp_path, columns, [])
    with pytest.raises(DataError, match="the index lists no shards; in .*index.json"):
        headrace.open(index)
    for text in ("{", "[]", '{"shards": 7}', '{"shards": [{}]}'):
        index.write_text(text)
        with pytest.raises(DataError, match="not an index of MDS shards: got "):
            headrace.open(index, format="mds")


def test_a_number_of_samples_that_looks_like_gzip(tmp_path):
    """35615 is 1f 8b 00 00 as a shard begins with it."""
    path = tmp_path / "a.mds"
    path.write_bytes(
        shard({"x": "uint8"}, [{"x": bytes([number % 251])} for number in range(35615)])
    )

    records = headrace.open(path)
    indices, batch = epoch(records, batch_size=5000)

    assert np.array_equal(batch["x"], indices % 251)


def test_the_files_are_only_read(tmp_path):
    """Nothing of the data set is changed or removed, whatever is read."""
    _, encoded = samples(range(20))
    write_set(tmp_path, COLUMNS, [encoded[:10], encoded[10:]])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

    for _ in range(2):
        epoch(headrace.open(tmp_path))

    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_shards_of_mosaics_own_writer(tmp_path):
    """Where mosaicml-streaming is installed."""
    streaming = pytest.importorskip("streaming")
    values, _ = samples(range(40))
    with streaming.MDSWriter(
        out=str(tmp_path / "set"), columns=COLUMNS, compression=None, size_limit=2000
    ) as writer:
        for value in values:
            writer.write(value)

    records = headrace.open(tmp_path / "set")
    indices, batch = epoch(records)

    assert len(records.paths) > 1
    assert_same(batch, values, indices)
