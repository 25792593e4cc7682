"""headrace's records in torch's own DataLoader."""

import numpy as np
import pytest
from torch.utils.data import DataLoader

import headrace
from headrace.data.adapters import IterableBatches, MapDataset
from headrace.errors import RunError


@pytest.fixture
def records(tmp_path):
    """Numbers, and text of several lengths."""
    np.save(tmp_path / "x.npy", np.arange(300, dtype=np.int32).reshape(100, 3))
    (tmp_path / "t.txt").write_text("".join(f"{'word ' * (i % 7)}{i}\n" for i in range(100)))
    return headrace.open({"x": tmp_path / "x.npy", "t": tmp_path / "t.txt"})


@pytest.mark.parametrize("num_workers, method", [(0, None), (2, "fork"), (2, "spawn")])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_every_record_once_in_a_data_loader(records, num_workers, method):
    """Shuffled by torch, read by headrace, in worker processes of either kind."""
    loader = DataLoader(
        MapDataset(records),
        batch_size=16,
        shuffle=True,
        num_workers=num_workers,
        multiprocessing_context=method,
    )

    seen = {}
    for batch in loader:
        for row, text in zip(batch["x"].tolist(), batch["t"], strict=True):
            seen[row[0] // 3] = (row, text)

    assert seen == {
        i: ([3 * i, 3 * i + 1, 3 * i + 2], f"{'word ' * (i % 7)}{i}") for i in range(100)
    }


def test_one_by_one(records):
    """As a sequence, whose end a plain loop finds."""
    samples = MapDataset(records, fields=("t",))
    assert len(samples) == 100
    assert samples[5] == {"t": "word word word word word 5"}
    assert samples[-1] == {"t": "word 99"}
    assert [sample["t"].split()[-1] for sample in samples] == [str(i) for i in range(100)]
    with pytest.raises(IndexError):
        samples[100]


def test_a_batch_is_read_together(records):
    """Neighbours share a read: as many system-level reads as the plan has."""
    samples = MapDataset(records, fields=("x",), direct=False)
    samples.__getitems__(list(range(50)))
    (reader,) = samples._readers.values()
    assert reader.reader.num_reads == 1


def make_stateful(records):
    """torchdata's loader around ours."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    loader = headrace.Loader(records[:97], 10, fields=("x",), tensors=True)
    return stateful.StatefulDataLoader(IterableBatches(loader), batch_size=None)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_data_loader_resumes_exactly(records):
    """In mid-epoch, and at its end."""
    whole = headrace.Loader(records[:97], 10, fields=("x",))
    epochs = [[batch["x"].tolist() for batch in whole] for _ in range(3)]
    first = make_stateful(records)
    batches = iter(first)
    taken = [next(batches)["x"].tolist() for _ in range(4)]
    again = make_stateful(records)
    again.load_state_dict(first.state_dict())
    assert taken + [batch["x"].tolist() for batch in again] == epochs[0]
    assert [batch["x"].tolist() for batch in again] == epochs[1]
    third = make_stateful(records)
    third.load_state_dict(again.state_dict())
    assert [batch["x"].tolist() for batch in third] == epochs[2]


def test_workers_of_a_data_loader_would_repeat_batches(records):
    """So they are refused; as a stream in the process itself it works."""
    batches = IterableBatches(headrace.Loader(records, 10, fields=("x",)))
    assert len(DataLoader(batches, batch_size=None)) == 10
    assert sum(len(batch["x"]) for batch in DataLoader(batches, batch_size=None)) == 100
    with pytest.raises(RunError, match="a worker of DataLoader iterates over a headrace.Loader"):
        next(iter(DataLoader(batches, batch_size=None, num_workers=1)))
