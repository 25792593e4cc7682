"""Which engine is taken, and what the reader makes of short, refused and broken reads."""

import ctypes
import errno
import fcntl
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.data import uring
from headrace.data.backend import EngineName
from headrace.data.files import RWF_DONTCACHE
from headrace.data.reader import Reader
from headrace.data.request import REQUEST
from headrace.data.threads import Threads
from headrace.errors import DataError, ReadError, RunError
from tests.data.reading import (
    REFUSALS,
    Answer,
    Scripted,
    need_direct,
    need_uring,
    num_descriptors,
    older_kernel,
    one_piece_each,
    random_file,
    records_of,
    true_records,
)

SystemCall = Callable[..., int]
SETUP, ENTER = 425, 426


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return random_file(tmp_path / "data", 50_000)


def check_reads(reader: Reader, path: Path) -> None:
    spans = one_piece_each(0, [3, 7000, 20_001, 49_000, 7000], [2000, 13_000, 9, 1000, 13_000])
    reads = [reader.start(spans) for _ in range(3)]
    for read in reads:
        assert records_of(reader.finish(read)) == true_records([path], spans)


@pytest.mark.parametrize("number", REFUSALS, ids=errno.errorcode.get)
@pytest.mark.parametrize("call", [SETUP, ENTER], ids=["setup", "enter"])
def test_io_uring_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: int, number: int
) -> None:
    """auto takes threads, with the same bytes; "uring" says what was refused and what to do."""
    if call == ENTER:
        need_uring()
    real: SystemCall = uring._system_call

    def refuse(libc: ctypes.CDLL, wanted: int, *arguments: object) -> int:
        return -number if wanted == call else real(libc, wanted, *arguments)

    monkeypatch.setattr(uring, "_system_call", refuse)
    before = num_descriptors()
    message = f"io_uring is refused on this machine: got {errno.errorcode[number]}.*engine='auto'"
    with pytest.raises(DataError, match=message):
        Reader([path], engine="uring")
    with Reader([path]) as reader:
        assert reader.engine == "threads"
        check_reads(reader, path)
    assert num_descriptors() == before


def test_another_fault_of_io_uring_is_not_hidden(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uring, "_system_call", lambda *_: -errno.EFAULT)
    with pytest.raises(OSError, match="io_uring_setup is refused"):
        Reader([path])


def test_not_linux(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uring.sys, "platform", "darwin")
    with Reader([path]) as reader:
        assert reader.engine == "threads"


@pytest.mark.parametrize("known", [0, 1 << 8], ids=["Linux 5.6", "Linux 5.19"])
def test_older_kernels(path: Path, monkeypatch: pytest.MonkeyPatch, known: int) -> None:
    """Flags that the kernel does not know are left out."""
    need_uring()
    asked = older_kernel(monkeypatch, known)
    with Reader([path], engine="uring") as reader:
        check_reads(reader, path)
    assert asked[-1] == known


def test_a_kernel_without_the_read_operation(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux 5.1 to 5.5 make a ring that cannot read: the features say so."""
    need_uring()
    real: SystemCall = uring._system_call

    def forget_features(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
        answer = real(libc, number, *arguments)
        if number == SETUP:
            address = arguments[1]
            assert isinstance(address, ctypes.c_void_p) and address.value
            ctypes.c_uint32.from_address(address.value + 20).value = 0
        return answer

    monkeypatch.setattr(uring, "_system_call", forget_features)
    before = num_descriptors()
    with Reader([path]) as reader:
        assert reader.engine == "threads"
    assert num_descriptors() == before


def test_a_kernel_short_of_memory(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes half of the entries, or says EAGAIN, EBUSY, EINTR: all is asked again."""
    need_uring()
    real: SystemCall = uring._system_call
    moods = itertools.cycle([errno.EAGAIN, 0, errno.EBUSY, errno.EINTR, 0, 0])

    def stint(libc: ctypes.CDLL, number: int, *arguments: int) -> int:
        if number == SETUP or not arguments[1] and not arguments[2]:
            return real(libc, number, *arguments)
        if mood := next(moods):
            return -mood
        if arguments[1] > 1:
            arguments = (arguments[0], arguments[1] // 2, 0, *arguments[3:])
        return real(libc, number, *arguments)

    monkeypatch.setattr(uring, "_system_call", stint)
    with Reader([path], engine="uring", queue_depth=4) as reader:
        check_reads(reader, path)


@pytest.mark.parametrize("queue_depth", [1, 3, 8])
def test_the_ring_wraps(tmp_path: Path, queue_depth: int) -> None:
    """Many more reads than slots, in uneven portions."""
    need_uring()
    path = random_file(tmp_path / "data", 100_000)
    with Reader([path], engine="uring", queue_depth=queue_depth) as reader:
        for count in [1, 5, 8, 2, 40, 3, 7, 100]:
            spans = one_piece_each(0, range(count, count + 500 * count, 500), 300)
            assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)


def scripted(
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Answer,
    *,
    direct: bool = False,
    queue_depth: int = 4,
) -> Reader:
    """A reader whose engine follows a script."""

    def make(_: EngineName, depth: int) -> Scripted:
        return Scripted(depth, answer)

    monkeypatch.setattr("headrace.data.reader.make_engine", make)
    return Reader([path], engine="uring", direct=direct, queue_depth=queue_depth)


@pytest.mark.parametrize("most_bytes", [1, 7, 4096])
def test_short_reads_are_continued(
    path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    with scripted(path, monkeypatch, lambda *_: most_bytes) as reader:
        spans = one_piece_each(0, [5, 700, 49_900], [500, 90, 100])
        assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)


def test_short_direct_reads_are_continued_at_a_block(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_direct(path.parent)
    lengths = []

    def a_block(_: int, __: int, length: int, ___: int) -> int:
        lengths.append(length)
        return 4096

    with scripted(path, monkeypatch, a_block, direct=True) as reader:
        check_reads(reader, path)
        assert not any(length % reader.alignment for length in lengths)
        assert reader.direct


def test_a_direct_read_that_stops_within_a_block_has_met_the_files_end(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked again from an offset that direct reads do not allow."""
    need_direct(path.parent)
    lengths = []

    def all_of_it(_: int, __: int, length: int, ___: int) -> int:
        lengths.append(length)
        return length

    with scripted(path, monkeypatch, all_of_it, direct=True) as reader:
        with pytest.raises(ReadError, match="got 0 bytes at offset 50000 .the file ends there"):
            reader.finish(reader.start(one_piece_each(0, 50_000, 5000)))
        assert len(lengths) == 1 and reader.direct


def test_transient_errors_are_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EAGAIN, then EINTR, then some bytes, then the rest."""
    steps = [-errno.EAGAIN, -errno.EINTR, 3]
    with scripted(
        path, monkeypatch, lambda _, __, length, times: [*steps, length][min(times, 3)]
    ) as reader:
        check_reads(reader, path)


def test_a_device_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message counts the bytes that came before; later batches are read."""
    answers = iter([10, -errno.EIO])
    with scripted(path, monkeypatch, lambda _, __, length, ___: next(answers, length)) as reader:
        with pytest.raises(ReadError) as caught:
            reader.finish(reader.start(one_piece_each(0, 100, 30)))

        assert str(caught.value) == (
            "record 0 could not be read: got 10 bytes at offset 100 (Input/output error), "
            f"expected 30 bytes; in {path}; the device reports an error; look at the system's log"
        )
        check_reads(reader, path)


def test_ways_of_reading_are_given_up_one_by_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused O_DIRECT becomes RWF_DONTCACHE, refused too it becomes a plain read."""
    need_direct(path.parent)
    ways = []

    def plain_only(descriptor: int, flags: int, length: int, _: int) -> int:
        is_direct = bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)
        ways.append((is_direct, flags))
        if is_direct:
            return -errno.EINVAL
        return -errno.EOPNOTSUPP if flags else length

    with scripted(path, monkeypatch, plain_only, direct=True, queue_depth=1) as reader:
        assert reader.direct
        check_reads(reader, path)

        assert not reader.direct
        assert reader.refusals == (
            f"O_DIRECT: Invalid argument; in {path}",
            f"RWF_DONTCACHE: Operation not supported; in {path}",
        )
    assert ways[:3] == [(True, 0), (False, RWF_DONTCACHE), (False, 0)]
    assert set(ways[3:]) == {(False, 0)}


def test_refused_while_others_are_under_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several reads come back refused at once: the way is given up once, not once for each."""
    need_direct(path.parent)

    def not_direct(descriptor: int, _: int, length: int, times: int) -> int:
        return length if times else -errno.EINVAL

    with scripted(path, monkeypatch, not_direct, direct=True, queue_depth=3) as reader:
        spans = one_piece_each(0, [0, 10_000, 20_000], 100)
        assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)
        assert len(reader.refusals) == 1


def test_a_file_system_that_refuses_to_open_directly(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(name: object, flags: int, *others: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return real(name, flags, *others)  # type: ignore[call-overload]

    monkeypatch.setattr(os, "open", refuse)
    for engine in ("auto", "threads"):
        with Reader([path], engine=engine, direct=True) as reader:  # type: ignore[arg-type]
            check_reads(reader, path)
            assert reader.refusals[0] == f"O_DIRECT: Invalid argument; in {path}"
            assert not reader.direct


def test_reads_lost_by_an_interruption(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-C in the wrong moment a batch is not waited for for ever."""
    engines = []

    def make(_: EngineName, depth: int) -> Scripted:
        engines.append(Scripted(depth, lambda _, __, length, ___: length))
        return engines[0]

    monkeypatch.setattr("headrace.data.reader.make_engine", make)
    with Reader([path], engine="uring", direct=False, queue_depth=1) as reader:
        read = reader.start(one_piece_each(0, [0, 500], 100))
        engines[0].is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            reader.finish(read)
        engines[0].is_interrupted = False

        with pytest.raises(RunError, match="reads of this batch were lost; make a new reader"):
            reader.finish(read)


@pytest.mark.parametrize("num_threads", [1, 3, 64])
def test_more_reads_for_threads_than_a_pipe_takes_at_once(path: Path, num_threads: int) -> None:
    """A pipe holds 8192 numbers and takes 512 in one piece; each read ends once, and only once."""
    data, num = path.read_bytes(), 10_000
    offsets = np.random.default_rng(0).integers(0, len(data) - 8, num)
    buffer = np.zeros((num, 8), np.uint8)
    threads = Threads(num, num_threads)
    with path.open("rb") as file:
        for ticket in (0, num):  # the second round gets its rows in another order
            requests = np.zeros(num, REQUEST)
            requests["descriptor"], requests["offset"] = file.fileno(), offsets
            requests["address"], requests["length"] = buffer.ctypes.data + 8 * np.arange(num), 8
            requests["ticket"] = ticket + np.arange(num)
            buffer[:] = 0
            threads.push(requests, buffer)
            assert (threads.room, threads.num_in_flight) == (0, num)
            some, few = threads.collect(num // 2)
            rest, last = threads.collect(num - len(some))
            assert sorted([*some.tolist(), *rest.tolist()]) == requests["ticket"].tolist()
            assert {*few.tolist(), *last.tolist()} == {8}
            assert [row.tobytes() for row in buffer] == [data[at : at + 8] for at in offsets]
    assert threads.collect(0)[0].tolist() == []
    assert threads.close()


def test_signals_among_the_reads_of_threads(path: Path) -> None:
    """A thousand interruptions a second change nothing."""
    caught = []
    before = signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        with Reader([path], engine="threads", direct=False, queue_depth=8) as reader:
            while len(caught) < 100:
                check_reads(reader, path)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_flags_and_errors_reach_threads(path: Path) -> None:
    """An impossible flag is refused by the system itself, a wrong descriptor too."""
    buffer = np.zeros(8, np.uint8)
    threads = Threads(4)
    with path.open("rb") as file:
        requests = np.zeros(3, REQUEST)
        requests["descriptor"] = [file.fileno(), file.fileno(), 1 << 20]
        requests["flags"] = [0, 1 << 30, 0]
        requests["address"], requests["length"] = buffer.ctypes.data, 8
        requests["ticket"] = [5, 6, 7]
        threads.push(requests, buffer)
        tickets, results = threads.collect(3)
    threads.close()
    assert dict(zip(tickets.tolist(), results.tolist(), strict=True)) == {
        5: 8,
        6: -errno.EOPNOTSUPP,
        7: -errno.EBADF,
    }
