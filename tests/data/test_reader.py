"""What the reader brings is what open, seek and read bring, whatever the engine and the mode."""

import os
import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.data.plan import Spans
from headrace.data.reader import EngineName, Read, Reader
from headrace.errors import DataError, ReadError, RunError
from tests.data.reading import (
    need_direct,
    need_uring,
    num_descriptors,
    one_piece_each,
    random_file,
    records_of,
    true_records,
)


@pytest.fixture(params=["auto", "uring", "threads"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    if request.param == "uring":
        need_uring()
    name: EngineName = request.param
    return name


@pytest.fixture(params=[False, True], ids=["buffered", "direct"])
def direct(request: pytest.FixtureRequest, tmp_path: Path) -> bool:
    if request.param:
        need_direct(tmp_path)
    return bool(request.param)


def read_all(reader: Reader, spans: Spans) -> list[bytes]:
    return records_of(reader.finish(reader.start(spans)))


def test_unaligned_records(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """Records of any length at any byte, the last ones at the file's very end, some twice."""
    size = 1_000_003
    path = random_file(tmp_path / "data", size)
    random = np.random.default_rng(1)
    lengths = random.integers(0, 9000, 300)
    offsets = random.integers(0, size - lengths)
    spans = one_piece_each(
        0,
        [*offsets, *offsets[:5], size - 1, size - 4097, size, 0],
        [*lengths, *lengths[:5], 1, 4097, 0, 1],
    )

    with Reader([path], engine=engine, direct=direct) as reader:
        found = read_all(reader, spans)

        assert (reader.direct, reader.refusals) == (direct, ())
        assert engine in ("auto", reader.engine)
        assert reader.alignment >= 512 if direct else reader.alignment == 1
    assert found == true_records([path], spans)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_records_of_several_pieces(
    tmp_path: Path, engine: EngineName, direct: bool, data: st.DataObject
) -> None:
    """Pieces may lie in different files, overlap, be empty; a record may have none."""
    sizes = [10_000, 513, 0, 1]
    paths = [random_file(tmp_path / str(number), size, number) for number, size in enumerate(sizes)]
    pieces = st.integers(0, 3).flatmap(
        lambda file: st.tuples(
            st.just(file), st.integers(0, sizes[file]), st.integers(0, sizes[file])
        )
    )
    records = data.draw(st.lists(st.lists(pieces, max_size=3), max_size=12))
    flat = [(file, min(a, b), abs(b - a)) for record in records for file, a, b in record]
    files, offsets, lengths = zip(*flat, strict=True) if flat else ((), (), ())
    starts = np.cumsum([0, *map(len, records)]).astype(np.int64)
    spans = Spans(
        np.array(files, np.int32), np.array(offsets, np.int64), np.array(lengths, np.int64), starts
    )
    with Reader(paths, engine=engine, direct=direct, queue_depth=3) as reader:
        assert read_all(reader, spans) == true_records(paths, spans)


def test_tiny_files(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """Files of no byte and of one byte."""
    paths = [random_file(tmp_path / "none", 0), random_file(tmp_path / "one", 1)]

    with Reader(paths, engine=engine, direct=direct) as reader:
        found = read_all(reader, one_piece_each([0, 1, 1, 1], [0, 0, 1, 0], [0, 1, 0, 0]))

    assert found == [b"", paths[1].read_bytes(), b"", b""]


def test_records_across_two_and_four_gib(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """Offsets beyond 31 and 32 bits, in a file that is mostly a hole."""
    path = tmp_path / "sparse"
    marks = [1 << 31, 1 << 32, (1 << 32) + (1 << 31)]
    with open(path, "wb") as file:
        for mark in marks:
            file.seek(mark - 3000)
            file.write(np.random.default_rng(mark).bytes(6000))
    spans = one_piece_each(0, [mark - shift for mark in marks for shift in (1, 2999)], 3001)

    with Reader([path], engine=engine, direct=direct) as reader:
        found = read_all(reader, spans)

    assert found == true_records([path], spans)
    assert len(set(found)) == 6


def test_many_files_few_of_them_open(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """Of 40 files 3 are open at a time, though all are asked for in each of several batches."""
    paths = [random_file(tmp_path / f"{number}", 5000, number) for number in range(40)]
    random = np.random.default_rng(2)
    batches = [
        one_piece_each(random.integers(0, 40, 200), random.integers(0, 4000, 200), 999)
        for _ in range(4)
    ]
    before = num_descriptors()

    with Reader(paths, engine=engine, direct=direct, max_open_files=3, queue_depth=8) as reader:
        own = num_descriptors() - before
        reads = [reader.start(batch) for batch in batches]
        for read, batch in zip(reads, batches, strict=True):
            assert records_of(reader.finish(read)) == true_records(paths, batch)
            assert num_descriptors() - before - own == 3
    assert num_descriptors() == before


def test_fewer_descriptors_than_counted_on(tmp_path: Path, engine: EngineName) -> None:
    """When the rest of the program has used them up, the reader makes do with what it has."""
    paths = [random_file(tmp_path / f"{number}", 100, number) for number in range(20)]
    spans = one_piece_each(np.arange(20), 10, 50)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Reader(paths, engine=engine, direct=False) as reader:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest)]
        os.close(holes.pop())
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 2, limits[1]))
            found = read_all(reader, spans)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for hole in holes:
                os.close(hole)
    assert found == true_records(paths, spans)


def test_no_descriptor_at_all(tmp_path: Path, engine: EngineName) -> None:
    path = random_file(tmp_path / "data", 100)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Reader([path], engine=engine, direct=False) as reader:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
        try:
            with pytest.raises(ReadError, match=r"Too many open files.*ulimit -n"):
                read_all(reader, one_piece_each(0, 0, 1))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("queue_depth", [1, 2, 7, 128])
def test_batches_in_flight_finished_in_any_order(
    tmp_path: Path, engine: EngineName, direct: bool, queue_depth: int
) -> None:
    """Each batch gets its own bytes, whichever is waited for first."""
    path = random_file(tmp_path / "data", 300_000)
    random = np.random.default_rng(3)
    batches = [one_piece_each(0, random.integers(0, 299_000, 100), 1000) for _ in range(9)]
    order = random.permutation(9)

    with Reader([path], engine=engine, direct=direct, queue_depth=queue_depth) as reader:
        reads = [reader.start(batch) for batch in batches]
        for number in order:
            found = records_of(reader.finish(reads[number]))
            assert found == true_records([path], batches[number])
        assert reader.num_reads == sum(len(read.plan.offsets) for read in reads)
        assert reader.bytes_requested == sum(read.plan.buffer_bytes for read in reads)


def test_finishing_twice_gives_the_same(tmp_path: Path, engine: EngineName) -> None:
    path = random_file(tmp_path / "data", 100)
    with Reader([path], engine=engine) as reader:
        read = reader.start(one_piece_each(0, 3, 9))

        assert records_of(reader.finish(read)) == records_of(reader.finish(read))


def test_direct_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless told, the reader passes by the page cache when the files exceed half the memory."""
    need_direct(tmp_path)
    path = random_file(tmp_path / "data", 10_000)
    spans = one_piece_each(0, 5000, 5000)
    for memory_bytes, is_direct in ((20_000, False), (19_998, True)):
        monkeypatch.setattr("headrace.data.direct.available_memory_bytes", lambda n=memory_bytes: n)
        with Reader([path]) as reader:
            assert reader.direct == is_direct
            assert read_all(reader, spans) == true_records([path], spans)


def test_a_memory_file_system(engine: EngineName) -> None:
    """Where direct reads may be refused (tmpfs before Linux 6.6), the bytes come all the same."""
    folder = Path("/dev/shm")
    if not os.access(folder, os.W_OK):
        pytest.skip("no memory file system")
    path = random_file(folder / f"headrace-test-{os.getpid()}", 10_000)
    spans = one_piece_each(0, [1, 9000], [700, 1000])
    try:
        with Reader([path], engine=engine, direct=True) as reader:
            assert read_all(reader, spans) == true_records([path], spans)
            assert reader.direct or reader.refusals
    finally:
        path.unlink()


def test_a_file_that_is_too_short(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """The first record that lacks bytes is named, by the caller's number for it."""
    paths = [random_file(tmp_path / "long", 20_000), random_file(tmp_path / "short", 1000)]
    spans = one_piece_each([0, 1, 1, 1], [0, 100, 900, 950], [20_000, 900, 101, 5000])

    with Reader(paths, engine=engine, direct=direct) as reader:
        read = reader.start(spans, np.array([70, 71, 72, 73]))
        with pytest.raises(ReadError) as caught:
            reader.finish(read)

        assert str(caught.value) == (
            "record 72 could not be read: got 100 bytes at offset 900 (the file ends there), "
            f"expected 101 bytes; in {paths[1]}; the file was cut short since it was opened; "
            "restore it, then open the data again"
        )
        good = one_piece_each([0, 1], [0, 999], [20_000, 1])
        assert read_all(reader, good) == true_records(paths, good)


@pytest.mark.parametrize("size", [0, 4096, 4500, 8192])
def test_a_file_cut_short_after_it_was_opened(
    tmp_path: Path, engine: EngineName, direct: bool, size: int
) -> None:
    """At a block's end or within: the message says how many bytes came."""
    path = random_file(tmp_path / "data", 20_000)
    spans = one_piece_each(0, 100, 19_000)
    with Reader([path], engine=engine, direct=direct) as reader:
        assert read_all(reader, spans) == true_records([path], spans)
        os.truncate(path, size)

        message = f"record 0 could not be read: got {max(0, size - 100)} bytes at offset 100 "
        with pytest.raises(ReadError, match=message):
            read_all(reader, spans)
        assert (reader.direct, reader.refusals) == (direct, ())


def test_a_read_that_the_system_answers_with_eio(tmp_path: Path, engine: EngineName) -> None:
    """As of a failing disk; here of memory that this process has not mapped, its first page."""
    paths = [Path("/proc/self/mem"), random_file(tmp_path / "good", 100)]
    with Reader(paths, engine=engine, direct=False) as reader:
        message = (
            r"record 0 could not be read: got 0 bytes at offset 0 \(Input/output error\), expected "
            "64 bytes; in /proc/self/mem; the device reports an error; look at the system's log"
        )
        with pytest.raises(ReadError, match=message):
            read_all(reader, one_piece_each([0], [0], [64]))
        good = one_piece_each([1], [7], [64])
        assert read_all(reader, good) == true_records(paths, good)


def test_a_missing_file(tmp_path: Path, engine: EngineName) -> None:
    """With direct reads it is missed at once, else when it is first read."""
    paths = [random_file(tmp_path / "here", 10), tmp_path / "gone"]
    with pytest.raises(DataError, match=r"a data file cannot be opened: got No such file.*gone"):
        Reader(paths, engine=engine, direct=True)

    with Reader(paths, engine=engine, direct=False) as reader:
        assert read_all(reader, one_piece_each(0, 0, 10)) == [paths[0].read_bytes()]
        with pytest.raises(
            ReadError, match=r"record 1 .*got 0 bytes at offset 3 \(No such file.*gone; the file is"
        ):
            read_all(reader, one_piece_each([0, 1], [0, 3], 5))


def test_a_folder_instead_of_a_file(tmp_path: Path, engine: EngineName) -> None:
    with Reader([tmp_path], engine=engine, direct=False) as reader:
        with pytest.raises(ReadError, match=r"Is a directory.*look at the file's permissions"):
            read_all(reader, one_piece_each(0, 0, 5))


def test_options_that_make_no_sense(tmp_path: Path) -> None:
    path = random_file(tmp_path / "data", 10)
    wrong: list[tuple[Callable[[], Reader], str]] = [
        (lambda: Reader([path], engine="fast"), "unknown engine: got fast, expected auto, uring"),  # type: ignore[arg-type]
        (lambda: Reader([path], queue_depth=0), "queue_depth is too small: got 0"),
        (lambda: Reader([path], max_open_files=0), "max_open_files is too small: got 0"),
    ]
    for make, message in wrong:
        with pytest.raises(DataError, match=message):
            make()


def test_a_file_number_that_does_not_exist(tmp_path: Path) -> None:
    with Reader([random_file(tmp_path / "data", 10)]) as reader:
        for file in (1, -1):
            with pytest.raises(DataError, match=f"got file numbers {file} to {file}, expected 0 t"):
                reader.start(one_piece_each(file, 0, 1))


def test_buffers_are_used_again_once_dropped(tmp_path: Path, engine: EngineName) -> None:
    """The next batch of that size lands in the same memory."""
    path = random_file(tmp_path / "data", 10_000)
    spans = one_piece_each(0, 1, 8000)
    with Reader([path], engine=engine) as reader:
        pieces = reader.finish(reader.start(spans))
        address = pieces.buffer.ctypes.data
        del pieces

        assert reader.finish(reader.start(spans)).buffer.ctypes.data == address


def test_buffers_are_never_used_while_an_array_looks_into_them(
    tmp_path: Path, engine: EngineName
) -> None:
    """A record that the caller keeps stays as it is, also after the reader is closed."""
    path = random_file(tmp_path / "data", 100_000)
    reader = Reader([path], engine=engine)
    kept = []
    for number in range(20):
        spans = one_piece_each(0, [number * 4000], 4000)
        kept.append(reader.finish(reader.start(spans)).record(0)[1::2])
    reader.close()
    del reader

    whole = path.read_bytes()
    for number, record in enumerate(kept):
        assert record.tobytes() == whole[number * 4000 + 1 : (number + 1) * 4000 : 2]


def test_closing_with_reads_in_flight(tmp_path: Path, engine: EngineName, direct: bool) -> None:
    """It waits for them; batches that were not finished are refused, descriptors are back."""
    path = random_file(tmp_path / "data", 1_000_000)
    before = num_descriptors()
    reader = Reader([path], engine=engine, direct=direct, queue_depth=16)
    reads = [reader.start(one_piece_each(0, np.arange(0, 900_000, 9000), 50)) for _ in range(4)]

    reader.close()
    reader.close()

    assert num_descriptors() == before
    for use in (lambda: reader.finish(reads[0]), lambda: reader.start(one_piece_each(0, 0, 1))):
        with pytest.raises(RunError, match="the reader is closed"):
            use()


def test_a_reader_that_is_dropped_closes_itself(tmp_path: Path, engine: EngineName) -> None:
    before = num_descriptors()
    reader = Reader([random_file(tmp_path / "data", 100)], engine=engine)
    reader.start(one_piece_each(0, 0, 100))

    del reader

    assert num_descriptors() == before


def test_a_batch_of_another_reader(tmp_path: Path) -> None:
    path = random_file(tmp_path / "data", 1_000_000)
    with Reader([path], direct=True, queue_depth=1) as one, Reader([path]) as other:
        read: Read = one.start(one_piece_each(0, np.arange(0, 900_000, 9000), 50))

        with pytest.raises(RunError, match="this read was started by another reader"):
            other.finish(read)
