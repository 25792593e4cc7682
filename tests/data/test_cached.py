"""What the page cache has is copied without an engine; what it lacks, the engine reads."""

import os
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import headrace
from headrace.data.batch_reader import BatchReader
from headrace.data.reader import EngineName, Reader
from headrace.data.request import Requests
from headrace.data.uring import Uring
from headrace.errors import ReadError
from tests.data.reading import (
    Scripted,
    need_uring,
    one_piece_each,
    random_file,
    records_of,
    true_records,
)

PAGE_BYTES = 4096


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets that an io_uring is asked for."""
    need_uring()
    offsets: list[int] = []

    class Watched(Uring):  # type: ignore[misc]
        def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
            offsets.extend(requests["offset"].tolist())
            super().push(requests, buffer)

    monkeypatch.setattr("headrace.data.backend.Uring", Watched)
    return offsets


def forget(path: Path) -> None:
    """Out of the page cache; skips the test where the file system keeps it there."""
    descriptor = os.open(path, os.O_RDWR)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        pytest.skip("this file system keeps its files in memory")
    except BlockingIOError:
        pass
    except OSError as error:
        pytest.skip(f"reads that do not wait are refused: {error}")
    finally:
        os.close(descriptor)


def test_what_is_cached_needs_no_engine(tmp_path: Path, pushed: list[int]) -> None:
    path = random_file(tmp_path / "data", 1_000_000)
    spans = one_piece_each(0, np.random.default_rng(0).integers(0, 990_000, 500), 9000)

    with Reader([path], direct=False) as reader:
        read = reader.start(spans)
        assert read.num_left == 0
        found = records_of(reader.finish(read))

    assert pushed == []
    assert found == true_records([path], spans)


@pytest.mark.parametrize("engine", ["uring", "threads"])
def test_an_engine_by_name_reads_all(tmp_path: Path, pushed: list[int], engine: EngineName) -> None:
    path = random_file(tmp_path / "data", 100_000)
    spans = one_piece_each(0, [70_000, 0], 9000)

    with Reader([path], engine=engine, direct=False) as reader:
        assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)

    assert sorted(pushed) == ([0, 70_000] if engine == "uring" else [])


def test_pages_that_are_there_and_pages_that_are_not(tmp_path: Path, pushed: list[int]) -> None:
    """Every record lies on two pages of which the cache has both, the first, the second or none."""
    num_pages = 400
    path = random_file(tmp_path / "data", num_pages * PAGE_BYTES)
    spans = one_piece_each(0, np.arange(0, num_pages, 2) * PAGE_BYTES + 100, 2 * PAGE_BYTES - 300)
    expected = true_records([path], spans)
    forget(path)
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for page in range(num_pages):
        if page % 8 in (0, 1, 2, 5):
            os.pread(descriptor, 1, page * PAGE_BYTES)
    os.close(descriptor)
    rows = np.random.default_rng(0).permutation(len(expected))

    with Reader([path], direct=False) as reader:
        reads = [reader.start(spans.taken(some)) for some in np.array_split(rows, 4)]
        found = [record for read in reads for record in records_of(reader.finish(read))]

    assert found == [expected[row] for row in rows]
    assert 0 < len(pushed) < len(expected)


def test_many_files_few_of_them_open(tmp_path: Path, pushed: list[int]) -> None:
    """A batch that needs more files than may be open is read in parts."""
    paths = [random_file(tmp_path / f"{number}", 5000, number) for number in range(40)]
    random = np.random.default_rng(0)
    spans = one_piece_each(random.integers(0, 40, 300), random.integers(0, 4000, 300), 900)

    with Reader(paths, direct=False, max_open_files=3) as reader:
        reads = [reader.start(spans) for _ in range(3)]
        for read in reads:
            assert records_of(reader.finish(read)) == true_records(paths, spans)


def test_a_file_that_shrinks_between_batches(tmp_path: Path) -> None:
    """The message says how much was there, whoever had copied that."""
    path = random_file(tmp_path / "data", 100_000)
    spans = one_piece_each(0, [0, 90_000, 95_000], 5000)
    with Reader([path], direct=False) as reader:
        assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)
        os.truncate(path, 91_000)

        message = "record 1 could not be read: got 1000 bytes at offset 90000 "
        with pytest.raises(ReadError, match=message):
            reader.finish(reader.start(spans))


def test_where_reads_must_wait_the_engine_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that refuses them is not asked again."""
    path = random_file(tmp_path / "data", 100_000)
    asked = []

    def refuse(requests: Requests) -> NDArray[np.int64]:
        asked.append(len(requests))
        return np.full(len(requests), -95)  # EOPNOTSUPP

    engine = Scripted(8, lambda _, __, length, ___: length)
    monkeypatch.setattr("headrace.data.cached.copy_cached", refuse)
    monkeypatch.setattr("headrace.data.reader.make_engine", lambda *_: engine)
    spans = one_piece_each(0, np.arange(0, 90_000, 3000), 2000)
    with Reader([path], direct=False) as reader:
        for _ in range(3):
            assert records_of(reader.finish(reader.start(spans))) == true_records([path], spans)

    assert asked == [30]


def test_rows_of_one_size_arrive_as_the_array(tmp_path: Path) -> None:
    """Each batch has memory of its own, may be written, and outlives the reader."""
    whole = np.random.default_rng(0).integers(0, 1 << 30, (1000, 7)).astype(">i4")
    np.save(tmp_path / "x.npy", whole)
    records = headrace.open(tmp_path / "x.npy")
    (name,) = records.fields
    rows = [np.random.default_rng(seed).integers(0, 1000, 64) for seed in range(5)]

    with BatchReader(records, [name], direct=False) as reader:
        batches = [reader.read(some)[name] for some in rows]
        batches[0][:] = 0

    for some, batch in zip(rows[1:], batches[1:], strict=True):
        assert batch.dtype == np.int32 and batch.flags.writeable
        np.testing.assert_array_equal(batch, whole[some])
    assert not batches[0].any()
