"""The page on formats: its code runs, and its table has every format."""

import re
from pathlib import Path

import headrace
from headrace.data.formats import FORMATS

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


def test_every_format_is_in_the_table() -> None:
    """By the name that headrace.open takes."""
    assert set(re.findall(r"^\| `([a-z_]+)` \|", PAGE, re.MULTILINE)) == set(FORMATS)


def test_the_format_of_ones_own(tmp_path: Path, monkeypatch: object, capsys: object) -> None:
    """In thirty lines, over two files; every record comes once."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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
