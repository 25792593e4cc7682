"""Files that are compressed as a whole: refused where they lie, rewritten by pack."""

import bz2
import gzip
import lzma
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data.unpacking import unpacked
from headrace.errors import DataError
from headrace.progress import Silent

LINES = [f"{'é' * (i % 7)}{i}" for i in range(3000)]
TEXT = "".join(f"{line}\n" for line in LINES).encode()


def by_pyarrow(compression):
    def compress(content):
        pyarrow = pytest.importorskip("pyarrow")
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, compression) as stream:
            stream.write(content)
        return sink.getvalue().to_pybytes()

    return compress


COMPRESSIONS = {
    "gzip": (".gz", gzip.compress),
    "bzip2": (".bz2", bz2.compress),
    "xz": (".xz", lzma.compress),
    "zstd": (".zst", by_pyarrow("zstd")),
    "lz4": (".lz4", by_pyarrow("lz4")),
}


def pack(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", "pack", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_refused_and_rewritten(tmp_path, compression):
    """The error names the command; the command makes the records of the file."""
    suffix, compress = COMPRESSIONS[compression]
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(compress(TEXT))
    with pytest.raises(DataError, match=f"got {compression}; in .*; rewrite it: headrace pack .* "):
        headrace.open(path)

    done = pack(path.name, "--to", "tfrecord", "--out", "t.tfrecord", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3,000 records in t.tfrecord, ")
    records = headrace.open(tmp_path / "t.tfrecord")
    loader = headrace.Loader(records, batch_size=3000, order=headrace.SequentialOrder())
    assert [one.decode() for one in next(iter(loader))["record"]] == LINES
    assert sorted(one.name for one in tmp_path.iterdir()) == [".headrace", "t.tfrecord", path.name]


def test_in_several_streams(tmp_path):
    """As `cat a.gz b.gz` leaves them."""
    half = len(TEXT) // 2
    for suffix, compress in COMPRESSIONS.values():
        path = tmp_path / f"t.txt{suffix}"
        path.write_bytes(compress(TEXT[:half]) + compress(TEXT[half:]))
        with unpacked([path], None, tmp_path / "o", Silent()) as (found,):
            assert (found.name, found.read_bytes()) == ("t.txt", TEXT)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_cut_short(tmp_path, compression):
    """One line that names the file; nothing is left behind."""
    suffix, compress = COMPRESSIONS[compression]
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(compress(TEXT)[:-20])

    done = pack(path.name, "--to", "tfrecord", "--out", "o", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: the {compression} file is damaged: got ")
    assert f"in {path}" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == [path]


def test_several_files_and_plain_ones(tmp_path):
    """Keep their order; files of one name in two folders stay apart."""
    for number, folder in enumerate(("a", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.txt.gz").write_bytes(gzip.compress(f"{number}\n".encode()))
    (tmp_path / "c.txt").write_text("2\n")
    done = pack("*/t.txt.gz", "c.txt", "--to", "tfrecord", "--out", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = headrace.open(tmp_path / "out", "tfrecord")
    loader = headrace.Loader(records, batch_size=3, order=headrace.SequentialOrder())
    assert next(iter(loader))["record"] == [b"0", b"1", b"2"]


def test_what_the_error_advises(tmp_path):
    """A format that the records go into, told by what is inside."""
    np.save(tmp_path / "x.npy", np.arange(6.0))
    (tmp_path / "s.svm").write_text("1 1:2\n")
    (tmp_path / "t.txt").write_text("a\n")
    with tarfile.open(tmp_path / "a b.tar", "w") as tar:
        tar.add(tmp_path / "t.txt", "1.txt")
    for name, packed, to in (
        ("x.npy", "x.npy.gz", "npy"),
        ("s.svm", "s.svm.gz", "csr"),
        ("t.txt", "t.txt.gz", "tfrecord"),
        ("a b.tar", "a b.tgz", "tar"),
    ):
        path = tmp_path / packed
        path.write_bytes(gzip.compress((tmp_path / name).read_bytes()))
        with pytest.raises(DataError) as caught:
            headrace.open(path)
        advice = str(caught.value).rpartition("rewrite it: headrace ")[2]
        assert f"--to {to} --out NEW" in advice
        done = subprocess.run(
            f"{sys.executable} -m headrace {advice}", shell=True, cwd=tmp_path, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        found = headrace.open(tmp_path / ("NEW/data.npy" if to == "npy" else "NEW"))
        assert len(found) == len(headrace.open(tmp_path / name))
        subprocess.run(["rm", "-r", "NEW"], cwd=tmp_path, check=True)


def test_numbers_that_look_compressed(tmp_path):
    """Of raw numbers, only a file whose name says so is unpacked."""
    content = b"\x1f\x8b\x08\0" * 8
    (tmp_path / "a.bin").write_bytes(content)
    (tmp_path / "b.bin.gz").write_bytes(gzip.compress(content))
    for name in ("a.bin", "b.bin.gz"):
        with unpacked([tmp_path / name], "raw", tmp_path / "o", Silent()) as (found,):
            assert found.read_bytes() == content


def test_without_pyarrow(tmp_path, monkeypatch):
    """What it unpacks says what to install."""
    path = tmp_path / "t.txt.zst"
    path.write_bytes(COMPRESSIONS["zstd"][1](TEXT))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with (
        pytest.raises(headrace.errors.RunError, match="zstd files need the package pyarrow; in"),
        unpacked([path], None, tmp_path / "o", Silent()),
    ):
        pass
    with pytest.raises(DataError, match="got zstd.*headrace pack .*t.txt.zst --to tfrecord --out"):
        headrace.open(path)
