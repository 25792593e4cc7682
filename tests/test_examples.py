"""The examples run, as their first lines say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example(path):
    """Under torchrun, in two processes; the loss falls."""
    assert f"torchrun --nproc-per-node 2 examples/{path.name}" in path.read_text().splitlines()[0]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]

    done = subprocess.run(
        [*command, "--nproc-per-node", "2", str(path), "60"],
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    found = re.fullmatch(r"60 batches: loss (\S+) -> (\S+)\n", done.stdout)
    assert found and float(found[1]) > float(found[2]) + 0.5
