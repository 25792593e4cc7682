"""Formats: where each says that records lie, against readers that share no code with it."""

import gzip
import math
import struct
import zipfile

import numpy as np
import pytest

import headrace
from headrace.data.collate import dense
from headrace.data.formats import detect, make
from headrace.data.formats.idx import DTYPES
from headrace.data.reader import Reader
from headrace.errors import DataError
from headrace.progress import Silent

NUMBERS = np.array([0, 1, -1, 2, 7, 100, -100, 3, 5, 12, 0, 1], np.int8).reshape(4, 3)
NUMERIC = "b1 i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 c8 c16".split()
IDX_CODES = {0x08: "B", 0x09: "b", 0x0B: "h", 0x0C: "i", 0x0D: "f", 0x0E: "d"}


def scan(path, format):
    """What a format finds in a file."""
    return make(format, {}).scan(path, Silent())


def records_in(path, layout):
    """The records that a layout describes, taken from the file by plain slices."""
    content = path.read_bytes()
    rows = []
    for number in range(layout.num_records):
        start = layout.start_bytes + number * layout.stride_bytes
        row = np.frombuffer(content[start : start + layout.record_bytes], layout.dtype)
        rows.append(row.reshape(layout.shape))
    return rows


def scan_npy(path):
    assert detect(path) == "npy"
    return scan(path, "npy")["data"]


# .npy


@pytest.mark.parametrize("byte_order", "<>")
@pytest.mark.parametrize("kind", NUMERIC)
def test_npy_of_every_numeric_dtype(tmp_path, kind, byte_order):
    """Each record is what np.load has there, bit by bit, in either byte order."""
    path = tmp_path / "a.npy"
    dtype = np.dtype(byte_order + kind)
    np.save(path, NUMBERS.astype(dtype))

    layout = scan_npy(path)

    assert (layout.dtype, layout.shape, layout.num_records) == (dtype, (3,), 4)
    for found, expected in zip(records_in(path, layout), np.load(path), strict=True):
        assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version(tmp_path, version):
    """The header's length is 2 bytes long in version 1, 4 in the others."""
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array(file, NUMBERS, version)

    assert np.array_equal(records_in(path, scan_npy(path)), np.load(path))


@pytest.mark.parametrize("shape", [(0,), (1,), (5,), (0, 3), (5, 0), (2, 3, 4), (3, 1, 1, 2)])
def test_npy_of_every_shape(tmp_path, shape):
    """Records are the items of the first axis; there may be none, or of no bytes."""
    path = tmp_path / "a.npy"
    array = np.arange(math.prod(shape), dtype=np.float32).reshape(shape)
    np.save(path, array)

    layout = scan_npy(path)

    assert (layout.num_records, layout.shape) == (shape[0], shape[1:])
    for found, expected in zip(records_in(path, layout), array, strict=True):
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("shape", [(6, 1), (1, 6), (1, 1, 6), (6,)])
def test_fortran_order_where_it_is_c_order_too(tmp_path, shape):
    """With one axis longer than 1 the two orders lay the bytes alike, whatever the header says."""
    path = tmp_path / "a.npy"
    array = np.arange(6.0).reshape(shape)
    write_npy(path, "<f8", shape, array.tobytes(), fortran=True)

    assert np.array_equal(records_in(path, scan_npy(path)), np.load(path))


def write_npy(path, description, shape, data=b"", *, fortran=False, version=(1, 0)):
    """A .npy file of these words, right or wrong."""
    header = f"{{'descr': {description!r}, 'fortran_order': {fortran}, 'shape': {shape}, }}\n"
    write_header(path, header.encode(), data, version=version)


def write_header(path, header, data=b"", *, version=(1, 0)):
    """A .npy file of this header, padded to a multiple of 64 bytes as numpy does."""
    size = struct.calcsize("<H" if version == (1, 0) else "<I")
    header = header.rstrip(b"\n") + b" " * (-(len(header) + 8 + size) % 64) + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(header))
    path.write_bytes(b"\x93NUMPY" + bytes(version) + length + header + data)


def test_the_tests_own_npy_files_are_right(tmp_path):
    """What write_npy writes np.load reads."""
    write_npy(tmp_path / "a.npy", "|i1", (4, 3), NUMBERS.tobytes(), version=(2, 0))

    assert np.array_equal(np.load(tmp_path / "a.npy"), NUMBERS)


@pytest.mark.parametrize(
    "array, message",
    [
        (np.float32(1), r"the array has no axis of records: got shape \(\), expected at least 1-D"),
        (np.array(["a", "bc"]), "a dtype that cannot be trained on: got <U2, expected bool, an in"),
        (np.array([b"a", b"bc"]), r"a dtype that cannot be trained on: got \|S2"),
        (np.array(["2020-01-01"], "M8[D]"), r"cannot be trained on: got datetime64\[D\]"),
        (np.array([1], "m8[s]"), r"cannot be trained on: got timedelta64\[s\]"),
        (np.array([{}], object), "a dtype that cannot be trained on: got object"),
        (np.zeros(2, [("x", "f4"), ("y", "O")]), "a dtype that cannot be trained on: got object"),
        (np.zeros(2, [("x", [("y", "f4")])]), r"cannot be trained on: got \[\('y', '<f4'\)"),
        (np.zeros(2, np.longdouble), "cannot be trained on: got float128"),
        (np.zeros(2, np.clongdouble), "cannot be trained on: got complex256"),
    ],
)
def test_npy_that_is_no_set_of_records(tmp_path, array, message):
    """Valid files that cannot be read in place say so, and name the file."""
    path = tmp_path / "a.npy"
    np.save(path, array)

    with pytest.raises(DataError, match=message + r".*a\.npy; "):
        headrace.open(path)


@pytest.mark.parametrize("shape", [(3, 4), (5, 2, 3), (1, 4), (4, 1, 3, 2), (0, 3), (3, 0)])
@pytest.mark.parametrize("dtype", ["<f4", ">i2", [("x", ">i2"), ("y", "f8", (2, 3)), ("z", "u1")]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_in_either_order_and_of_structs(tmp_path, shape, dtype, order):
    """Records are those that NumPy's own indexing gives; members of structs are fields."""
    array = np.zeros(shape, dtype)
    content = np.random.default_rng(0).integers(0, 99, array.nbytes, np.uint8)
    array = np.ndarray(shape, dtype, content, order=order)
    np.save(tmp_path / "a.npy", array)
    array = np.load(tmp_path / "a.npy")

    records = headrace.open(tmp_path / "a.npy")

    assert list(records.fields) == list(array.dtype.names or ("data",))
    indices = np.random.default_rng(1).integers(0, max(shape[0], 1), 7)[: 7 * min(shape[0], 1)]
    for engine in ("uring", "threads"):
        with Reader(records.paths, engine=engine) as reader:
            for name, field in records.fields.items():
                pieces = reader.finish(reader.start(records.spans(indices, name)))
                batch = dense(pieces, field.dtype, field.record_shape)
                expected = array[indices] if name == "data" else array[name][indices]
                assert batch.tobytes() == expected.astype(batch.dtype).tobytes()


def test_npy_cut_short_anywhere(tmp_path):
    """At every length but the whole, it is said to be empty, unknown, damaged or truncated."""
    np.save(tmp_path / "a.npy", NUMBERS)
    content = (tmp_path / "a.npy").read_bytes()
    cut = tmp_path / "cut.npy"
    messages = {"the file is empty", "not a .npy file", "damaged", "not known", "is truncated"}
    seen = set()
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(DataError, match=r"cut\.npy") as caught:
            scan(cut, "npy")
        seen |= {message for message in messages if message in str(caught.value)}

    assert seen == messages
    assert "got 139 bytes, expected 140 for int8 of shape (4, 3)" in str(caught.value)


def test_npy_with_bytes_too_many(tmp_path):
    """Two arrays in one file are not taken for one."""
    with (tmp_path / "a.npy").open("wb") as file:
        np.save(file, NUMBERS)
        np.save(file, NUMBERS)

    with pytest.raises(DataError, match="more bytes than its header says: got 280 bytes, expec"):
        headrace.open(tmp_path / "a.npy")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"not a dictionary",
        b"[1, 2]",
        b"{'descr': '<f4'}",
        b"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': 1}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1.0,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}",
        b"{'descr': 'nonsense', 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': 7, 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': '', 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': [()], 'fortran_order': False, 'shape': (1,)}",
        b"{'descr': 1.5, 'fortran_order': False, 'shape': (1,)}",
        b"{['a']: 1}",
        b"{'descr': '\xff\xfe'}",
        b"{'descr': '\\d', 'fortran_order': False, 'shape': (1,)}",
        b"(" * 5000,
        b"__import__('os').getpid()",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1 if True else 2,)}",
        b"\0",
    ],
)
@pytest.mark.parametrize("version", [(1, 0), (3, 0)])
def test_npy_with_a_damaged_header(tmp_path, header, version):
    """No header, however odd, raises anything but the one error; none is carried out."""
    path = tmp_path / "a.npy"
    write_header(path, header, b"\0" * 4, version=version)

    with pytest.raises(DataError, match=r"damaged: got .*, expected a dictionary .*a\.npy"):
        headrace.open(path)


def test_npy_with_any_byte_of_the_header_changed(tmp_path):
    """Such a file is refused, or is still a file that np.load reads with the same result."""
    path = tmp_path / "a.npy"
    np.save(path, NUMBERS)
    content = path.read_bytes()
    generator = np.random.default_rng(0)
    num_accepted = 0
    for place in range(len(content) - NUMBERS.nbytes):
        drawn = int(generator.integers(256))
        for value in {content[place] ^ 1, content[place] ^ 0x80, ord(" "), drawn}:
            path.write_bytes(content[:place] + bytes([value]) + content[place + 1 :])
            try:
                layout = scan(path, "npy")["data"]
            except DataError:
                continue
            num_accepted += 1
            assert np.array_equal(records_in(path, layout), np.load(path))

    assert num_accepted > 50  # most of a header is blanks


def test_npy_header_of_absurd_length(tmp_path):
    """Four bytes may announce 4 GiB of header, which nobody should wait for."""
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b" " * 100)

    with pytest.raises(DataError, match="a header of 4294967307 bytes, of which 112 can be read"):
        headrace.open(path)


def test_npy_of_absurd_shape(tmp_path):
    """Sizes beyond 64 bits are compared as they are."""
    path = tmp_path / "a.npy"
    write_npy(path, "<f8", (2**40, 2**40))

    with pytest.raises(DataError, match=f"is truncated: got 128 bytes, expected {2**83 + 128}"):
        headrace.open(path)


def test_npy_of_an_unknown_version(tmp_path):
    """Version 4 may be anything."""
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x04\x00" + b" " * 100)

    with pytest.raises(DataError, match="not known: got 4.0, expected 1.0, 2.0 or 3.0"):
        headrace.open(path)


# IDX


def idx_content(code, shape, values):
    """An IDX file as the page of the MNIST database describes it."""
    head = struct.pack(f">BBBB{len(shape)}I", 0, 0, code, len(shape), *shape)
    return head + struct.pack(f">{len(values)}{IDX_CODES[code]}", *values)


@pytest.mark.parametrize("shape", [(12,), (4, 3), (2, 3, 2), (3, 2, 1, 2), (0, 28, 28), (1,)])
@pytest.mark.parametrize("code", IDX_CODES)
def test_idx_of_every_type(tmp_path, code, shape):
    """Six types of numbers, any number of axes; the values are those that struct packed."""
    path = tmp_path / "train-images-idx3-ubyte"
    limits = {"B": (0, 255), "b": (-128, 127)}.get(IDX_CODES[code], (-32768, 32767))
    values = [limits[i % 2] + (3 * i if i % 2 == 0 else -3 * i) for i in range(math.prod(shape))]
    path.write_bytes(idx_content(code, shape, values))

    assert detect(path) == "idx"
    layout = scan(path, "idx")["data"]

    assert (layout.num_records, layout.shape) == (shape[0], shape[1:])
    assert np.ravel(records_in(path, layout)).tolist() == values


def test_idx_knows_the_six_types():
    """The types in the tests are the types in the code."""
    assert set(DTYPES) == set(IDX_CODES)


def test_idx_cut_short_anywhere(tmp_path):
    """At every length but the whole."""
    path = tmp_path / "a"
    content = idx_content(0x0C, (2, 3), [1, 2, 3, 4, 5, 6])
    for length in range(1, len(content)):
        path.write_bytes(content[:length])
        message = "not an IDX file: got the first bytes 00" if length < 4 else "is truncated: got"
        with pytest.raises(DataError, match=f"{message}.*{path}"):
            scan(path, "idx")
    with pytest.raises(DataError, match=r"got 35 bytes, expected 36 for >i4 of shape \(2, 3\)"):
        headrace.open(path)
    path.write_bytes(content[:11])
    with pytest.raises(DataError, match="got 11 bytes, expected 12 for the lengths of 2 axes"):
        headrace.open(path)


def test_idx_with_bytes_too_many(tmp_path):
    """A wrong header is likelier than a file with a tail."""
    path = tmp_path / "a"
    path.write_bytes(idx_content(0x08, (2, 2), [1, 2, 3, 4]) + b"\0")

    with pytest.raises(DataError, match="more bytes than its header says: got 17 bytes, expected"):
        headrace.open(path)


@pytest.mark.parametrize(
    "head", ["00 00 07 01", "00 00 0a 01", "00 00 08 00", "01 00 08 01", "00 01 08 01"]
)
def test_idx_of_bad_magic(tmp_path, head):
    """An unknown type, no axes, or no zeros at the start."""
    path = tmp_path / "a"
    path.write_bytes(bytes.fromhex(head) + b"\0" * 20)

    with pytest.raises(DataError, match="the file's format is not known: got the first bytes"):
        headrace.open(path)
    with pytest.raises(DataError, match=f"not an IDX file: got the first bytes {head}, expected"):
        headrace.open(path, format="idx")


# Files that cannot be read in place


@pytest.mark.parametrize("format", [None, "npy", "idx"])
def test_compressed_files_say_what_to_do(tmp_path, format):
    """MNIST is published as .gz; the message says gunzip, whether or not the format is named."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_content(0x08, (2, 2), [1, 2, 3, 4])))
    with pytest.raises(
        DataError, match="compressed.*: got gzip; in .*gz; rewrite it: headrace pack"
    ):
        headrace.open(path, format=format)


def test_npz(tmp_path):
    """Stored arrays are fields, read where they lie; compressed ones are refused."""
    struct = np.array([(1, 2.5), (3, 4.5), (5, 6.5)], [("a", "i4"), ("b", "f8")])
    np.savez(tmp_path / "a.npz", x=NUMBERS[:3], y=np.arange(3.0), z=struct)
    with np.load(tmp_path / "a.npz") as truth:
        expected = {"x": truth["x"], "y": truth["y"], "z.a": struct["a"], "z.b": struct["b"]}

    records = headrace.open(tmp_path / "a.npz")
    batch = next(iter(headrace.Loader(records, batch_size=3, order=headrace.SequentialOrder())))

    assert {name: array.tolist() for name, array in batch.items()} == {
        name: array.tolist() for name, array in expected.items()
    }
    np.savez_compressed(tmp_path / "b.npz", x=NUMBERS)
    with pytest.raises(DataError, match="array in the archive is compressed.*x.npy.*np.savez, whi"):
        headrace.open(tmp_path / "b.npz")
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("a.txt", "text")
    with pytest.raises(DataError, match="holds something else than arrays: got a.txt"):
        headrace.open(tmp_path / "c.zip")
    content = (tmp_path / "a.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(content[:-30])
    with pytest.raises(DataError, match="the archive is damaged"):
        headrace.open(tmp_path / "d.npz")


@pytest.mark.parametrize("format", [None, "npy", "idx"])
def test_empty_file(tmp_path, format):
    """Nothing was written, or a download failed."""
    path = tmp_path / "a.npy"
    path.touch()

    with pytest.raises(DataError, match=r"the file is empty: got 0 bytes; in .*a\.npy"):
        headrace.open(path, format=format)


def test_text_is_pointed_to_windows(tmp_path):
    """Text has no header, so only the user can say that it is meant."""
    path = tmp_path / "a.data"
    path.write_text("call me Ishmael")

    with pytest.raises(DataError, match='first bytes 63 61 .*give format=.*format="windows"'):
        headrace.open(path)
    with pytest.raises(DataError, match="not a .npy file: got the first bytes 63 61"):
        headrace.open(path, format="npy")
