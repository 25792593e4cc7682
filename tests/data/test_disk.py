"""How a disk is measured, kept and used."""

import json
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data import disk, manner
from headrace.data.disk import READ_BYTES, Disk, disk_of, measure
from headrace.data.reader import Reader


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is read past the page cache, large enough to be measured by."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(64 << 20))
    with Reader([path], direct=True) as reader:
        one = headrace.open(path, "raw", dtype="u1").spans(np.zeros(1, np.int64), "data")
        reader.finish(reader.start(one))
        if not reader.direct:
            pytest.skip("this file system does not read past the page cache")
    return path


def kept(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "headrace" / "disks").glob("*.json"))


def test_measured_once(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fewest reads in flight that are nearly as good as any; the second time it is known."""
    found = disk_of(large, "auto")

    assert found is not None
    assert found.queue_depth in found.rates
    assert found.reads_per_s == found.rates[found.queue_depth] >= 0.97 * max(found.rates.values())
    fewer = [rate for depth, rate in found.rates.items() if depth < found.queue_depth]
    assert all(rate < 0.97 * max(found.rates.values()) for rate in fewer)
    monkeypatch.setattr(disk, "measure", None)
    assert disk_of(large, "auto") == found
    assert len(kept(tmp_path)) == 1


def test_what_is_kept_and_damaged_is_measured_again(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file, another version, other words."""
    monkeypatch.setattr(disk, "measure", lambda path, engine: Disk(7, 1.0, {7: 1.0}))
    disk_of(large, "threads")
    (place,) = kept(tmp_path)
    whole = json.loads(place.read_text())
    for text in ("{", json.dumps(whole | {"version": 0}), json.dumps({"version": 1}), "[]"):
        place.write_text(text)
        found = disk_of(large, "threads")
        assert found is not None and found.queue_depth == 7
        assert json.loads(place.read_text()) == whole


def test_engines_are_measured_apart(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "measure", lambda path, engine: Disk(len(engine), 1.0, {}))
    depths = [found.queue_depth for one in ("uring", "threads") if (found := disk_of(large, one))]
    assert depths == [5, 7]
    assert len(kept(tmp_path)) == 2


def test_what_cannot_be_measured_or_kept(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file; a cache folder that is none: the default, and no measurement each time."""
    small = tmp_path / "small.bin"
    small.write_bytes(bytes(READ_BYTES))
    monkeypatch.setattr(disk, "measure", None)
    assert disk_of(small, "auto") is None
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert disk_of(large, "auto") is None
    assert manner.choose_manner([small], "auto", True).queue_depth == 128
    assert manner.choose_manner([small], "auto", False) == manner.Manner(False, 1, 128)


def test_measuring_looks_at_the_disk_alone(large: Path) -> None:
    """Rates of all depths are above none; reads go past the page cache."""
    found = measure(large, "threads")
    assert found is not None
    assert set(found.rates) == {8, 16, 32, 64, 128, 256}
    assert min(found.rates.values()) > 0


def test_the_loader_reads_so_and_says_so(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chosen once, in the first epoch; the second does not look at the files again."""
    monkeypatch.setattr(disk, "measure", lambda path, engine: Disk(48, 1.0, {48: 1.0}))
    records = headrace.open(large, "raw", dtype="u1", shape=4096)
    loader = headrace.Loader(records, batch_size=2048, direct=True, engine="threads")
    assert loader.engine == "not yet chosen"
    for _ in loader:
        assert loader.engine == "threads, 48 reads at a time, past the page cache"
    assert loader.engine == "threads, 48 reads at a time, past the page cache"
    with monkeypatch.context() as patch:
        patch.setattr("headrace.data.batch_reader.choose_manner", None)
        assert sum(len(batch["data"]) for batch in loader) == len(records)
    small = headrace.Loader(records, batch_size=2048, direct=False, engine="threads")
    next(iter(small))
    assert small.engine == "threads, 128 reads at a time, through the page cache"
