"""Records that cannot be had leave their row blank and move no other, against what was damaged."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import Loader, RandomOrder, SequentialOrder
from headrace.errors import DataError, ReadError

N = 200
BAD = {3, 17, 18, 99, 199}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    """JSON lines of which some are no JSON."""
    path = tmp_path / "x.jsonl"
    with path.open("w") as file:
        for number in range(N):
            text = json.dumps({"number": number, "square": number**2})
            file.write((text[:-1] if number in BAD else text) + "\n")
    return path


def values_of(batch: dict[str, Any], name: str) -> list[Any]:
    return list(batch[name].tolist() if hasattr(batch[name], "tolist") else batch[name])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [1, 32, 200])
def test_damaged_lines_keep_their_row(lines: Path, batch_size: int, workers: int) -> None:
    records = headrace.open(lines)
    order = RandomOrder(3)
    expected = order.indices(np.arange(N), N, 0)
    with Loader(records, batch_size, order=order, damaged="skip", workers=workers) as loader:
        batches = list(loader)

    assert [len(batch["valid"]) for batch in batches] == list(
        Loader(records, batch_size).batch_sizes()
    )
    valid = np.concatenate([batch["valid"] for batch in batches])
    np.testing.assert_array_equal(valid, [index not in BAD for index in expected])
    samples = [value for batch in batches for value in values_of(batch, next(iter(records.fields)))]
    assert len(samples) == N
    for index, value, is_valid in zip(expected.tolist(), samples, valid.tolist(), strict=True):
        if is_valid:
            assert value == {"number": index, "square": index**2}
        else:
            assert value is None
    assert loader.num_damaged == len(BAD) and loader.num_filtered == 0
    assert len(loader.damage) == len(BAD)
    named = {int(message.partition(", record ")[2].partition(",")[0]) for message in loader.damage}
    assert named == BAD
    assert all(str(lines) in message for message in loader.damage)


def test_without_skipping_the_first_damaged_record_is_an_error(lines: Path) -> None:
    with (
        Loader(headrace.open(lines), 32, order=SequentialOrder()) as loader,
        pytest.raises(ReadError, match="a record is damaged.*record 3,"),
    ):
        list(loader)


def test_labels_stay_with_their_images(tmp_path: Path, lines: Path) -> None:
    """Two loaders, each of its own field, as two ranks have them: the rows are the same records."""
    np.save(tmp_path / "label.npy", np.arange(N))
    records = headrace.open({"text": lines, "label": tmp_path / "label.npy"})
    both = [
        Loader(records, 16, order=RandomOrder(1), fields=(name,), damaged="skip")
        for name in ("text", "label")
    ]
    seen = []
    for texts, labels in zip(*both, strict=True):
        assert labels["valid"].all()
        for text, label, valid in zip(texts["text"], labels["label"], texts["valid"], strict=True):
            if valid:
                assert text["number"] == label
                seen.append(int(label))
    assert sorted(seen) == sorted(set(range(N)) - BAD)


@pytest.mark.parametrize("engine", ["uring", "threads"])
@pytest.mark.parametrize("direct", [False, True])
def test_a_file_that_was_cut_short(tmp_path: Path, engine: Any, direct: bool) -> None:
    """What lies behind the new end is lost, and nothing else, however reads were merged."""
    whole = np.random.default_rng(0).integers(0, 1 << 15, (N, 100), dtype=np.int16)
    np.save(tmp_path / "x.npy", whole)
    np.save(tmp_path / "y.npy", np.arange(N))
    records = headrace.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
    size = (tmp_path / "x.npy").stat().st_size
    os.truncate(tmp_path / "x.npy", size - 200 * 50 - 1)  # cuts into record 149
    try:
        with Loader(records, 64, engine=engine, direct=direct, damaged="skip") as loader:
            batches = list(loader)
    except DataError as error:
        pytest.skip(str(error))

    x, y, valid = (
        np.concatenate([batch[name] for batch in batches]) for name in ("x", "y", "valid")
    )
    index = RandomOrder().indices(np.arange(N), N, 0)
    np.testing.assert_array_equal(valid, index < 149)
    np.testing.assert_array_equal(x[valid], whole[index[valid]])
    np.testing.assert_array_equal(y[valid], index[valid])
    assert not x[~valid].any() and not y[~valid].any()
    assert loader.num_damaged == 51 and len(loader.damage) == 10
    assert "could not be read" in loader.damage[0]


def test_sparse_rows_and_numbers(tmp_path: Path) -> None:
    """LIBSVM text: a damaged line is a row without items, its label 0, both not valid."""
    path = tmp_path / "x.libsvm"
    path.write_text("1 1:0.5 3:2\n-1 2:4\n1 1:1\n")
    records = headrace.open(path)
    text = path.read_bytes().replace(b"2:4", b"2:x")
    times = path.stat()
    path.write_bytes(text)  # damaged after the index was made
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    (batch,) = Loader(records, 3, order=SequentialOrder(), damaged="skip")

    assert batch["valid"].tolist() == [True, False, True]
    assert batch["label"].tolist() == [1, 0, 1]
    np.testing.assert_array_equal(
        batch["features"].to_scipy().toarray(), [[0.5, 0, 2], [0, 0, 0], [1, 0, 0]]
    )


def test_tensors(lines: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((N, 2), np.float32))
    records = headrace.open({"x": tmp_path / "x.npy", "text": lines})
    for batch in Loader(records, 50, order=SequentialOrder(), damaged="skip", tensors=True):
        assert batch["valid"].dtype is torch.bool
        assert batch["x"].shape == (50, 2)
        assert batch["x"].sum(1).tolist() == [2.0 * valid for valid in batch["valid"].tolist()]


def test_a_damaged_group_of_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(100), "b": np.arange(100) * 0.5})
    pq.write_table(table, path, row_group_size=25, compression="zstd", use_dictionary=False)
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    records = headrace.open(path)
    content = bytearray(path.read_bytes())
    middle = column.data_page_offset + column.total_compressed_size // 2
    content[middle : middle + 16] = bytes(16)
    path.write_bytes(content)

    with Loader(records, 40, order=RandomOrder(2), damaged="skip") as loader:
        batches = list(loader)
    index = RandomOrder(2).indices(np.arange(100), 100, 0)
    a, b, valid = (
        np.concatenate([batch[name] for batch in batches]) for name in ("a", "b", "valid")
    )
    np.testing.assert_array_equal(valid, (index < 50) | (index >= 75))
    np.testing.assert_array_equal(a[valid], index[valid])
    np.testing.assert_array_equal(b[valid], index[valid] * 0.5)


def test_every_record_may_be_damaged(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("{\n" * 5)
    (batch,) = Loader(headrace.open(tmp_path / "x.jsonl"), 8, damaged="skip")
    assert not batch["valid"].any() and len(batch["valid"]) == 5


def test_resuming_and_replicas_see_the_same_rows(lines: Path) -> None:
    records = headrace.open(lines)

    def loader(**more: Any) -> Loader:
        return Loader(records, 20, damaged="skip", num_micro_batches=4, **more)

    whole = [batch["valid"].tolist() for batch in loader()]
    first = loader()
    taken = [next(iter(first))["valid"].tolist() for _ in range(3)]
    rest = loader()
    rest.load_state_dict(first.state_dict())
    assert taken + [batch["valid"].tolist() for batch in rest] == whole
    halves = [loader(replica=replica, num_replicas=2) for replica in range(2)]
    for batch, *shares in zip(whole, *halves, strict=True):
        a, b = (share["valid"].tolist() for share in shares)
        assert batch == a[:5] + b[:5] + a[5:] + b[5:]


def test_a_field_of_that_name_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    records = headrace.open({"valid": tmp_path / "x.npy"})
    with pytest.raises(DataError, match="the records have a field 'valid'"):
        Loader(records, 1, damaged="skip")
    assert len(list(Loader(records, 1))) == 3
    with pytest.raises(DataError, match="damaged is wrong: got 'ignore', expected raise or skip"):
        Loader(records, 1, damaged="ignore")  # type: ignore[arg-type]
