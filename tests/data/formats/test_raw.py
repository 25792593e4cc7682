"""Raw records of one size, against np.fromfile and np.memmap."""

import numpy as np
import pytest

import headrace
from headrace.errors import DataError
from tests.data.formats.epochs import ENGINES, epoch


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "dtype, shape, offset",
    [("<f4", (3,), 0), (">i2", (2, 5), 13), ("u1", (), 4096), ("<f8", 4, 1), ("c8", (1, 1), 0)],
)
def test_numbers(tmp_path, dtype, shape, offset, engine):
    """Any dtype, shape and header, at offsets that are no multiple of anything."""
    path = tmp_path / "a.bin"
    record_bytes = np.dtype(dtype).itemsize * int(np.prod(shape))
    content = np.random.default_rng(0).integers(0, 60, offset + 30 * record_bytes, np.uint8)
    path.write_bytes(content.tobytes())
    truth = np.fromfile(path, dtype, offset=offset).reshape(30, *np.atleast_1d(shape).tolist())

    records = headrace.open(path, format="raw", dtype=dtype, shape=shape, offset=offset)
    indices, batch = epoch(records, engine)

    assert len(records) == 30
    assert batch["data"].dtype == np.dtype(dtype).newbyteorder("=")
    assert np.array_equal(batch["data"], truth[indices])


@pytest.mark.parametrize("engine", ENGINES)
def test_structs_over_several_files(tmp_path, engine):
    """As CIFAR-10's binary files: a label, then an image; members are fields."""
    dtype = np.dtype([("label", "u1"), ("image", "u1", (3, 4, 4)), ("weight", ">f4")])
    for number, size in enumerate((5, 0, 9)):
        content = np.random.default_rng(number).integers(0, 60, size * dtype.itemsize, np.uint8)
        (tmp_path / f"{number}.bin").write_bytes(content.tobytes())
    parts = [np.fromfile(tmp_path / f"{number}.bin", dtype) for number in range(3)]
    truth = np.concatenate(parts)

    records = headrace.open(tmp_path / "*.bin", format="raw", dtype=dtype)
    indices, batch = epoch(records, engine)

    assert list(batch) == ["label", "image", "weight"]
    for name in batch:
        assert np.array_equal(batch[name], truth[name][indices])


def test_structs_with_padding_and_a_shape(tmp_path):
    """Records of several structs whose members do not lie one after another."""
    layout = {"names": ["x", "y"], "formats": ["<i2", "<f4"], "offsets": [2, 8], "itemsize": 16}
    content = np.random.default_rng(0).integers(0, 60, 6 * 3 * 16, np.uint8)
    (tmp_path / "a.bin").write_bytes(content.tobytes())
    truth = np.memmap(tmp_path / "a.bin", np.dtype(layout), "r", shape=(6, 3))

    records = headrace.open(tmp_path / "a.bin", format="raw", dtype=layout, shape=3)
    indices, batch = epoch(records)

    assert np.array_equal(batch["x"], truth["x"][indices])
    assert np.array_equal(batch["y"], truth["y"][indices])


def test_a_file_beyond_32_bits(tmp_path):
    """Records at offsets across 2^31 and 2^32 of a sparse file."""
    path = tmp_path / "a.bin"
    places = [0, 2**31 // 8 - 1, 2**31 // 8, 2**32 // 8 - 1, 2**32 // 8, 2**32 // 8 + 5]
    with path.open("wb") as file:
        file.truncate(2**32 + 48)
        for place in places:
            file.seek(place * 8)
            file.write((place + 1).to_bytes(8, "little"))

    records = headrace.open(path, format="raw", dtype="<u8")

    assert len(records) == 2**29 + 6
    order = _Given(places)
    with headrace.Loader(records, len(places), order=order, direct=False) as loader:
        assert next(iter(loader))["data"].tolist() == [place + 1 for place in places]


class _Given:
    """An order that begins with these records."""

    identity = {"order": "given"}

    def __init__(self, first):
        self._first = np.array(first)

    def num_positions(self, num_records):
        return num_records

    def indices(self, positions, num_records, epoch):
        return self._first[positions % len(self._first)]


def test_an_empty_file_has_no_records(tmp_path):
    """As np.fromfile has it; a header alone too."""
    (tmp_path / "a.bin").write_bytes(b"head")

    assert len(headrace.open(tmp_path / "a.bin", format="raw", dtype="f4", offset=4)) == 0


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"dtype": "<f4"},
            "no whole number of records: got 10 bytes, expected 0 and a multiple of 4;",
        ),
        (
            {"dtype": "u1", "shape": 3, "offset": 2},
            "got 10 bytes, expected 2 and a multiple of 3; in",
        ),
        (
            {"dtype": "u1", "offset": 11},
            "got 10 bytes, expected 11 and a multiple of 1; in .*a.bin; l",
        ),
        ({"dtype": "nonsense"}, "not a dtype: got 'nonsense', expected such as"),
        (
            {"dtype": "u1", "shape": (2, -1)},
            r"shape of the records is wrong: got \(2, -1\), expected",
        ),
        (
            {"dtype": "u1", "shape": 2.5},
            "shape of the records is wrong: got 2.5, expected whole num",
        ),
        ({"dtype": "u1", "shape": (0, 2)}, "got 'uint8 .0, 2.', expected records of at least one"),
        ({"dtype": "u1", "offset": -1}, "offset of the records is wrong: got -1, expected a whole"),
        ({"dtype": "O"}, "a dtype that cannot be trained on: got object"),
        ({"dtype": "S4"}, r"a dtype that cannot be trained on: got \|S4"),
        ({}, 'format "raw" needs dtype='),
    ],
)
def test_what_does_not_fit(tmp_path, options, message):
    """Sizes that leave bytes over and options that make no sense are refused before any read."""
    (tmp_path / "a.bin").write_bytes(bytes(10))

    with pytest.raises(DataError, match=message):
        headrace.open(tmp_path / "a.bin", format="raw", **options)


def test_a_compressed_looking_head_is_data(tmp_path):
    """Any bytes may be numbers, those of gzip's magic number too."""
    (tmp_path / "a.bin").write_bytes(b"\x1f\x8b\x08\x00")

    _, batch = epoch(headrace.open(tmp_path / "a.bin", format="raw", dtype="u1"))

    assert sorted(batch["data"].tolist()) == [0, 8, 31, 139]


def test_equal_options_are_one_format(tmp_path):
    """However they are written, the data set has one fingerprint."""
    (tmp_path / "a.bin").write_bytes(bytes(16))
    ways = [{"dtype": "<f4", "shape": 2}, {"dtype": np.float32, "shape": [2]}]

    found = {headrace.open(tmp_path / "a.bin", format="raw", **way).fingerprint for way in ways}

    assert len(found) == 1
