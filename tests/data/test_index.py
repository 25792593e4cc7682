"""The side-car of a file: small, exact, checked, rebuilt when its file changes."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import headrace
from headrace.data.formats.format import Column, Format, Table
from headrace.data.formats.lines import Lines
from headrace.data.index import FOLDER, columns_of, index_paths, read_index
from headrace.errors import DataError
from headrace.progress import Progress, Silent


@dataclass(frozen=True)
class Given(Format):
    """Finds in any file what it is given, and counts how often it is asked."""

    name: ClassVar[str] = "given"
    columns: Mapping[str, Column]
    asked: list[Path]

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        self.asked.append(path)
        return self.columns

    def __repr__(self) -> str:
        return "Given()"


def given(columns):
    return Given(columns, [])


@pytest.fixture
def path(tmp_path):
    """A file that only has to be there."""
    path = tmp_path / "data.given"
    path.write_bytes(bytes(5000))
    return path


def tables():
    """Columns with gaps of all kinds, of all widths."""
    random = np.random.default_rng(0)
    lengths = random.integers(0, 5000, 3000)
    ends = np.cumsum(lengths)
    lacking = lengths.copy()
    lacking[[0, 7, 2999]] = -1
    return {
        "adjacent": Table(ends - lengths, lengths),
        "framed": Table(ends - lengths + 16 * np.arange(3000), lengths + 9),
        "scattered": Table(random.integers(0, 1 << 40, 3000) * 512, lengths),
        "huge": Table(np.array([0, 1 << 62]), np.array([1 << 61, 5])),
        "lacking": Table(ends - lengths, lacking),
        "one": Table(np.array([77]), np.array([3])),
        "none": Table(np.zeros(0, np.int64), np.zeros(0, np.int64)),
        "numbers": Table(8 * np.arange(9), np.full(9, 8), np.dtype(">i2"), (2, 2), {"a": [1, "b"]}),
    }


def test_what_was_scanned_comes_back(path):
    """Every offset and length, in any order; also what else a column says."""
    format = given(tables())
    columns_of(path, format, Silent())

    stored = columns_of(path, format, Silent())

    assert len(format.asked) == 1
    assert list(stored) == list(format.columns)
    for name, table in format.columns.items():
        indices = np.random.default_rng(1).permutation(table.num_records)
        offsets, lengths = stored[name].lookup(indices)
        assert offsets.tolist() == table.offsets[indices].tolist()
        assert lengths.tolist() == table.lengths[indices].tolist()
        assert stored[name].num_records == len(table.offsets)
        assert (stored[name].dtype, stored[name].shape) == (table.dtype, table.shape)
        assert (stored[name].about, stored[name].first_missing) == (
            table.about,
            0 if name == "lacking" else None,
        )


@pytest.mark.parametrize(
    "stride, gap, most_bytes", [(100, 0, 4), (100, 12, 4), (70_000, 0, 8), (512, 200, 8)]
)
def test_bytes_a_record(path, stride, gap, most_bytes):
    """At most 8 bytes a record and field; offsets alone where lengths follow from them."""
    num = 10_000
    lengths = np.full(num, stride - gap)
    lengths[::2] -= 0 if gap == 0 else 0
    format = given({"x": Table(np.arange(num) * stride, lengths)})
    columns_of(path, format, Silent())

    size = index_paths(path, format)[0].stat().st_size

    assert size <= most_bytes * num + 3 * 4096


def test_a_glob_passes_the_index_by(tmp_path):
    """data/* and data/** find the data alone, before and after it was indexed."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("one\ntwo\n")
    for pattern in ("*", "**"):
        for _ in range(2):
            assert len(headrace.open(str(tmp_path / pattern), format="lines")) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == [".headrace", "a.txt", "b.txt"]


def test_options_have_their_own_index(path):
    """Another format, version or option never sees what this one found."""

    class Other(Lines):
        version: ClassVar[int] = 2

    places = {index_paths(path, one)[0] for one in (Lines(), Other(), given({}))}
    assert len(places) == 3


@pytest.mark.parametrize("change", ["append", "edit", "replace", "shorten"])
def test_a_changed_file_is_indexed_again(tmp_path, change):
    """Stale places are never used: size, time of change, head and tail are compared."""
    path = tmp_path / "a.txt"
    path.write_text("a\nbb\nccc\n")
    assert len(headrace.open(path)) == 3
    status = path.stat()
    if change == "append":
        path.write_text("a\nbb\nccc\nd\n")
    elif change == "edit":
        path.write_text("\n\n\n\n\nxxx\n")
    elif change == "replace":
        (tmp_path / "b").write_text("abbbcccd\n")
        (tmp_path / "b").replace(path)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        path.write_text("a\n")

    records = headrace.open(path)

    loader = headrace.Loader(records, batch_size=9, order=headrace.SequentialOrder())
    assert next(iter(loader))["line"] == path.read_text().splitlines()


def test_damage_is_noticed_wherever_it_is(path):
    """A flipped bit in header or data, or a missing end, is never a wrong place of a record."""
    format = given({"x": Table(np.cumsum(np.arange(30_000)), np.arange(30_000))})
    columns_of(path, format, Silent())
    place = index_paths(path, format)[0]
    whole = place.read_bytes()
    header_end = whole.index(b"}}", 30)
    for at in (26, 30, 60, header_end, 4096, 70_000, len(whole) - 9):
        place.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(DataError, match="index is damaged.*delete it; it is built again"):
            read_index(place, path, format)["x"].lookup(np.arange(30_000))
    for size in (len(whole) - 1, 5000, 100):
        place.write_bytes(whole[:size])
        with pytest.raises(DataError, match="index is damaged"):
            read_index(place, path, format)["x"].lookup(np.arange(30_000))
    for size in (0, 10):  # not an index at all
        place.write_bytes(whole[:size])
        assert read_index(place, path, format) is None


def test_only_what_is_looked_at_is_checked_where_memory_is_short(path, monkeypatch):
    """An index larger than memory is not read as a whole."""
    format = given({"x": Table(np.cumsum(np.arange(90_000)), np.arange(90_000))})
    columns_of(path, format, Silent())
    place = index_paths(path, format)[0]
    whole = bytearray(place.read_bytes())
    whole[4096 + 3 * 65536] ^= 1  # in the fourth block of data
    place.write_bytes(whole)
    monkeypatch.setattr("headrace.data.index.available_memory_bytes", lambda: 0)
    table = read_index(place, path, format)["x"]

    assert table.lookup(np.array([5, 100]))[1].tolist() == [5, 100]
    with pytest.raises(DataError, match="damaged"):
        table.lookup(np.array([3 * 65536 // 4 + 10]))


def test_a_read_only_folder_sends_the_index_to_the_cache(tmp_path):
    """As an ordinary user, who may not write beside the data."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("one\n")
    program = f"""
        import os
        import headrace
        headrace.open({str(tmp_path / "b.txt")!r})  # loads what another user may not see
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        print(len(headrace.open({str(data / "a.txt")!r})))
    """
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    data.chmod(0o555)
    for folder in [data, *data.parents][:-1]:
        if not os.stat(folder).st_mode & 1:
            folder.chmod(folder.stat().st_mode | 0o11)
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.stderr) == ("2\n", "")
    assert list(data.iterdir()) == [data / "a.txt"]
    assert len(list(cache.rglob("*.index"))) == 1


def test_nowhere_to_write_is_said_and_works(tmp_path, monkeypatch):
    """The data opens all the same; the user hears that it will be read through each time."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / ".headrace").write_text("a file where the folder should be")
    (tmp_path / "cache").write_text("and here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    class Heard(Silent):
        said: ClassVar[list[str]] = []

        def say(self, text: str) -> None:
            self.said.append(text)

    assert len(headrace.open(tmp_path / "a.txt", progress=Heard())) == 2
    assert len(Heard.said) == 1
    assert Heard.said[0].startswith(f"the index of {tmp_path / 'a.txt'} is not kept: ")


def test_two_at_once(tmp_path):
    """Processes that build the same index both succeed, and leave one."""
    path = tmp_path / "a.txt"
    path.write_text("some words\n" * 200_000)
    program = f"import headrace; print(len(headrace.open({str(path)!r})))"
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    assert [one.communicate(timeout=60)[0] for one in running] == ["200000\n"] * 4
    assert len(list((tmp_path / ".headrace").iterdir())) == 1


def test_a_file_that_is_still_written(tmp_path):
    """What was read while it grew is not what it is."""
    path = tmp_path / "a.txt"
    path.write_text("one\n")

    class Meanwhile(Silent):
        def update(self, facts):
            with path.open("a") as file:
                file.write("two\n")

    with pytest.raises(DataError, match="file changed while it was being indexed"):
        columns_of(path, Lines(), Meanwhile())
    assert len(headrace.open(path)) == len(path.read_text().splitlines())


def test_progress_over_many_files(tmp_path):
    """All files and bytes are counted in the end; each step is more than the one before."""
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_text("line\n" * number)
    seen = []

    class Seen(Silent):
        def update(self, facts):
            seen.append(facts)

    records = headrace.open(str(tmp_path / "*.txt"), progress=Seen())

    num_bytes = 5 * sum(range(20))
    assert len(records) == sum(range(20))
    last = {"files": 20, "num_files": 20, "bytes": num_bytes, "num_bytes": num_bytes}
    assert seen[-1] == last
    assert [facts["bytes"] for facts in seen] == sorted(facts["bytes"] for facts in seen)


def test_the_first_damaged_file_in_order_is_named(tmp_path):
    """Whichever thread comes to it first; the good ones before it keep their index."""

    @dataclass(frozen=True)
    class Picky(Lines):
        def scan(self, path, progress):
            if path.name in ("3.txt", "5.txt"):
                time.sleep(0.2 if path.name == "3.txt" else 0)
                raise DataError("damaged", where=path)
            return super().scan(path, progress)

    for number in range(9):
        (tmp_path / f"{number}.txt").write_text("line\n")
    with pytest.raises(DataError, match="damaged; in .*/3.txt"):
        headrace.open(str(tmp_path / "*.txt"), Picky())
    assert {path.name[:5] for path in (tmp_path / ".headrace").iterdir()} >= {
        "0.txt",
        "1.txt",
        "2.txt",
    }


def test_interrupted_and_continued(tmp_path):
    """Ctrl-C ends it at once; the files that were done are not read again."""

    asked = []

    @dataclass(frozen=True)
    class Slow(Lines):
        def scan(self, path, progress):
            asked.append(path.name)
            if len(asked) == 4 and is_slow:
                os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000 if len(asked) > 3 and is_slow else 0):
                time.sleep(0.01)
                progress.update({"bytes": 0})
            return super().scan(path, progress)

    for number in range(8):
        (tmp_path / f"{number}.txt").write_text("line\n")
    is_slow = True
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        headrace.open(str(tmp_path / "*.txt"), Slow())
    assert time.monotonic() - began < 5
    kept = len(list((tmp_path / ".headrace").iterdir()))
    assert kept >= 2
    is_slow, asked = False, []
    assert len(headrace.open(str(tmp_path / "*.txt"), Slow())) == 8
    assert len(asked) == 8 - kept


def test_no_index_for_what_a_header_tells(tmp_path):
    """Formats of fixed stride leave nothing behind."""
    np.save(tmp_path / "a.npy", np.arange(3))
    headrace.open(tmp_path / "a.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


def test_options_of_decoding_share_an_index(tmp_path):
    """Where records lie is found once for all of them; options of the scan find another index."""
    text = tmp_path / "x.svm"
    text.write_text("1 1:2 3:4\n0 2:1\n")
    for options in ({}, {"num_features": 9}, {"multilabel": True}, {"zero_based": True}):
        headrace.open(text, "libsvm", **options)
        assert len(list((tmp_path / FOLDER).iterdir())) == 1
    fingerprints = {headrace.open(text).fingerprint}
    headrace.open(text, "libsvm", sort=True)
    assert len(list((tmp_path / FOLDER).iterdir())) == 2
    fingerprints.add(headrace.open(text, "libsvm", num_features=9).fingerprint)
    fingerprints.add(headrace.open(text, "libsvm", sort=True).fingerprint)
    assert len(fingerprints) == 3
