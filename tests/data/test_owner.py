"""A reader belongs to the thread and process that made it, and leaves others unharmed."""

import ctypes
import gc
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headrace.data.reader import EngineName, Reader
from headrace.errors import RunError
from tests.data.reading import (
    need_direct,
    need_uring,
    older_kernel,
    one_piece_each,
    random_file,
    records_of,
    true_records,
)

# Python 3.12 and newer warn of every fork beside threads; here that is what is looked at.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


@pytest.fixture(params=["uring", "threads"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    if request.param == "uring":
        need_uring()
    name: EngineName = request.param
    return name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return random_file(tmp_path / "data", 1_000_000)


SPANS = one_piece_each(0, np.arange(0, 900_000, 3000), 2500)


def in_a_thread(work: Callable[[], None]) -> None:
    """Runs it in another thread; what it raises is raised here."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


def in_a_child(work: Callable[[], None]) -> int:
    """Runs it in a child made by fork; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_another_thread_is_refused(path: Path, engine: EngineName) -> None:
    with Reader([path], engine=engine) as reader:
        read = reader.start(SPANS)
        for use in (lambda: reader.finish(read), lambda: reader.start(SPANS)):
            with pytest.raises(RunError, match=r"outside the thread and process.*make a new read"):
                in_a_thread(use)  # type: ignore[arg-type]
        assert records_of(reader.finish(read)) == true_records([path], SPANS)


def test_a_later_thread_is_refused(path: Path, engine: EngineName) -> None:
    """Though the system's library gives the name of an ended thread to the next one."""
    readers: list[Reader] = []
    in_a_thread(lambda: readers.append(Reader([path], engine=engine)))

    for _ in range(5):
        with pytest.raises(RunError, match="outside the thread and process"):
            in_a_thread(lambda: readers[0].start(SPANS))  # type: ignore[arg-type]
    readers[0].close()


def test_closing_from_another_thread(path: Path, engine: EngineName) -> None:
    """It does not hang, though the kernel may refuse to wait for that thread."""
    reader = Reader([path], engine=engine)
    reader.start(SPANS)

    in_a_thread(reader.close)

    with pytest.raises(RunError, match="the reader is closed"):
        reader.start(SPANS)


def test_a_reader_in_a_thread_of_its_own(path: Path, engine: EngineName) -> None:
    """What it read outlives it and its thread."""
    found = []

    def work() -> None:
        with Reader([path], engine=engine) as reader:
            found.append(reader.finish(reader.start(SPANS)))

    in_a_thread(work)

    assert records_of(found[0]) == true_records([path], SPANS)


def test_a_child_is_refused_and_its_parent_goes_on(path: Path, engine: EngineName) -> None:
    """A child that uses, closes and drops the reader takes nothing from reads in flight."""
    reader = Reader([path], engine=engine, queue_depth=64)
    reads = [reader.start(SPANS) for _ in range(3)]
    done = reader.finish(reads.pop())

    def child() -> None:
        nonlocal reader
        assert records_of(done) == true_records([path], SPANS)
        with pytest.raises(RunError, match="outside the thread and process"):
            reader.finish(reads[0])
        reads.clear()
        reader.close()
        del reader
        gc.collect()
        with Reader([path], engine=engine) as own:
            assert records_of(own.finish(own.start(SPANS))) == true_records([path], SPANS)

    for _ in range(3):
        assert in_a_child(child) == 0
    for read in reads:
        assert records_of(reader.finish(read)) == true_records([path], SPANS)
    assert records_of(reader.finish(reader.start(SPANS))) == true_records([path], SPANS)
    reader.close()


def test_a_child_on_an_older_kernel(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Linux 6.1 the kernel does not keep a child from emptying its parent's ring."""
    need_uring()
    older_kernel(monkeypatch, 0)
    reader = Reader([path], engine="uring", direct=True)
    reads = [reader.start(SPANS) for _ in range(2)]

    assert in_a_child(reader.close) == 0

    for read in reads:
        assert records_of(reader.finish(read)) == true_records([path], SPANS)
    reader.close()


def test_children_made_while_reads_are_in_flight(path: Path, engine: EngineName) -> None:
    """A fork makes pages copy-on-write; bytes that arrive after it still reach the parent."""
    with Reader([path], engine=engine, direct=True, queue_depth=128) as reader:
        for _ in range(10):
            reads = [reader.start(SPANS) for _ in range(2)]
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            for read in reads:
                assert records_of(reader.finish(read)) == true_records([path], SPANS)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_child_does_not_unmap_what_it_never_had(
    path: Path, engine: EngineName, has_ended: bool
) -> None:
    """Memory that was kept from the child has its addresses free there for others.

    Reads that have ended count too, as long as nobody has finished their batch.
    """
    need_direct(path.parent)  # buffered reads land in memory that children may well have
    reader = Reader([path], engine=engine, direct=True, queue_depth=1)
    reads = [reader.start(one_piece_each(0, np.arange(0, 900_000, 9000), 40)) for _ in range(3)]
    if has_ended:
        reader.finish(reads.pop())
        assert reads[0].num_left == 0
    address, size = reads[0].buffer.ctypes.data, len(reads[0].buffer)

    def child() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        # MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE: fails if anything lives there.
        wanted = ctypes.c_void_p(address)
        mine = libc.mmap(wanted, ctypes.c_size_t(size), 3, 0x100022, -1, ctypes.c_long(0))
        assert mine == address
        ctypes.memset(address, 7, size)
        reads.clear()
        reader.close()
        gc.collect()
        assert ctypes.string_at(address, size) == b"\x07" * size

    assert in_a_child(child) == 0
    reader.close()


def test_a_reader_still_open_when_the_interpreter_ends(path: Path, engine: EngineName) -> None:
    """The process ends at once, in silence."""
    code = (
        "import sys, numpy as np\n"
        "from headrace.data.reader import Reader\n"
        "from headrace.data.plan import Spans\n"
        "reader = Reader([sys.argv[1]], engine=sys.argv[2])\n"
        "spans = Spans(np.zeros(200, np.int32), np.arange(200) * 4000,\n"
        "              np.full(200, 3000), np.arange(201))\n"
        "read = reader.start(spans)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), engine],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=Path(__file__).parents[2],
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
