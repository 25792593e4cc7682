"""JSON lines, CSV and LIBSVM text through the loader, as their other readers have them."""

import csv
import json

import numpy as np
import pytest
from sklearn.datasets import dump_svmlight_file, load_svmlight_files

import headrace


def batches(pattern):
    return headrace.Loader(headrace.open(pattern), batch_size=7, order=headrace.RandomOrder(1))


def test_json_lines(tmp_path):
    """Over two files, blank lines among them."""
    truth = [{"number": i, "text": 'é\n"' * (i % 4)} for i in range(40)]
    for name, some in (("a", truth[:25]), ("b", truth[25:])):
        text = "\n\n".join(json.dumps(one) for one in some)
        (tmp_path / f"{name}.jsonl").write_text(text)
    values = [one for batch in batches(str(tmp_path / "*.jsonl")) for one in batch["json"]]
    assert sorted(values, key=lambda one: one["number"]) == truth


def test_csv(tmp_path):
    """As the csv module reads it: quoted line ends, delimiters and quotes."""
    random = np.random.default_rng(0)
    pieces = ["a", ",", '"', "\n", "\r\n", "é", " "]
    truth = [
        {"key": str(i), "text": "".join(random.choice(pieces, random.integers(0, 9)))}
        for i in range(60)
    ]
    for name, some in (("a", truth[:20]), ("b", truth[20:])):
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, ["key", "text"])
            writer.writeheader()
            writer.writerows(some)
    rows = [one for batch in batches(str(tmp_path / "*.csv")) for one in batch["row"]]
    assert sorted(rows, key=lambda one: int(one["key"])) == truth


@pytest.mark.parametrize("zero_based", [True, False])
def test_libsvm(tmp_path, zero_based):
    """As scikit-learn reads the same files, one base and width for both."""
    random = np.random.default_rng(0)
    dense = random.random((50, 9)) * (random.random((50, 9)) < 0.4)
    dense[0, 0] = 1.5
    labels = random.integers(0, 3, 50)
    paths = [str(tmp_path / name) for name in ("a.libsvm", "b.libsvm")]
    for path, some in ((paths[0], slice(0, 30)), (paths[1], slice(30, 50))):
        dump_svmlight_file(dense[some], labels[some], path, zero_based=zero_based)
    x, y, x2, y2 = load_svmlight_files(paths, zero_based=zero_based)
    truth = np.concatenate([x.toarray(), x2.toarray()]), np.concatenate([y, y2])
    records = headrace.open(paths)
    order = headrace.RandomOrder(1)
    rows = order.indices(np.arange(50), 50, 0)
    loader = headrace.Loader(records, batch_size=50, order=order)
    batch = next(iter(loader))
    features = batch["features"].to_scipy()
    assert features.shape[0] == 50
    assert np.array_equal(features.toarray()[:, : truth[0].shape[1]], truth[0][rows])
    assert np.array_equal(batch["label"], truth[1][rows])
