"""Sparse rows that pack makes of LIBSVM text, against scikit-learn's reader and scipy."""

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_svmlight_file

import headrace
from headrace.data.formats import detect
from headrace.data.pack import pack
from headrace.errors import DataError, ReadError
from headrace.progress import Silent
from tests.data.formats.epochs import epoch

NUM_ROWS = 700


def write_text(path, num_rows=NUM_ROWS, num_features=50, seed=0):
    """Rows of 0 to 9 items; some have none at all."""
    random = np.random.default_rng(seed)
    lines = []
    for row in range(num_rows):
        columns = np.sort(random.choice(num_features, random.integers(10), replace=False)) + 1
        items = " ".join(f"{column}:{random.normal():.17g}" for column in columns)
        lines.append(f"{row % 3 - 1} {items}\n")
    path.write_text("".join(lines))


@pytest.fixture
def folder(tmp_path):
    write_text(tmp_path / "a.svm")
    return tmp_path


def packed(path, target, order=None, **options):
    records = headrace.open(path, **options)
    pack(records, target, "csr", order or headrace.SequentialOrder(), Silent())
    return target


def test_as_scipy_has_it(folder):
    """The archive's arrays are the matrix that scikit-learn reads from the text, bit by bit."""
    truth, labels = load_svmlight_file(str(folder / "a.svm"))

    with np.load(packed(folder / "a.svm", folder / "a.npz")) as z:
        matrix = sparse.csr_array(
            (z["items"]["value"], z["items"]["index"], z["indptr"]), z["shape"]
        )
        assert np.array_equal(z["label"], labels)

    assert matrix.shape == truth.shape
    assert np.array_equal(matrix.toarray(), truth.toarray())
    assert np.array_equal(matrix.indptr, truth.indptr)


@pytest.mark.parametrize("direct", [False, True])
def test_in_random_order(folder, direct):
    """Each batch has the rows of its records, whatever the engine."""
    truth, labels = load_svmlight_file(str(folder / "a.svm"))
    path = packed(folder / "a.svm", folder / "a.npz")
    assert detect(path) == "csr"
    records = headrace.open(path)
    assert (list(records.fields), len(records)) == (["features", "label"], NUM_ROWS)

    order = headrace.RandomOrder(4)
    loader = headrace.Loader(records, batch_size=64, order=order, direct=direct)

    rows = order.indices(np.arange(NUM_ROWS), NUM_ROWS, 0)
    batches = list(loader)
    found = sparse.vstack([batch["features"].to_scipy() for batch in batches])
    assert np.array_equal(found.toarray(), truth.toarray()[rows])
    assert np.array_equal(np.concatenate([batch["label"] for batch in batches]), labels[rows])


def test_shuffled_while_it_is_written(folder):
    """As the rows of the text in that order."""
    truth, labels = load_svmlight_file(str(folder / "a.svm"))
    order = headrace.RandomOrder(9)
    path = packed(folder / "a.svm", folder / "a.npz", order)

    batch = next(
        iter(headrace.Loader(headrace.open(path), batch_size=700, order=headrace.SequentialOrder()))
    )

    rows = order.indices(np.arange(NUM_ROWS), NUM_ROWS, 0)
    assert np.array_equal(batch["features"].to_scipy().toarray(), truth.toarray()[rows])
    assert np.array_equal(batch["label"], labels[rows])


def test_files_of_different_widths(folder):
    """Are one data set, as wide as its widest file."""
    write_text(folder / "b.svm", 20, num_features=90, seed=1)
    for name in ("a", "b"):
        packed(folder / f"{name}.svm", folder / f"{name}.npz", zero_based=False)
    records = headrace.open(folder / "*.npz")

    batch = next(iter(headrace.Loader(records, batch_size=720, order=headrace.SequentialOrder())))

    truth = [load_svmlight_file(str(folder / f"{n}.svm"), n_features=90)[0] for n in "ab"]
    assert np.array_equal(batch["features"].to_scipy().toarray(), sparse.vstack(truth).toarray())


def test_queries_and_no_rows(tmp_path):
    """Numbers that go with the rows go with them; so does nothing at all."""
    (tmp_path / "q.svm").write_text("1 qid:7 1:2\n0 qid:8\n")
    (tmp_path / "0.svm").write_text("# no record\n")
    records = headrace.open(packed(tmp_path / "q.svm", tmp_path / "q.npz"))
    batch = next(iter(headrace.Loader(records, batch_size=2, order=headrace.SequentialOrder())))
    assert batch["qid"].tolist() == [7, 8]
    assert batch["features"].to_scipy().toarray().tolist() == [[2], [0]]
    assert len(headrace.open(packed(tmp_path / "0.svm", tmp_path / "0.npz"))) == 0


def test_other_archives_stay_what_they_are(tmp_path):
    """Three names make sparse rows; fewer are arrays."""
    np.savez(tmp_path / "a.npz", items=np.zeros(3), indptr=np.zeros(3))
    assert detect(tmp_path / "a.npz") == "npz"


def arrays(**changes):
    """An archive's arrays for one row of two items."""
    items = np.array([(0, 1.0), (3, 2.0)], [("index", "<i8"), ("value", "<f8")])
    right = {"items": items, "indptr": np.array([0, 2]), "shape": np.array([1, 4])}
    return {name: value for name, value in (right | changes).items() if value is not None}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"items": np.zeros(2)}, "the arrays are no sparse rows: got indptr, items, shape"),
        ({"shape": None}, "the arrays are no sparse rows: got indptr, items, expected items"),
        ({"indptr": np.zeros(2, np.int32)}, r"got indptr of int32\[2\], expected int64"),
        ({"shape": np.zeros(3, np.int64)}, r"got shape of int64\[3\], expected int64\[2\]"),
        ({"shape": np.array([2, 4])}, "got indptr of 2, expected 3 for 2 rows"),
        ({"label": np.zeros(5)}, "got label of 5 rows, expected 1"),
    ],
)
def test_arrays_that_are_no_rows(tmp_path, changes, message):
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(DataError, match=message):
        headrace.open(tmp_path / "a.npz", "csr")


@pytest.mark.parametrize(
    "changes, error, message",
    [
        ({"indptr": np.array([0, 3])}, DataError, "indptr of sparse rows is damaged: got items 0 "),
        ({"indptr": np.array([2, 0])}, DataError, "got items 2 to 0, expected some of 2, in order"),
        (
            {"shape": np.array([1, 3])},
            ReadError,
            "a record is damaged: got column 3 of 3; in .*npz",
        ),
    ],
)
def test_damage_is_found_where_it_is_read(tmp_path, changes, error, message):
    np.savez(tmp_path / "a.npz", **arrays(**changes))
    with pytest.raises(error, match=message):
        epoch(headrace.open(tmp_path / "a.npz"))


def test_what_does_not_go_into_rows(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    (tmp_path / "m.svm").write_text("1,2 1:1\n")
    for source, options, message in (
        (tmp_path / "x.npy", {}, "fields do not go into sparse rows: got data: float64"),
        ({"features": tmp_path / "x.npy"}, {}, "the features are no sparse rows: got ndarray"),
        (tmp_path / "m.svm", {"format": "libsvm", "multilabel": True}, "field 'label' do not go"),
    ):
        with pytest.raises(DataError, match=message):
            packed(source, tmp_path / "o.npz", **options)
    assert not (tmp_path / "o.npz").exists()
