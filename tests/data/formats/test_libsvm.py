"""LIBSVM text against scikit-learn's reader; what LIBLINEAR's takes wrongly is refused."""

import io
import random
import sys

import numpy as np
import pytest
from sklearn.datasets import load_svmlight_file, load_svmlight_files

import headrace
from headrace.data.formats import detect
from headrace.data.formats.libsvm import LibSVM
from headrace.data.formats.sparse import SparseRows
from headrace.errors import DataError, ReadError, RunError
from headrace.progress import Silent
from tests.data.formats.epochs import ENGINES


def write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path, fields=("label", "features"), batch_size=1000, order=None, engine="auto", **options):
    """The first batch of an epoch, by default all records in the order of the file."""
    records = headrace.open(path, "libsvm", fields=fields, **options)
    order = order or headrace.SequentialOrder()
    with headrace.Loader(records, batch_size, order=order, engine=engine) as loader:
        return next(iter(loader), None)


def rows_of(features):
    """A dict of index to value for each row."""
    ends = features.indptr.tolist()
    pairs = list(zip(features.indices.tolist(), features.data.tolist(), strict=True))
    return [dict(pairs[a:b]) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def assert_as_sklearn(path, **options):
    """Labels and features are those of scikit-learn, to the last bit."""
    truth, labels = load_svmlight_file(str(path), **options)
    batch = read(path, **options)
    features = batch["features"]
    assert batch["label"].tolist() == labels.tolist()
    assert features.indptr.tolist() == truth.indptr.tolist()
    assert features.indices.tolist() == truth.indices.tolist()
    assert features.data.tobytes() == truth.data.tobytes()
    assert features.shape == truth.shape
    assert {array.dtype for array in (features.indices, features.indptr)} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    "content",
    [
        "1 1:0.5 3:2\n-1 2:1\n",
        "1 1:0.5 3:2\r\n-1 2:1\r\n",
        "1 1:1\r\n2\r\n3 2:2\r\n",  # a label alone, which LIBLINEAR refuses with CRLF
        "1 1:1\n2\n3 2:2",
        "1\t1:1\t2:2\n",
        " \t1  1:1   2:2 \t \n",
        "+1 1:+1 2:-1 3:.5 4:5. 5:1e-3 6:1E+3\n",
        "1 1:1\n\n\n2 1:2\n\n \t\r\n",
        "# a comment with 99:9\n1 1:1\n  # another\n2 1:2 # 7:7 : #\n3 2:1#\n4# 8:8\n",
        "1 qid:3 1:1\n2 qid:3 4:1 # qid:5\n",
        "1 0:5 1:1\n2 3:1\n",
        "1 0001:1 0010:2\n",
        "-1.5e2 1:1\n0.25 2:2\n",
        "1 1:5e-324 2:1.7976931348623157e308 3:123456789012345678901234567890 4:-0\n",
        "1 1:1e-400\n",
        "\n\n1 1:1",
    ],
)
def test_as_sklearn_reads_it(tmp_path, content):
    """Each of these is right, and has the same base and width there."""
    assert_as_sklearn(write(tmp_path / "a.svm", content))


@pytest.mark.parametrize("seed", range(10))
def test_random_files(tmp_path, seed):
    """Many ways to write numbers and to part them."""
    draw = random.Random(seed)
    lines = []
    for _ in range(80):
        indices = sorted(draw.sample(range(seed % 2, 500), draw.randint(0, 30)))
        form = draw.choice(["{:.17g}", "{:.6g}", "{:.3f}", "{:+.16e}", "{!r}"])
        words = [f"{draw.randint(-2, 9)}"]
        words += [f"{index}:{form.format(draw.gauss(0, 10))}" for index in indices]
        end = draw.choice(["\n", "\r\n", " \n", " # 999:1 \n", "\n\n", "\n#\n"])
        lines.append(draw.choice([" ", "\t", "  "]).join(words) + end)

    assert_as_sklearn(write(tmp_path / "a.libsvm", "".join(lines)))


@pytest.mark.parametrize("sort", [False, True])
def test_every_border(tmp_path, sort):
    """In pieces of every size the scan finds the same, checked against the lines themselves."""
    content = (
        b"\xef\xbb\xbf# 9:9\r\n \r\n+1 qid:12 3:1 42:0.5 # 99:1 qid:7\r\n-2\r\n3.5 qid:1\n4 # x\n"
        b"5 qid:3 qid:4 7:1\n6:1 8:2\n7 qidx:1\n8 xqid:1\n9 -77:1 x88:1 5:\n 10\t11:1\t\n:1\n"
        b"11#\n12 qid:1#\n13 qid:1:2 3:3\n14 000000000000000000000000000041:1 13:1"
    )
    path = write(tmp_path / "a.svm", content)
    assert detect(path) == "libsvm"
    for piece_bytes in (*range(1, 80), 1000):
        found = LibSVM(sort=sort).scan(path, Silent(), piece_bytes)
        words = {
            name: [
                content[start : start + length].strip() if length >= 0 else None
                for start, length in zip(table.offsets, table.lengths, strict=True)
            ]
            for name, table in found.items()
        }
        labels = "+1 -2 3.5 4 5 _ 7 8 9 10 _ 11 12 13 14".replace("_", "").split(" ")
        assert [word.decode() for word in words["label"]] == labels
        assert words["features"] == [
            *(b"3:1 42:0.5", b"", b"", b"", b"qid:4 7:1", b"6:1 8:2", b"qidx:1", b"xqid:1"),
            *(b"-77:1 x88:1 5:", b"11:1", b":1", b"", b"", b"3:3"),
            b"000000000000000000000000000041:1 13:1",
        ]
        queries = [b"12", None, b"1", None, b"3", *[None] * 7, b"1", b"1:2", None]
        assert words["qid"] == queries, piece_bytes
        assert found["label"].about == {"least": 3, "most": 42}


@pytest.mark.parametrize("end", ["", "\n", " # 99:1\n", " " * 90, "\r\n1 6:1\n", "#\n"])
@pytest.mark.parametrize("value", ["1", "0." + "3" * 70, "0." + "3" * 100, "1e-" + "0" * 90 + "1"])
def test_the_greatest_index_is_the_last_of_a_line(tmp_path, value, end):
    """However long its value is; in pieces of every size."""
    path = write(tmp_path / "a.svm", f"1 0:1\n1 5:1 {'0' * 20}7:{value}{end}")
    for piece_bytes in (*range(1, 12), 64, 1000):
        table = LibSVM().scan(path, Silent(), piece_bytes)["features"]
        assert table.about == {"least": 0, "most": 7}
    assert_as_sklearn(path)


@pytest.mark.parametrize(
    "line, message",
    [
        ("1 1:nan", "the value 'nan' is no finite number, 2 bytes into the features"),
        ("1 1:inf", "the value 'inf' is no finite number"),
        ("1 1:1e400", "the value '1e400' is too large for float64"),
        ("1 1:", "the value '' is no finite number, 2 bytes into the features"),
        ("1 1: 2:1", "the value '2:1' is no finite number"),
        ("1 1:1x", "the value '1x' is no finite number"),
        ("1 1:1_0", "the value '1_0' is no finite number"),
        ("1 1:0x1", "the value '0x1' is no finite number"),
        ("1 1:1 2:1:1", "the value '1:1' is no finite number, 6 bytes into the features"),
        ("1 1:1 2", "'2' is no index:value, 4 bytes into the features"),
        ("1 x:1", "'x:1' is no index:value, 0 bytes into the features"),
        ("1 -1:1", "'-1:1' is no index:value"),
        ("1 1 :1", "'1' is no index:value"),
        ("1 1:1 qid:3", "'qid:3' is no index:value: qid stands right after the label, 4 bytes"),
        ("1 3:1 2:1", "index of '2:1' is less than the one before; sort=True .*, 4 bytes into"),
        ("1 2:1 2:1", "the index of '2:1' is there twice, 4 bytes into the features"),
        ("1 99999999999999999999:1", "index of '99999999999999999999:1' is not in 1 to 9, 0 bytes"),
        ("1,2 1:1", "several labels, '1,2': multilabel=True reads such"),
        ("1:1 2:1", "the line has no label"),
        ("nan 1:1", "the label 'nan' is no finite number"),
        ("spam 1:1", "the label 'spam' is no finite number"),
        ("1e999 1:1", "the value '1e999' is too large for float64"),
        ("1x 1:1", "the label '1x' is no finite number"),
        ("\xff\x00 1:1", r"the label '.*\\x00' is no finite number"),
    ],
)
def test_damaged_lines(tmp_path, line, message):
    """The message says what, where in the line, in which record and file."""
    path = write(tmp_path / "a.svm", f"1 1:1 9:1\n# 1\n{line}\n2 1:1\n")
    field = "features" if line.startswith("1 ") else "label"

    with pytest.raises(ReadError, match=rf"{message}.*a\.svm, record 1, offset 1\d"):
        read(path, (field,))
    other = "label" if field == "features" else "features"
    assert len(read(path, (other,))[other]) == 3


def test_an_index_over_32_bits(tmp_path):
    """Which LIBLINEAR takes for feature 1."""
    batch = read(write(tmp_path / "a.svm", "1 4294967297:5\n1 1:2 9223372036854775:1\n"))

    assert rows_of(batch["features"]) == [{2**32: 5.0}, {0: 2.0, 9223372036854774: 1.0}]
    assert batch["features"].shape == (2, 9223372036854775)
    assert batch["features"].to_scipy()[0, 2**32] == 5.0


@pytest.mark.parametrize(
    "contents", [("1 1:1", "1 0:1"), ("1 1:1", "1 2:1 9:1"), ("1 0:1 9:1", "1")]
)
@pytest.mark.parametrize("zero_based", ["auto", True, False])
def test_one_base_and_width_for_all_files(tmp_path, contents, zero_based):
    """As scikit-learn decides for several files; a part of them may lack the telling line."""
    paths = [write(tmp_path / f"{i}.svm", content) for i, content in enumerate(contents)]
    if zero_based is False and any(" 0:" in content for content in contents):
        with pytest.raises(DataError, match="index 0, which zero_based=False leaves no place for"):
            read(paths, zero_based=zero_based)
        return
    one, _, two, _ = load_svmlight_files(list(map(str, paths)), zero_based=zero_based)

    features = read(paths, zero_based=zero_based)["features"].to_scipy()

    assert features.toarray().tolist() == [*one.toarray().tolist(), *two.toarray().tolist()]


def test_files_without_features(tmp_path):
    """They have no say in the base; nor have empty ones; alone they are of no width."""
    paths = [write(tmp_path / f"{i}.svm", text) for i, text in enumerate(("1\n2", "", "3 1:1 2:2"))]

    features = read(paths)["features"]
    assert rows_of(features) == [{}, {}, {0: 1.0, 1: 2.0}]
    assert read(paths[0])["features"].shape == (2, 0)
    assert len(headrace.open(paths[1])) == 0


def test_number_of_features(tmp_path):
    """As given, or as many as there must be."""
    path = write(tmp_path / "a.svm", "1 1:1 7:2\n")

    assert read(path)["features"].shape == (1, 7)
    assert read(path, zero_based=True)["features"].shape == (1, 8)
    assert read(path, num_features=7)["features"].shape == (1, 7)
    assert read(path, num_features=10)["features"].to_scipy().shape == (1, 10)
    with pytest.raises(DataError, match="index 7, where indexes begin at 1 and num_features=6"):
        read(path, num_features=6)
    with pytest.raises(DataError, match="index 7, where indexes begin at 0 and num_features=7"):
        read(path, num_features=7, zero_based=True)


def test_sorting(tmp_path):
    """When asked for; an index that is there twice is damage all the same."""
    path = write(tmp_path / "a.svm", "1 3:3 1:1 2:123456789012345678901 9:9\n2 1:1\n")
    assert rows_of(read(path, sort=True)["features"]) == [
        {0: 1.0, 1: 123456789012345678901.0, 2: 3.0, 8: 9.0},
        {0: 1.0},
    ]
    assert read(path, sort=True)["features"].indices.tolist() == [0, 1, 2, 8, 0]
    write(path, "1 3:3 1:1 3:4\n")
    with pytest.raises(ReadError, match="the index of '3:4' is there twice, 8 bytes into"):
        read(path, sort=True)


def test_several_labels(tmp_path):
    """As scikit-learn reads them."""
    content = "2,1 1:1\n1:2 2:1\n3\n-1.5,1e3,0 2:2\n"
    path = write(tmp_path / "a.svm", content)
    truth, labels = load_svmlight_file(str(path), multilabel=True)

    batch = read(path, multilabel=True)

    assert batch["label"] == labels == [(1.0, 2.0), (), (3.0,), (-1.5, 0.0, 1000.0)]
    assert (batch["features"].to_scipy() != truth).nnz == 0
    for word in ("1,,2", "1,", ",", "1,x"):
        write(path, f"{word} 1:1\n")
        with pytest.raises(ReadError, match=r"no label|is no finite number"):
            read(path, multilabel=True)


def test_queries(tmp_path):
    """A field of its own where all lines have it."""
    path = write(tmp_path / "a.svm", "1 qid:3 1:1\n2\tqid:0007\n3 qid:4294967297 2:2 # 9\n")
    _, _, queries = load_svmlight_file(io.BytesIO(path.read_bytes()), query_id=True)

    batch = read(path, None)

    assert list(batch) == ["label", "features", "qid"]
    assert batch["qid"].tolist() == queries.tolist() == [3, 7, 2**32 + 1]
    assert batch["qid"].dtype == np.int64
    for word in ("x", "-1", "1.5", "", "1:2", "9" * 19):
        write(path, f"1 qid:{word} 1:1\n")
        with pytest.raises(
            ReadError, match=f"qid '{word}' is no whole number of at most 18 digits"
        ):
            read(path, ("qid",))
    write(path, "1 qid:3 1:1\n2 1:1\n")
    with pytest.raises(DataError, match="record 1 lacks the field 'qid'.*fields="):
        read(path, None)
    assert rows_of(read(path)["features"]) == [{0: 1.0}, {0: 1.0}]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fields", [("label",), ("features",), ("features", "label")])
def test_epoch(tmp_path, engine, fields):
    """Every record of several files once in a random order; each stage reads only its field."""
    contents = {"a": 20, "b": 0, "c": 37}
    number = 0
    for name, num in contents.items():
        lines = [f"{i} 1:{i} {i + 2}:1\n" for i in range(number, number + num)]
        write(tmp_path / f"{name}.svmlight", "".join(lines))
        number += num
    order = headrace.RandomOrder(5)
    indices = order.indices(np.arange(57), 57, 0)
    records = headrace.open(str(tmp_path / "*.svmlight"), fields=fields)
    with headrace.Loader(records, 10, order=order, engine=engine) as loader:
        batches = list(loader)

    assert sorted(indices.tolist()) == list(range(57))
    if "label" in fields:
        assert np.concatenate([batch["label"] for batch in batches]).tolist() == indices.tolist()
    if "features" in fields:
        found = [row for batch in batches for row in rows_of(batch["features"])]
        assert found == [{0: float(i), i + 1: 1.0} for i in indices.tolist()]
        assert {batch["features"].shape[1] for batch in batches} == {58}


@pytest.mark.parametrize("field", ["label", "features"])
def test_a_batch_at_once_is_what_its_records_are(tmp_path, field):
    """decode_batch against decode and collate; None where a record is damaged."""
    content = b"1 2:1 3:4\n-2.5 9:1e-320\n3\n123456789012345678901 1:1"
    format = LibSVM()
    table = format.scan(write(tmp_path / "a.svm", content), Silent())[field]
    about = format.join([table.about])
    memory = np.frombuffer(content, np.uint8).copy()
    records = [
        memory[start : start + length]
        for start, length in zip(table.offsets, table.lengths, strict=True)
    ]

    whole = format.decode_batch(field, memory, table.offsets, table.lengths, about)
    single = format.collate(field, [format.decode(field, one, about) for one in records], about)

    if field == "label":
        assert whole.tolist() == single.tolist() == [1.0, -2.5, 3.0, 123456789012345678901.0]
    else:
        assert rows_of(whole) == rows_of(single)
        assert whole.shape == single.shape == (4, 9)
        assert format.collate(field, [], about).shape == (0, 9)
    memory[table.offsets[0]] = ord("x")
    assert format.decode_batch(field, memory, table.offsets, table.lengths, about) is None


def test_scipy_is_asked_for_only_when_needed(monkeypatch):
    """Rows are plain arrays without it."""
    rows = SparseRows(np.ones(1), np.array([2]), np.array([0, 1, 1]), (2, 3))
    assert len(rows) == 2
    assert rows.to_scipy().toarray().tolist() == [[0, 0, 1], [0, 0, 0]]
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(RunError, match="this needs scipy; pip install scipy"):
        rows.to_scipy()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"zero_based": "yes"}, "zero_based is wrong: got 'yes', expected True, False or \"auto\""),
        ({"num_features": 0}, "num_features is wrong: got 0, expected at least 1"),
        ({"num_features": 1.5}, "num_features is wrong: got 1.5"),
        ({"num_features": True}, "num_features is wrong: got True"),
    ],
)
def test_wrong_options(options, message):
    """Before any file is looked at."""
    with pytest.raises(DataError, match=message):
        LibSVM(**options)
