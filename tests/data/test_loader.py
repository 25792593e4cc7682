"""The loader against np.load in the order's own words: batches, resuming, shares, endings."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headrace
from headrace import Loader, RandomOrder, Records, SequentialOrder
from headrace.errors import DataError, HeadraceError, ReadError, RunError
from headrace.shares import even_sizes

N = 1003


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("loader")
    rng = np.random.default_rng(0)
    np.save(path / "x.npy", rng.integers(0, 1 << 15, (N, 7), dtype=np.int16))
    np.save(path / "y.npy", np.arange(N, dtype=">u4"))
    return path


@pytest.fixture
def records(folder: Path) -> Records:
    return headrace.open({"x": folder / "x.npy", "y": folder / "y.npy"})


def truth(folder: Path, order: Any, epoch: int) -> dict[str, np.ndarray]:
    """The epoch's records, one after another, as NumPy reads them."""
    indices = order.indices(np.arange(N), N, epoch)
    return {name: np.load(folder / f"{name}.npy")[indices] for name in ("x", "y")}


def ys(batches: Any) -> list[int]:
    return [int(y) for batch in batches for y in batch["y"]]


@pytest.mark.parametrize("engine", ["uring", "threads"])
@pytest.mark.parametrize("direct", [False, True])
def test_batches_are_the_records_of_the_order(
    folder: Path, records: Records, engine: Any, direct: bool
) -> None:
    order = RandomOrder(5)
    with Loader(records, 64, order=order, engine=engine, direct=direct) as loader:
        for epoch in range(2):
            expected = truth(folder, order, epoch)
            assert loader.epoch == epoch
            try:
                batches = list(loader)
            except DataError as error:
                pytest.skip(str(error))
            assert [len(batch["x"]) for batch in batches] == [64] * 15 + [43]
            for name in ("x", "y"):
                joined = np.concatenate([batch[name] for batch in batches])
                np.testing.assert_array_equal(joined, expected[name])
                assert joined.dtype == expected[name].dtype.newbyteorder("=")
    assert loader.epoch == 2 and loader.position == 0


def test_the_last_batch_can_be_dropped(records: Records) -> None:
    loader = Loader(records, 64, drop_last=True)
    assert len(loader) == 15 and list(loader.batch_sizes()) == [64] * 15
    assert len(set(ys(loader))) == 15 * 64
    assert len(Loader(records, 64)) == 16
    assert list(Loader(records, 64).batch_sizes()) == [64] * 15 + [43]
    assert len(list(Loader(records, 2 * N, drop_last=True))) == 0


def test_tensors_share_no_memory_with_each_other(records: Records) -> None:
    batches = list(Loader(records, 300, order=SequentialOrder(), tensors=True))
    assert all(isinstance(batch["x"], torch.Tensor) for batch in batches)
    batches[0]["y"].zero_()
    assert ys(batches[1:]) == list(range(300, N))


# Resuming


@pytest.mark.parametrize("delivered", [0, 1, 7, 15, 16])
def test_a_state_continues_at_any_batch(records: Records, delivered: int) -> None:
    whole = Loader(records, 64, order=RandomOrder(3))
    list(whole)  # epoch 0
    expected = [ys([batch]) for batch in whole] + [ys([batch]) for batch in whole]

    first = Loader(records, 64, order=RandomOrder(3))
    list(first)
    iterator = iter(first)
    found = [ys([next(iterator)]) for _ in range(delivered)]
    state = json.loads(json.dumps(first.state_dict()))
    second = Loader(records, 64, order=RandomOrder(3))
    second.load_state_dict(state)
    # After the last batch the state is the next epoch's beginning.
    assert (second.epoch, second.position) == (divmod(16 + delivered, 16)[0], 64 * (delivered % 16))
    assert len(list(second.batch_sizes())) == 16 - delivered % 16
    found += [ys([batch]) for batch in second]
    if delivered < 16:
        found += [ys([batch]) for batch in second]
    assert found == expected


def test_the_batch_size_may_change_on_resuming(records: Records) -> None:
    first = Loader(records, 64)
    iterator = iter(first)
    found = ys([next(iterator), next(iterator)])
    second = Loader(records, 100)
    second.load_state_dict(first.state_dict())
    assert found + ys(second) == ys(Loader(records, N))


def test_a_loop_that_breaks_goes_on_where_it_stopped(records: Records) -> None:
    loader = Loader(records, 64)
    found = []
    for batch in loader:
        found += ys([batch])
        if len(found) > 200:
            break
    assert found + ys(loader) == ys(Loader(records, 64))


def test_an_epoch_that_was_counted_out_is_over(records: Records) -> None:
    """As Lightning does it: as many batches as len says, and none is asked for after the last."""
    seen, states = [], []
    loader = Loader(records, 100, order=RandomOrder(1))
    for _ in range(3):
        batches = iter(loader)
        for _ in range(len(loader)):
            seen += ys([next(batches)])
            states.append((loader.state_dict()["epoch"], loader.state_dict()["position"]))
    expected = Loader(records, 100, order=RandomOrder(1))
    assert seen == ys(expected) + ys(expected) + ys(expected)
    assert states[9:13] == [(0, 1000), (1, 0), (1, 100), (1, 200)]


def test_a_state_of_the_last_batch_is_the_next_epochs_beginning(records: Records) -> None:
    first = Loader(records, 100)
    batches = iter(first)
    for _ in range(len(first)):
        next(batches)
    again = Loader(records, 100)
    again.load_state_dict(first.state_dict())
    assert (again.epoch, again.position) == (1, 0)
    again.load_state_dict(first.state_dict() | {"epoch": 0, "position": N})  # of an older version
    assert (again.epoch, again.position) == (1, 0)
    assert len(ys(again)) == N


def test_dropping_the_last_batch_after_a_change_of_the_batch_size(records: Records) -> None:
    """What is left of the epoch is cut into full batches; what they leave is dropped."""
    first = Loader(records, 64, drop_last=True)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    again = Loader(records, 100, drop_last=True)
    again.load_state_dict(first.state_dict())
    assert list(again.batch_sizes()) == [100] * 8  # of 1003 - 192 = 811
    assert [len(batch["y"]) for batch in again] == [100] * 8
    assert [len(batch["y"]) for batch in again] == [100] * 10


def test_states_of_others_are_refused(folder: Path, records: Records) -> None:
    state = Loader(records, 64).state_dict()
    x = headrace.open(folder / "x.npy")
    for other, message in (
        (Loader(records, 64, order=RandomOrder(1)), "another order: got .*'seed': 0.*'seed': 1"),
        (Loader(records, 64, order=SequentialOrder()), "another order"),
        (Loader(x, 64), "another fingerprint"),
    ):
        with pytest.raises(DataError, match=message):
            other.load_state_dict(state)
    loader = Loader(records, 64)
    with pytest.raises(DataError, match="not the state of a loader: got keys epoch"):
        loader.load_state_dict({"epoch": 1})
    with pytest.raises(DataError, match="position of the state is wrong: got 1004"):
        loader.load_state_dict(state | {"position": N + 1})
    assert loader.state_dict() == state


def test_an_iteration_ends_when_another_begins(records: Records) -> None:
    loader = Loader(records, 64)
    for stop in (
        lambda: iter(loader),
        lambda: loader.load_state_dict(loader.state_dict()),
        loader.close,
    ):
        iterator = iter(loader)
        next(iterator)
        stop()
        with pytest.raises(RunError, match="this iteration is over"):
            next(iterator)


def test_an_iteration_that_has_ended_stays_ended(records: Records) -> None:
    loader = Loader(records, 1000)
    iterator = iter(loader)
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    assert loader.epoch == 1


# Shares


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 7])
def test_replicas_share_each_batch_by_micro_batches(records: Records, num_replicas: int) -> None:
    """Micro-batch i of a batch goes to replica i mod R, whatever R is."""
    m = 4
    whole = [ys([batch]) for batch in Loader(records, 50)]
    loaders = [
        Loader(records, 50, num_micro_batches=m, replica=r, num_replicas=num_replicas)
        for r in range(num_replicas)
    ]
    for batch, *shares in zip(whole, *loaders, strict=True):
        expected: list[list[int]] = [[] for _ in loaders]
        rest = batch
        for i, size in enumerate(even_sizes(len(batch), m)):
            expected[i % num_replicas] += rest[:size]
            rest = rest[size:]
        assert [ys([share]) for share in shares] == expected
    assert all(loader.epoch == 1 for loader in loaders)


@pytest.mark.parametrize("layouts", [(1, 3), (4, 1), (2, 3, 1, 4)])
def test_the_number_of_ranks_changes_in_mid_epoch(
    records: Records, layouts: tuple[int, ...]
) -> None:
    """Each layout goes on from the state of the one before; each record comes once."""
    order = RandomOrder(2)
    found: list[int] = []
    state: dict[str, Any] | None = None
    for number, num_replicas in enumerate(layouts):
        loaders = [
            Loader(
                records, 48, order=order, num_micro_batches=4, replica=r, num_replicas=num_replicas
            )
            for r in range(num_replicas)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        num_batches = 5 if number < len(layouts) - 1 else None
        shares = [list(islice(loader, num_batches)) for loader in loaders]
        for batch in zip(*shares, strict=True):
            found += ys(batch)
        states = [dict(loader.state_dict()) for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        for loader in loaders:
            loader.close()
    assert len(found) == N
    assert sorted(found) == list(range(N))
    assert state is not None and (state["epoch"], state["position"]) == (1, 0)


@pytest.mark.parametrize("breaks", [(3, 4, 9), (1, 2, 3), (11, 16, 17), (16, 32, 33)])
def test_three_states_one_after_another(records: Records, breaks: tuple[int, ...]) -> None:
    """Within an epoch, at its last batch, and at the ends of two, each time in a fresh loader."""
    whole = Loader(records, 64)
    expected = [ys([batch]) for _ in range(3) for batch in whole]
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    for stop in (*breaks, len(expected)):
        with Loader(records, 64) as loader:
            if state is not None:
                loader.load_state_dict(state)
            while len(found) < stop:
                found += [ys([batch]) for batch in islice(loader, stop - len(found))]
            state = dict(loader.state_dict())
    assert found == expected


# What is read


def test_fields_not_asked_for_are_not_read(records: Records) -> None:
    for fields, num_bytes in ((["x"], 14), (["y"], 4), (None, 18), ((), 0)):
        loader = Loader(records, 64, fields=fields)
        batches = list(loader)
        assert len(batches) == 16 and loader.epoch == 1
        assert list(batches[0]) == list(("x", "y") if fields is None else fields)
        assert loader.bytes_read == num_bytes * N
    list(loader)
    loader = Loader(records, 64, fields=["y"])
    list(loader), list(loader)
    assert loader.bytes_read == 8 * N  # over its lifetime


def test_only_so_many_batches_are_read_ahead(records: Records) -> None:
    loader = Loader(records, 10, batches_ahead=3)
    iterator = iter(loader)
    next(iterator)
    time.sleep(0.3)
    assert loader.bytes_read == 4 * 10 * 18
    next(iterator)
    time.sleep(0.3)
    assert loader.bytes_read == 5 * 10 * 18


def test_an_empty_data_set_has_no_batches(tmp_path: Path) -> None:
    np.save(tmp_path / "none.npy", np.empty((0, 3), np.float32))
    loader = Loader(headrace.open(tmp_path / "none.npy"), 5)
    assert len(loader) == 0 and list(loader) == [] and loader.epoch == 1


# Endings


def own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("headrace")]


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_abandoned_loaders_leave_no_thread_and_no_file(records: Records, engine: Any) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in Loader(records, 10, engine=engine):
        break
    assert wait_until(lambda: not own_threads())
    loader = Loader(records, 10)
    for _ in loader:
        break
    iterator = iter(loader)
    next(iterator)
    del iterator
    assert wait_until(lambda: not own_threads())
    with loader:
        next(iter(loader))
    assert not own_threads()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_an_error_names_record_and_file_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000, dtype=np.int64))
    content = path.read_bytes()
    loader = Loader(headrace.open(path), 100, order=SequentialOrder(), direct=False)
    path.write_bytes(content[: 128 + 8 * 555])
    found = []
    with pytest.raises(ReadError, match=r"record 555 could not be read: got 0 bytes.*a\.npy"):
        for batch in loader:
            found += batch["data"].tolist()
    assert found == list(range(500)) and loader.position == 500
    assert not own_threads()
    path.write_bytes(content)
    for batch in loader:
        found += batch["data"].tolist()
    assert found == list(range(1000))


@pytest.fixture
def alarm() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupt_loses_no_record(records: Records, alarm: None) -> None:
    """Interrupted wherever it is, an iteration goes on: nothing between two positions is lost."""
    loader = Loader(records, 7, batches_ahead=1)
    expected = ys(Loader(records, 7))
    iterator, num_interrupts = iter(loader), 0
    while loader.epoch == 0:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002)  # rings once
            while loader.epoch == 0:
                position = loader.position
                found = ys([next(iterator, {"y": []})])
                assert found == expected[position : position + 7]
            signal.setitimer(signal.ITIMER_REAL, 0)
        except (KeyboardInterrupt, RuntimeError):  # threading's own waits may turn one into such
            num_interrupts += 1
    assert num_interrupts > 3


def test_batches_that_interrupts_swallowed_are_read_again(records: Records, alarm: None) -> None:
    """As when it falls, twice running, between the arrival of a batch and its use."""
    expected = ys(Loader(records, 7))
    loader = Loader(records, 7, batches_ahead=1)
    iterator = iter(loader)
    assert loader._prefetch is not None
    work = loader._prefetch._work
    work.wanted.put(0)
    for number in (0, 1):
        arrived = work.ready.get()
        assert isinstance(arrived, tuple) and arrived[0] == number
    signal.setitimer(signal.ITIMER_REAL, 30)  # rather than a wait for ever

    assert ys(iterator) == expected


def test_an_error_that_an_interrupt_swallowed_is_told_again(tmp_path: Path, alarm: None) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.arange(1000, dtype=np.int64))
    loader = Loader(headrace.open(path), 100, order=SequentialOrder(), direct=False)
    path.write_bytes(path.read_bytes()[:200])
    iterator = iter(loader)
    assert loader._prefetch is not None
    work = loader._prefetch._work
    work.wanted.put(0)
    assert isinstance(work.ready.get(), ReadError)
    signal.setitimer(signal.ITIMER_REAL, 30)

    with pytest.raises(ReadError, match="record 9 could not be read"):
        next(iterator)
    assert not own_threads()


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_a_forked_child_reads_on_and_so_does_its_parent(records: Records, engine: Any) -> None:
    loader = Loader(records, 50, engine=engine)
    expected = ys(Loader(records, 50))
    iterator = iter(loader)
    found = ys([next(iterator)])
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if found + ys(iterator) == expected and ys(loader) else 1)
        except BaseException:
            os._exit(2)
    assert found + ys(iterator) == expected
    assert wait_for(child) == 0


def rest_in(records: Records, state: dict[str, Any], queue: Any) -> None:
    loader = Loader(records, 50)
    loader.load_state_dict(state)
    queue.put(ys(loader))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_records_and_a_state_in_a_fresh_process(records: Records, method: str) -> None:
    """In mid-epoch; both go on, each by itself."""
    loader = Loader(records, 50)
    expected = ys(Loader(records, 50))
    iterator = iter(loader)
    found = ys([next(iterator)])
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    child = context.Process(target=rest_in, args=(records, dict(loader.state_dict()), queue))
    child.start()
    assert found + ys(iterator) == expected
    assert found + queue.get() == expected
    child.join(20)
    assert child.exitcode == 0


def wait_for(child: int) -> int:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        process, status = os.waitpid(child, os.WNOHANG)
        if process:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    raise AssertionError("the child hangs")


@pytest.mark.parametrize(
    "ending",
    [
        "pass",
        "sys.exit(0)",
        "del iterator; del loader",
        "pid = os.fork(); pid and os.waitpid(pid, 0)",
    ],
)
@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_a_program_may_end_in_the_middle(folder: Path, ending: str, engine: str) -> None:
    program = textwrap.dedent(
        f"""
        import os, sys, headrace
        loader = headrace.Loader(headrace.open({str(folder / "x.npy")!r}), 10, engine={engine!r})
        iterator = iter(loader)
        next(iterator)
        {ending}
        """
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


# Bad arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size is wrong: got 0, expected a whole number, at least 1"),
        ({"batch_size": 2.0}, r"batch_size is wrong: got 2\.0"),
        ({"num_micro_batches": 9}, "num_micro_batches is wrong: got 9, .* 1 to 8"),
        ({"replica": 2, "num_replicas": 2}, "replica is wrong: got 2, .* 0 to 1"),
        ({"batches_ahead": 0}, "batches_ahead is wrong"),
        ({"engine": "aio"}, "unknown engine: got 'aio', expected auto, uring or threads"),
        ({"fields": ["z"]}, "no such field: got 'z', expected 'x', 'y'"),
        ({"fields": "x"}, r"fields is text: got 'x', expected several names: fields=\('x',\)"),
        ({"pin_memory": True}, "pin_memory is for tensors; set tensors=True"),
    ],
)
def test_bad_arguments(records: Records, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadraceError, match=message):
        Loader(records, **{"batch_size": 8, **arguments})
