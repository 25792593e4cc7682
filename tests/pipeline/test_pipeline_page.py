"""The page on the pipeline: its code runs."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


def test_the_page_runs(capsys):
    """A residual model with two inputs, in three stages."""
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(code, "pipeline.md", "exec"), {"__name__": "page"})
    assert float(capsys.readouterr().out.split()[0]) > 0
