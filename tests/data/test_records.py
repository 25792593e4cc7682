"""Data sets on disk: what opens, where its records lie, and when it counts as changed."""

import os
import struct
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.errors import DataError


def save(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    np.save(path, array)
    return path


def part(number, num_records=5, dtype="f4"):
    """An array whose values tell the part and the place."""
    return (100 * number + np.arange(num_records * 3).reshape(num_records, 3)).astype(dtype)


def read(records, indices, name="data"):
    """Records through plain open, seek and read; none of the package's reading code."""
    spans, field = records.spans(np.array(indices, np.int64), name), records.fields[name]
    assert spans.starts.tolist() == list(range(len(indices) + 1))
    rows = []
    for file, offset, length in zip(
        spans.files.tolist(), spans.offsets.tolist(), spans.lengths.tolist(), strict=True
    ):
        assert length == field.record_bytes
        with open(records.paths[file], "rb") as stream:
            stream.seek(offset)
            rows.append(np.frombuffer(stream.read(length), field.dtype).reshape(field.shape))
    return np.array(rows, field.dtype).reshape(len(indices), *field.shape)


# From indexes to bytes.


@pytest.mark.parametrize("dtype", ["u1", ">i2", "<i8", "f2", ">f8", "?", ">c8"])
def test_spans_decode_to_what_numpy_loads(tmp_path, dtype):
    """Any indexes, in any order, with repeats."""
    array = part(0, 50, dtype)
    records = headrace.open(save(tmp_path / "a.npy", array))
    indices = np.random.default_rng(0).integers(0, 50, 200)

    assert len(records) == 50
    assert records.fields["data"].dtype == np.dtype(dtype)
    assert np.array_equal(read(records, indices), np.load(tmp_path / "a.npy")[indices])


def test_files_are_one_after_another(tmp_path):
    """Parts of different lengths, empty ones first, last and between, and no record of any."""
    arrays = [part(number, size) for number, size in enumerate([0, 4, 1, 0, 0, 7, 2, 0])]
    paths = [save(tmp_path / f"{number}.npy", array) for number, array in enumerate(arrays)]
    records = headrace.open(paths)
    joined = np.concatenate([np.load(path) for path in paths])

    assert records.paths == tuple(paths)
    assert np.array_equal(read(records, np.arange(14)), joined)
    assert np.array_equal(read(records, [13, 0, 4, 5, 4, 3, 12]), joined[[13, 0, 4, 5, 4, 3, 12]])
    assert read(records, []).shape == (0, 3)


def test_data_set_without_records(tmp_path):
    """One or several empty arrays are a data set, of no records."""
    save(tmp_path / "a.npy", part(0, 0))
    save(tmp_path / "b.npy", part(0, 0))
    for name in ("a.npy", "*.npy"):
        records = headrace.open(tmp_path / name)
        assert len(records) == 0
        assert read(records, []).shape == (0, 3)
        with pytest.raises(DataError, match="no such record: got 0, expected none: it is empty"):
            records.spans(np.array([0]), "data")


def test_a_file_may_come_twice(tmp_path):
    """A list says what the data set is, also when it repeats a file."""
    path, other = save(tmp_path / "a.npy", part(0)), save(tmp_path / "b.npy", part(1, 2))

    records = headrace.open([path, other, path])

    assert records.paths == (path, other)
    assert np.array_equal(read(records, range(12)), np.concatenate([part(0), part(1, 2), part(0)]))


def test_idx_images_and_labels(tmp_path):
    """As MNIST: images of 2 x 2 and labels, in two files, fields of one data set."""
    (tmp_path / "images").write_bytes(struct.pack(">BBBB3I12B", 0, 0, 8, 3, 3, 2, 2, *range(12)))
    (tmp_path / "labels").write_bytes(struct.pack(">BBBBI3B", 0, 0, 8, 1, 3, 7, 8, 9))

    records = headrace.open({"image": tmp_path / "images", "label": tmp_path / "labels"})

    assert read(records, [2, 0], "image").tolist() == [[[8, 9], [10, 11]], [[0, 1], [2, 3]]]
    assert read(records, [2, 0], "label").tolist() == [9, 7]
    assert repr(records) == "<3 records of image: uint8[2, 2], label: uint8[] in 2 files>"


@pytest.mark.parametrize("length, stride, ahead", [(4, None, 0), (4, 1, 1), (3, 5, 2), (1, 1, 3)])
def test_windows_over_many_files(tmp_path, length, stride, ahead):
    """No window spans two files; files shorter than one have none, files of 0 and 1 byte too."""
    contents = [b"", b"abcdefghij", b"k", b"lmnopqrs", b"", b"tuv", b"wxyz"]
    for number, content in enumerate(contents):
        (tmp_path / f"{number}.txt").write_bytes(content)
    expected = [
        (content[s : s + length], content[s + ahead : s + ahead + length])
        for content in contents
        for s in range(0, len(content), stride or length)
        if s + ahead + length <= len(content)
    ]

    records = headrace.open(
        tmp_path / "*.txt", format="windows", length=length, stride=stride, ahead=ahead
    )

    assert len(records) == len(expected)
    windows = read(records, range(len(records)), "window")
    assert [row.tobytes() for row in windows] == [window for window, _ in expected]
    assert list(records.fields) == (["window", "next"] if ahead else ["window"])
    if ahead:
        found = read(records, range(len(records)), "next")
        assert [row.tobytes() for row in found] == [later for _, later in expected]


def test_windows_longer_than_every_file(tmp_path):
    """A data set of no records rather than an error: the same glob may match more tomorrow."""
    (tmp_path / "a.txt").write_text("abc")

    assert len(headrace.open(tmp_path / "a.txt", format="windows", length=3)) == 1
    assert len(headrace.open(tmp_path / "a.txt", format="windows", length=4)) == 0


# What opens.


def test_path_glob_list_and_mapping(tmp_path, monkeypatch):
    """Text or pathlib, absolute or relative; a glob is sorted, a list keeps its order."""
    for number in (10, 2, 1):
        save(tmp_path / "deep" / f"part-{number}.npy", part(number))
    (tmp_path / "deep" / "folder.npy").mkdir()
    monkeypatch.chdir(tmp_path)

    def firsts(source, name="data"):
        records = headrace.open(source)
        return read(records, range(0, len(records), 5), name)[:, 0].tolist()

    assert firsts("deep/part-2.npy") == [200]
    assert firsts(Path("deep/part-2.npy")) == [200]
    assert firsts(tmp_path / "deep/part-2.npy") == [200]
    assert firsts("deep/*.npy") == [100, 1000, 200]
    assert firsts("**/*.npy") == [100, 1000, 200]
    assert firsts(tmp_path / "deep/part-?.npy") == [100, 200]
    assert firsts(["deep/part-2.npy", Path("deep/part-1*.npy")]) == [200, 100, 1000]
    assert firsts(("deep/part-2.npy",)) == [200]
    fields = {"x": "deep/part-2.npy", "y": ["deep/part-10.npy"]}
    assert (firsts(fields, "x"), firsts(fields, "y")) == ([200], [1000])


def test_a_name_that_looks_like_a_glob(tmp_path):
    """A file that is there is meant, whatever its name."""
    path = save(tmp_path / "run[1]*.npy", part(3))

    assert headrace.open(path).paths == (path,)


def test_working_directory_may_change_after_opening(tmp_path, monkeypatch):
    """The records are those of the files that were there."""
    save(tmp_path / "a.npy", part(0))
    monkeypatch.chdir(tmp_path)
    records = headrace.open("a.npy")
    monkeypatch.chdir("/")

    assert np.array_equal(read(records, range(5)), part(0))


def test_opening_through_a_link(tmp_path):
    """A link is the file that it points to; one that points nowhere is named."""
    save(tmp_path / "a.npy", part(0))
    (tmp_path / "link.npy").symlink_to("a.npy")
    (tmp_path / "broken.npy").symlink_to("nothing")

    assert np.array_equal(read(headrace.open(tmp_path / "link.npy"), range(5)), part(0))
    with pytest.raises(DataError, match="no such file: got '.*broken.npy'"):
        headrace.open(tmp_path / "broken.npy")
    with pytest.raises(DataError, match="cannot be read: got No such file.*; in .*broken.npy"):
        headrace.open(tmp_path / "*.npy")


# What does not open.


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    """A folder with a bit of everything; the working directory."""
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "a.npy", part(0))
    save(tmp_path / "short.npy", part(0, 4))
    save(tmp_path / "double.npy", part(0, 5, "f8"))
    save(tmp_path / "big_endian.npy", part(0, 5, ">f4"))
    save(tmp_path / "wide.npy", np.zeros((5, 4), "f4"))
    (tmp_path / "idx").write_bytes(struct.pack(">BBBBI5B", 0, 0, 8, 1, 5, *range(5)))
    (tmp_path / "a.txt").write_text("some text that is long enough")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    "source, message",
    [
        ("none.npy", "no such file: got 'none.npy'; in {here}"),
        ("none*.npy", r"no file matches: got 'none\*.npy'; in {here}"),
        ("folder", "the folder has no files; in {here}/folder"),
        ("", "no such file: got ''; in {here}"),
        ("fold*", r"no file matches: got 'fold\*'"),
        ("a.npy/b", "no such file: got 'a.npy/b'"),
        ("x" * 300, "a file cannot be read: got File name too long; in xxx"),
        ("a\0b", "no such file: got 'a.x00b'"),
        ("pipe", "not a regular file, which could be read anywhere: got {here}/pipe"),
        ("p*", "not a regular file, which could be read anywhere: got {here}/pipe"),
        (b"a.npy", "not a path: got b'a.npy', expected a path, a glob or a list of them"),
        (7, "not a path: got 7"),
        (None, "not a path: got None"),
        ({"a.npy"}, "not a path: got {{'a.npy'}}"),
        ([], "no files: got an empty list, expected at least one path"),
        (["a.npy", 7], "not a path: got 7"),
        ({}, "no fields: got {{}}"),
        ({1: "a.npy"}, "a field's name is not text: got 1"),
        ({"x": {"y": "a.npy"}}, "not a path: got {{'y': 'a.npy'}}"),
        (
            ["a.npy", "double.npy"],
            "differ: got float64.3. a record, expected float32.",
        ),
        (["a.npy", "big_endian.npy"], "files of one data set differ: got >f4.*in {here}/big"),
        (["a.npy", "wide.npy"], "got float32.4. a record, .*; in {here}/wide.npy"),
        (["a.npy", "idx"], "two formats in one data set: got idx, expected npy as in {here}/a.npy"),
        (
            {"x": "a.npy", "y": "short.npy", "z": "idx"},
            "fields differ in length: got x 5, y 4, z 5, expected as many records in each",
        ),
    ],
)
def test_what_does_not_open(shelf, source, message):
    """Each says what it got, where, and what to do; none is a traceback of the system."""
    with pytest.raises(DataError, match=message.format(here=shelf)):
        headrace.open(source)


def test_formats_and_options_that_do_not_exist(shelf):
    """Names are checked against those there are."""
    with pytest.raises(DataError, match="unknown format: got 'avi', expected 'npy', 'csr', 'npz'"):
        headrace.open("a.npy", format="avi")
    with pytest.raises(
        DataError, match='format "idx" has no such option: got depth, expected none'
    ):
        headrace.open("idx", depth=3)
    with pytest.raises(DataError, match="not an IDX file: got the first bytes 93 4e 55 4d"):
        headrace.open("a.npy", format="idx")
    with pytest.raises(DataError, match=r"a folder is not a file of this format.*try .*/folder/\*"):
        headrace.open("folder", format="idx")
    with pytest.raises(
        DataError, match="the files have several fields, which a mapping cannot name"
    ):
        headrace.open({"text": "a.txt"}, format="windows", length=4, ahead=1)


def test_mapping_of_windows_has_its_own_names(shelf):
    """Without ahead= a mapping names the one field."""
    records = headrace.open({"text": "a.txt"}, format="windows", length=4)

    assert read(records, [1], "text").tobytes() == b" tex"


def test_file_without_permission(shelf):
    """The system's own words, with the file."""
    (shelf / "a.npy").chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # nobody; the superuser may read everything
        with pytest.raises(DataError, match=r"cannot be read: got Permission denied; in .*a\.npy"):
            headrace.open(shelf / "a.npy")
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    "indices, message",
    [
        ([5], "no such record: got 5, expected 0 to 4"),
        ([0, -1, 9], "no such record: got -1, expected 0 to 4"),
        ([0.0], r"a 1-D array of whole numbers: got float64 of shape \(1,\)"),
        ([True], "whole numbers: got bool"),
        ([[0]], r"got int64 of shape \(1, 1\)"),
        (0, r"got int64 of shape \(\)"),
    ],
)
def test_records_that_do_not_exist(shelf, indices, message):
    """Negative numbers do not count from the end."""
    with pytest.raises(DataError, match=message):
        headrace.open("a.npy").spans(np.array(indices), "data")


def test_fields_that_do_not_exist(shelf):
    """The message tells the names there are."""
    records = headrace.open({"x": "a.npy", "y": "idx"})

    with pytest.raises(DataError, match="no such field: got 'z', expected 'x', 'y'"):
        records.spans(np.array([0]), "z")


# The fingerprint.


def test_fingerprint_is_the_data_sets_own(tmp_path, monkeypatch):
    """The same from anywhere, and wherever the folder is moved."""
    for name in ("x.npy", "y.npy"):
        save(tmp_path / "here" / "deep" / name, part(0))
    sources = {"x": tmp_path / "here/deep/x.npy", "y": tmp_path / "here/deep/y.npy"}
    first = headrace.open(sources).fingerprint

    assert len(first) == 32 and int(first, 16)
    assert headrace.open(sources).fingerprint == first
    monkeypatch.chdir(tmp_path / "here")
    assert headrace.open({"x": "deep/x.npy", "y": "deep/y.npy"}).fingerprint == first
    monkeypatch.chdir("deep")
    assert headrace.open({"x": "./x.npy", "y": "../deep/y.npy"}).fingerprint == first
    (tmp_path / "here").rename(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert headrace.open({"x": "there/deep/x.npy", "y": "there/deep/y.npy"}).fingerprint == first


def test_fingerprint_tells_data_sets_apart(tmp_path, monkeypatch):
    """Head, tail, size, names and order of files, names of fields, dtype, shape, options."""
    monkeypatch.chdir(tmp_path)
    content = bytearray(10_000)
    seen = {}

    def look(what, source="a.txt", **options):
        options = {"format": "windows", "length": 10, **options}
        if options["format"] is None:
            del options["length"]
        fingerprint = headrace.open(source, **options).fingerprint
        assert fingerprint not in seen, f"{what} looks like {seen[fingerprint]}"
        seen[fingerprint] = what

    Path("a.txt").write_bytes(content)
    look("the file")
    for place in (0, 4095, len(content) - 4096, len(content) - 1):
        content[place] = 1
        Path("a.txt").write_bytes(content)
        look(f"byte {place}")
        content[place] = 0
    Path("a.txt").write_bytes(content + b"\0")
    look("a byte more")
    Path("a.txt").write_bytes(content)
    look("another length", length=5)
    look("another stride", stride=5)
    look("two fields", ahead=1)
    look("further ahead", ahead=2)
    look("a field's name", {"text": "a.txt"})
    Path("b.txt").write_bytes(content)
    look("another name", "b.txt")
    look("two files", ["a.txt", "b.txt"])
    look("the other order", ["b.txt", "a.txt"])
    look("one file twice", ["a.txt", "a.txt"])
    look("two fields of files", {"x": "a.txt", "y": "b.txt"})
    look("the fields swapped", {"x": "b.txt", "y": "a.txt"})
    for dtype in ("<i4", ">i4", "<f4"):
        np.save("c.npy", np.zeros((4, 3), dtype))
        look(dtype, "c.npy", format=None)
    np.save("c.npy", np.zeros((3, 4), "<i4"))
    look("a shape", "c.npy", format=None)


@pytest.mark.parametrize("size_bytes", [1, 100, 4095, 4096, 4097, 8191, 8192])
def test_fingerprint_of_a_small_file_sees_every_byte(tmp_path, size_bytes):
    """Up to two ends of 4096 bytes; beyond, a change in the middle is not looked for."""
    path = tmp_path / "a.txt"
    seen = set()
    places = sorted({0, size_bytes // 2, min(4095, size_bytes - 1), size_bytes - 1})
    for place in places:
        content = bytearray(size_bytes)
        content[place] = 1
        path.write_bytes(content)
        seen.add(headrace.open(path, format="windows", length=1).fingerprint)

    assert len(seen) == len(places)
