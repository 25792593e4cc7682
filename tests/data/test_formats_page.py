"""The page on formats: its code runs, and its table has every format."""

import re
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.data.formats import FORMATS
from headrace.data.pack import pack
from headrace.progress import Silent

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
CODE = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_every_format_is_in_the_table() -> None:
    """By the name that headrace.open takes."""
    assert set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)


def test_the_format_of_ones_own(tmp_path: Path, monkeypatch: object, capsys: object) -> None:
    """In thirty lines, over two files; every record comes once."""
    code = CODE[1]
    (tmp_path / "genes").mkdir()
    (tmp_path / "genes" / "a.fasta").write_text(">one\nACGT\nAC\n>two\nTTTT\n")
    (tmp_path / "genes" / "b.fasta").write_text(">three\nGG\nGG\n")
    monkeypatch.chdir(tmp_path)  # type: ignore[attr-defined]

    exec(compile(code, "formats.md", "exec"), {"__name__": "page"})

    printed = capsys.readouterr().out  # type: ignore[attr-defined]
    assert sorted(re.findall("'([A-Z]+)'", printed)) == ["ACGTAC", "GGGG", "TTTT"]
    start = code.index("@dataclass")
    assert len(code[start : code.index("genes =")].strip().splitlines()) <= 30
    assert len(list((tmp_path / "genes" / ".headrace").iterdir())) == 2
    assert headrace.open.__doc__ is not None and "docs/formats.md" in headrace.open.__doc__


def test_sparse_rows_without_headrace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NumPy and SciPy read of an archive is the text's matrix."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "webspam.svm").write_text("1 1:2 3:4\n-1 2:5\n")
    pack(
        headrace.open("webspam.svm"),
        tmp_path / "webspam.npz",
        "csr",
        headrace.SequentialOrder(),
        Silent(),
    )
    found: dict[str, Any] = {}
    exec(compile(CODE[0], "formats.md", "exec"), found)
    assert found["matrix"].toarray().tolist() == [[2, 0, 4], [0, 5, 0]]
    assert found["labels"].tolist() == [1, -1]
