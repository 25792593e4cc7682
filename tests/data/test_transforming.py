"""Transforms, their generators and workers: the same batches whoever makes them, and clean ends."""

import gc
import multiprocessing
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import headrace
from headrace import Loader, Padding, RandomOrder, Records, SequentialOrder
from headrace.data.transforming import generator_of
from headrace.errors import DataError, RunError

N = 103
WORKERS = [
    pytest.param({}, id="reading-thread"),
    pytest.param({"workers": 1}, id="thread"),
    pytest.param({"workers": 3}, id="threads"),
    pytest.param({"workers": 2, "worker_kind": "process"}, id="processes"),
]


@pytest.fixture
def records(tmp_path: Path) -> Records:
    np.save(tmp_path / "x.npy", np.arange(N * 4, dtype=np.float32).reshape(N, 4))
    np.save(tmp_path / "y.npy", np.arange(N))
    return headrace.open({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})


def noisy(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Augments, and leaves out each seventh record."""
    if sample["y"] % 7 == 0:
        return None  # type: ignore[return-value]
    return {"x": sample["x"] + generator.random(4), "y": sample["y"], "name": f"r{sample['y']}"}


def by_hand(epoch: int, seed: int = 0) -> list[dict[str, Any] | None]:
    """What each position of an epoch must give, one after another."""
    rows = np.arange(N * 4, dtype=np.float32).reshape(N, 4)
    order = RandomOrder(4).indices(np.arange(N), N, epoch).tolist()
    return [
        noisy({"x": rows[index], "y": np.int64(index)}, generator_of(seed, epoch, position))
        for position, index in enumerate(order)
    ]


@pytest.mark.parametrize("workers", WORKERS)
def test_each_record_is_transformed_with_its_own_generator(
    records: Records, workers: dict[str, Any]
) -> None:
    with Loader(records, 10, order=RandomOrder(4), transform=noisy, **workers) as loader:
        for epoch in range(2):
            expected = by_hand(epoch)
            made = []
            for batch in loader:
                for row, valid in enumerate(batch["valid"].tolist()):
                    made.append({k: batch[k][row] for k in ("x", "y", "name")} if valid else None)
                    if not valid:
                        assert not batch["x"][row].any() and batch["name"][row] is None
            assert len(made) == N
            for one, other in zip(made, expected, strict=True):
                assert (one is None) == (other is None)
                if one is not None and other is not None:
                    np.testing.assert_array_equal(one["x"], other["x"])
                    assert (one["y"], one["name"]) == (other["y"], other["name"])
    assert loader.num_filtered == 2 * 15 and loader.num_damaged == 0


def test_generators_are_pinned_and_no_two_are_alike() -> None:
    assert generator_of(0, 0, 0).integers(0, 1 << 32, 2).tolist() == [3676393993, 3419962405]
    drawn = {
        generator_of(seed, epoch, position).integers(0, 1 << 62)
        for seed in range(5)
        for epoch in range(5)
        for position in range(5)
    }
    assert len(drawn) == 125


def test_replicas_and_resumed_runs_draw_the_same(records: Records) -> None:
    def loader(**more: Any) -> Loader:
        return Loader(records, 10, transform=noisy, num_micro_batches=2, seed=9, **more)

    whole = [batch["x"] for batch in loader()]
    first = loader()
    for _, _batch in zip(range(4), first, strict=False):
        pass
    rest = loader(workers=2)
    rest.load_state_dict(first.state_dict())
    for batch, expected in zip(rest, whole[4:], strict=True):
        np.testing.assert_array_equal(batch["x"], expected)
    halves = [loader(replica=replica, num_replicas=2) for replica in range(2)]
    for expected, *parts in zip(whole, *halves, strict=True):
        np.testing.assert_array_equal(np.concatenate([part["x"] for part in parts]), expected)


def test_a_transform_takes_a_generator_only_if_it_asks(records: Records) -> None:
    def doubled(sample: dict[str, Any], factor: float = 2) -> dict[str, Any]:
        return {"x": sample["x"] * factor}

    (batch,) = Loader(records, N, order=SequentialOrder(), transform=doubled)
    assert batch.keys() == {"x", "valid"} and batch["valid"].all()
    np.testing.assert_array_equal(batch["x"], np.arange(N * 4).reshape(N, 4) * 2)


def test_batches_come_in_order_though_later_ones_are_ready_first(records: Records) -> None:
    def slow_at_first(sample: dict[str, Any]) -> dict[str, Any]:
        time.sleep(0.2 if sample["y"] == 0 else 0)
        return {"y": sample["y"]}

    loader = Loader(records, 5, order=SequentialOrder(), transform=slow_at_first, workers=3)
    assert [int(y) for batch in loader for y in batch["y"]] == list(range(N))
    loader.close()


def fails_at_13(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["y"] == 13:
        raise KeyError("no such thing")
    return sample


@pytest.mark.parametrize("workers", WORKERS)
def test_a_transform_that_raises_names_its_record(
    records: Records, workers: dict[str, Any]
) -> None:
    with Loader(records, 10, order=SequentialOrder(), transform=fails_at_13, **workers) as loader:
        batches = iter(loader)
        assert next(batches)["y"].tolist() == list(range(10))
        with pytest.raises(
            RunError, match=r"the transform failed: got KeyError\('no such thing'\); in record 13"
        ) as caught:
            next(batches)
        assert loader.position == 10  # nothing is lost: another iteration tries again
    if "worker_kind" in workers:
        assert "fails_at_13" in "".join(caught.value.__notes__)
    else:
        assert isinstance(caught.value.__cause__, KeyError)


def dies_once(sample: dict[str, Any], *, died: Path) -> dict[str, Any]:
    if sample["y"] == 13 and not died.exists():
        died.touch()
        os._exit(3)
    return sample


def test_a_dead_worker_is_an_error_and_then_another_takes_its_place(
    records: Records, tmp_path: Path
) -> None:
    with Loader(
        records,
        10,
        order=SequentialOrder(),
        transform=partial(dies_once, died=tmp_path / "died"),
        workers=1,
        worker_kind="process",
    ) as loader:
        with pytest.raises(RunError, match="a worker process died: got exit code 3"):
            list(loader)
        assert [int(y) for batch in loader for y in batch["y"]] == list(range(10, N))


def test_what_cannot_be_pickled_is_refused_at_once(records: Records) -> None:
    with pytest.raises(DataError, match="the transform cannot go to other processes"):
        Loader(records, 10, transform=lambda sample: sample, workers=1, worker_kind="process")
    with pytest.raises(DataError, match="unknown kind of workers: got 'fiber'"):
        Loader(records, 10, workers=1, worker_kind="fiber")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="workers is wrong: got -1"):
        Loader(records, 10, workers=-1)


def unpicklable(sample: dict[str, Any]) -> dict[str, Any]:
    return {"lock": threading.Lock()}


def test_what_cannot_be_sent_back_is_an_error(records: Records) -> None:
    with (
        Loader(records, 10, transform=unpicklable, workers=1, worker_kind="process") as loader,
        pytest.raises(RunError, match="what a worker process made cannot be sent back"),
    ):
        next(iter(loader))


def test_samples_must_be_alike(records: Records) -> None:
    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {"a": 1} if sample["y"] % 2 else {"b": 1}

    with pytest.raises(DataError, match="samples of a batch have different fields: got 'a'"):
        list(Loader(records, 10, order=SequentialOrder(), transform=odd))
    with pytest.raises(DataError, match="the transform returned no sample: got int"):
        list(Loader(records, 10, transform=lambda sample: 3))


def test_a_batch_of_which_nothing_is_left_is_blank(records: Records) -> None:
    def middle(sample: dict[str, Any]) -> dict[str, Any] | None:
        return {"x": sample["x"], "name": "a"} if sample["y"] < 20 or sample["y"] > 60 else None

    batches = list(Loader(records, 10, order=SequentialOrder(), transform=middle))
    for number in (2, 3, 4, 5):
        assert batches[number]["x"].shape == (10, 4) and not batches[number]["x"].any()
        assert batches[number]["name"] == [None] * 10
        assert not batches[number]["valid"].any()
    with pytest.raises(DataError, match="the transform left out all records so far"):
        list(Loader(records, 10, transform=lambda sample: None))


def test_a_collate_of_torchs(records: Records) -> None:
    loader = Loader(records, 10, order=SequentialOrder(), collate=default_collate)
    batch = next(iter(loader))
    assert batch.keys() == {"x", "y"}  # nothing can be left out, so nothing is masked
    torch.testing.assert_close(batch["x"], torch.arange(40.0).reshape(10, 4))
    filtered = Loader(
        records, 10, order=SequentialOrder(), transform=noisy, collate=default_collate
    )
    batch = next(iter(filtered))
    assert batch["y"].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 8, 9]
    assert batch["valid"].tolist() == [False] + [True] * 6 + [False] + [True] * 2


def test_a_collate_with_another_number_of_rows_is_refused(records: Records) -> None:
    with pytest.raises(DataError, match="another number of rows: got 1, expected 10, one a sample"):
        list(Loader(records, 10, collate=lambda samples: {"x": np.zeros(1)}))
    with pytest.raises(RunError, match="the collate function failed: got ZeroDivisionError"):
        list(Loader(records, 10, collate=lambda samples: {"x": 1 // 0}))


def ragged(sample: dict[str, Any]) -> dict[str, Any]:
    return {"tokens": np.arange(sample["y"] % 5 + 1), "y": sample["y"]}


def test_padding_is_torchs_pad_sequence(records: Records) -> None:
    loader = Loader(
        records,
        8,
        order=SequentialOrder(),
        transform=ragged,
        collate=Padding({"tokens": -1}),
        drop_last=True,
    )
    for start, batch in zip(range(0, N, 8), loader, strict=False):
        rows = [torch.arange(y % 5 + 1) for y in range(start, start + 8)]
        expected = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
        np.testing.assert_array_equal(batch["tokens"], expected.numpy())
        assert batch["tokens_length"].tolist() == [len(row) for row in rows]
        assert batch["y"].tolist() == list(range(start, start + 8))


def test_padding_to_multiples_and_cutting() -> None:
    samples = [{"a": np.ones((length, 2))} for length in (3, 9, 5)]
    batch = Padding({"a": 0}, multiple=8, longest=6)(samples)
    assert batch["a"].shape == (3, 8, 2)
    assert batch["a_length"].tolist() == [3, 6, 5] and batch["a"].sum() == 2 * (3 + 6 + 5)
    with pytest.raises(DataError, match="no such field to pad: got 'b', expected 'a'"):
        Padding({"b": 0})(samples)
    with pytest.raises(DataError, match="field 'a' cannot be padded: got <U1"):
        Padding({"a": 0})([{"a": "x"}, {"a": "y"}])
    with pytest.raises(DataError, match="multiple is wrong: got 0"):
        Padding({"a": 0}, multiple=0)


@pytest.mark.parametrize("workers", WORKERS)
def test_abandoned_workers_leave_nothing_behind(records: Records, workers: dict[str, Any]) -> None:
    gc.collect()
    threads = set(threading.enumerate())
    loader = Loader(records, 4, transform=noisy, **workers)
    next(iter(loader))
    del loader
    gc.collect()
    left = [thread for thread in set(threading.enumerate()) - threads if thread.is_alive()]
    assert [thread.name for thread in left] == []
    assert multiprocessing.active_children() == []


def test_a_forked_child_makes_its_own_workers(records: Records) -> None:
    loader = Loader(records, 10, order=SequentialOrder(), transform=ragged, workers=2)
    iterator = iter(loader)
    assert next(iterator)["y"].tolist() == list(range(10))
    child = os.fork()
    if child == 0:
        good = [int(y) for batch in loader for y in batch["y"]] == list(range(10, N))
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [int(y) for batch in iterator for y in batch["y"]] == list(range(10, N))
    loader.close()
