"""From scattered bytes to dense arrays and tensors, against a naive join."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data import collate
from headrace.data.collate import dense, to_tensors
from headrace.data.reader import Pieces
from headrace.errors import DataError


def pieces_of(records, seed=0):
    """Records, each a list of byte strings, scattered over a buffer with rubbish between them."""
    generator = np.random.default_rng(seed)
    flat = [piece for record in records for piece in record]
    buffer, positions = bytearray(generator.bytes(3)), [0] * len(flat)
    for number in generator.permutation(len(flat)).tolist():
        positions[number] = len(buffer)
        buffer += flat[number] + generator.bytes(int(generator.integers(4)))
    return Pieces(
        np.frombuffer(bytes(buffer), np.uint8),
        np.array(positions, np.int64),
        np.array([len(piece) for piece in flat], np.int64),
        np.concatenate([[0], np.cumsum([len(record) for record in records])]).astype(np.int64),
    )


def assert_dense(found, expected):
    """The values, in memory of its own, ready to be changed and to become a tensor."""
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert found.dtype.isnative
    assert found.shape == expected.shape
    assert found.astype(expected.dtype).tobytes() == expected.tobytes()
    assert found.flags.writeable and found.flags.aligned and found.flags.c_contiguous


@pytest.mark.parametrize(
    "dtype", "? i1 u1 <i2 >i2 <u4 >u4 <i8 >i8 >f2 <f4 >f4 <f8 >f8 >c8 >c16".split()
)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_dense_of_whole_records(dtype, shape):
    """One piece a record; in the processor's byte order whatever the file's."""
    expected = (np.arange(7 * 6) % 100).astype(dtype)[: 7 * int(np.prod(shape))].reshape(7, *shape)
    pieces = pieces_of([[expected[row : row + 1].tobytes()] for row in range(7)])

    found = dense(pieces, np.dtype(dtype), shape)

    assert_dense(found, expected)
    assert not np.shares_memory(found, pieces.buffer)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 6), st.integers(0, 24), st.integers(0, 2**32), st.booleans())
def test_dense_of_pieces(num_records, record_words, seed, equal):
    """Records cut anywhere into pieces, empty ones too, or all at the same places."""
    generator = np.random.default_rng(seed)
    rows = generator.integers(0, 2**16, (num_records, record_words)).astype(">u2")
    records, cuts = [], []
    for row in rows:
        if not cuts or not equal:
            cuts = sorted(generator.integers(0, 2 * record_words + 1, generator.integers(4)))
        edges = [0, *cuts, 2 * record_words]
        content = row.tobytes()
        records.append([content[a:b] for a, b in zip(edges, edges[1:], strict=False)])

    assert_dense(dense(pieces_of(records, seed), np.dtype(">u2"), (record_words,)), rows)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2)])
def test_dense_of_records_without_bytes(shape):
    """There may be records though there are no bytes."""
    expected = np.empty((4, *shape), ">f4")

    assert_dense(dense(pieces_of([[b""]] * 4), np.dtype(">f4"), shape), expected)
    assert_dense(dense(pieces_of([[]] * 4), np.dtype(">f4"), shape), expected)


def test_dense_of_no_records():
    """An empty batch keeps dtype and shape."""
    assert_dense(dense(pieces_of([]), np.dtype(">i4"), (2, 3)), np.empty((0, 2, 3), ">i4"))


def test_dense_of_overlapping_pieces():
    """Windows share bytes of the buffer; what is changed in one array row stays there."""
    buffer = np.arange(10, dtype=np.uint8)
    positions = np.array([0, 1, 1, 6])
    pieces = Pieces(buffer, positions, np.full(4, 4), np.arange(5))

    found = dense(pieces, np.dtype("u1"), (4,))
    found[1] = 0

    assert found.tolist() == [[0, 1, 2, 3], [0] * 4, [1, 2, 3, 4], [6, 7, 8, 9]]
    assert buffer.tolist() == list(range(10))


def test_dense_of_records_longer_than_an_item_of_numpy(monkeypatch):
    """Above 2 GiB a record, numpy has no such item; the bytes are joined another way."""
    monkeypatch.setattr(collate, "_LONGEST_ITEM", 11)
    expected = np.arange(12, dtype="f4").reshape(4, 3)

    assert_dense(
        dense(pieces_of([[r.tobytes()] for r in expected]), np.dtype("f4"), (3,)), expected
    )


def test_longest_item_is_numpys():
    """One byte more is refused, which is why the limit is there."""
    assert np.dtype((np.void, collate._LONGEST_ITEM)).itemsize == collate._LONGEST_ITEM
    with pytest.raises(ValueError):
        np.dtype((np.void, collate._LONGEST_ITEM + 1))


@pytest.mark.parametrize(
    "records, message",
    [
        (
            [[b"1234"], [b"123"]],
            "record 1 of the batch have the wrong size: got 3 bytes, expected 4",
        ),
        ([[b"12", b"345"]], "record 0 of the batch have the wrong size: got 5 bytes, expected 4"),
        ([[b"1234"], [], [b"1234"]], "record 1 of the batch .*: got 0 bytes, expected 4"),
        # Together as many bytes as they should be.
        ([[b"12345"], [b"123"]], "record 0 of the batch .*: got 5 bytes, expected 4"),
    ],
)
def test_pieces_of_the_wrong_size(records, message):
    """Bytes never slip from one record into the next."""
    with pytest.raises(DataError, match=message):
        dense(pieces_of(records), np.dtype("f4"), ())


@pytest.mark.parametrize(
    "dtype", "? i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16 >i2 >u4 >f8 >c8".split()
)
def test_every_dtype_that_opens_becomes_a_tensor(dtype):
    """The values as numpy has them, unsigned ones too; big-endian ones are turned round."""
    array = np.array([[0, 1, 100]]).astype(dtype)

    tensor = to_tensors({"x": array})["x"]

    assert tensor.dtype == getattr(torch, np.dtype(dtype).name)
    assert tensor.tolist() == array.tolist()


def test_tensors_share_the_arrays_memory():
    """Nothing is copied, and each keeps its name."""
    arrays = {"x": np.zeros(3, np.float32), "y": np.zeros((2, 0), np.uint16)}

    tensors = to_tensors(arrays)
    arrays["x"][1] = 7

    assert list(tensors) == ["x", "y"]
    assert tensors["x"].tolist() == [0, 7, 0]
    assert tensors["y"].shape == (2, 0)


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble, "U3", "S3", "M8[s]", object])
def test_what_torch_does_not_hold(dtype):
    """The field is named."""
    with pytest.raises(DataError, match="a dtype that torch does not have: got .*; in field 'y'"):
        to_tensors({"x": np.zeros(2), "y": np.zeros(2, dtype)})


def test_pinning_without_a_device(monkeypatch):
    """Pinned memory is for copies to a device, so there must be one."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)

    with pytest.raises(DataError, match="memory cannot be pinned: got no device to copy to; leave"):
        to_tensors({"x": np.zeros(2)}, pin_memory=True)
