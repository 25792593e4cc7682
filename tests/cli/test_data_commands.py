"""index, inspect and verify, as a user types them."""

import json
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


def headrace(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("one\ntwo\n" + "x" * 5000 + "\n")
    (tmp_path / "b.txt").write_text("four\n")
    np.save(tmp_path / "x.npy", np.arange(3000, dtype=np.float32).reshape(1000, 3))
    return tmp_path


def test_index(folder: Path) -> None:
    """What was found; the second time it only looks."""
    for _ in range(2):
        done = headrace("index", "*.txt", "--json", cwd=folder)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith("4 records in 2 files of 5,014 bytes, ")
        assert lines[1] == "  line: bytes"
        facts = json.loads(lines[-1])
        assert (facts["records"], facts["files"], facts["bytes"]) == (4, 2, 5014)
    assert len(list((folder / ".headrace").iterdir())) == 2


def test_inspect(folder: Path) -> None:
    """Sizes are those of the lines; a page of 4096 bytes that has 3 of them is used so far."""
    done = headrace("inspect", "*.txt", "--seconds", "0.2", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lines: 4 records in 2 files of 5,014 bytes; fingerprint ")
    assert "3 to 5,000 bytes a record, median 3;" in done.stdout
    assert "  line: 'one'" in done.stdout
    assert "random order: 4 records read and decoded in" in done.stdout
    sizes = json.loads(done.stdout.splitlines()[-1])["sizes"]["line"]
    assert sizes["histogram"] == [[2, 4, 2], [4, 8, 1], [4096, 8192, 1]]
    assert sizes["page_use"] == pytest.approx((3 + 3 + 5000 + 4) / (5 * 4096))


def test_inspect_an_array(folder: Path) -> None:
    """Its dtype and shape; records of one size need no histogram."""
    done = headrace("inspect", "x.npy", "--seconds", "0.1", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "data: float32[3]\n  12 to 12 bytes a record, median 12;" in done.stdout
    assert "█" not in done.stdout


def test_options_of_a_format(folder: Path) -> None:
    """Numbers are numbers; what a format lacks is said."""
    done = headrace("index", "a.txt", "--format", "windows", "-o", "length=1000", cwd=folder)
    assert done.stdout.startswith("5 records in 1 file of 5,009 bytes")
    done = headrace("index", "a.txt", "--format", "windows", "-o", "length", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: an option of the format is wrong: got 'length', expected name=value\n"
    )


def test_verify_finds_every_damaged_record(folder: Path) -> None:
    """Each with its field, file and offset; the exit status says that there are some."""
    assert headrace("verify", "*.txt", cwd=folder).stdout == "4 records read, none damaged\n"
    bad = b"fine\n\xff\xfe\nfine\n\xc3\n"
    (folder / "b.txt").write_bytes(bad)
    done = headrace("verify", "*.txt", "--json", cwd=folder)
    assert done.returncode == 1
    first, last = done.stdout.splitlines()
    assert first == "7 records read, 2 damaged"
    found = json.loads(last)["damaged"]
    assert [(one["record"], one["field"]) for one in found] == [(4, "line"), (6, "line")]
    assert f"in {folder / 'b.txt'}, record 4, offset 5" in found[0]["error"]
    assert f"record 6, offset {bad.index(0xC3)}" in done.stderr


def test_verify_finds_a_file_cut_short(folder: Path) -> None:
    """A file that lost its end after it was indexed has lost only the records there."""
    path = folder / "raw.idx"
    content = struct.pack(">BBBBI", 0, 0, 8, 1, 5000) + bytes(5000)
    path.write_bytes(content)
    assert headrace("verify", "raw.idx", cwd=folder).returncode == 0
    path.write_bytes(content[:-1])
    done = headrace("verify", "raw.idx", cwd=folder)
    assert done.returncode == 2
    assert "error: the file is truncated: got 5007 bytes, expected 5008" in done.stderr


@pytest.mark.parametrize("command", ["index", "inspect", "verify"])
def test_mistakes_are_one_line(folder: Path, command: str) -> None:
    """No traceback, exit status 2."""
    for arguments, message in (
        (["none.txt"], "error: no such file: got 'none.txt'"),
        (["*.txt", "--format", "avi"], "error: unknown format: got 'avi'"),
        (["*.txt", "--fields", "x,y"], "error: no such field: got 'x', expected 'line'"),
        (["*.*"], "error: two formats in one data set"),
    ):
        done = headrace(command, *arguments, cwd=folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(message)
        assert done.stderr.count("\n") == 1
