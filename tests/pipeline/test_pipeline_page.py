"""The pages on the pipeline: their code runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["pipeline.md", "migrating.md"])
def test_the_page_runs(name, capsys):
    """Block after block; what they print are losses."""
    shared = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL):
        exec(compile(code, name, "exec"), shared)
    printed = re.findall(r"\d+\.\d+", capsys.readouterr().out)
    assert printed and all(float(number) > 0 for number in printed)
