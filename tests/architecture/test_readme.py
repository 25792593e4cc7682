"""The code in the README runs, and what it says of the command line is true."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy

import headrace
from headrace.cli.app import run as run_command
from headrace.pipeline.strategy import STRATEGIES
from headrace.runs.recipe import load_recipe, recipe_names
from tests.architecture.test_command_line import surface

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
OTHERS = {"--index-url", "--nproc-per-node"}  # pip's and torchrun's


def test_there_are_two_blocks() -> None:
    """Library code, and a recipe."""
    assert len(BLOCKS) == 2


def test_the_library_code_runs(tmp_path: Path) -> None:
    """As it stands, in a folder with a little of what it reads; it ends with a summary."""
    (tmp_path / "headrace" / "runs").mkdir(parents=True)
    for name in ("errors.py", "files.py"):
        shutil.copy(ROOT / "headrace" / name, tmp_path / "headrace" / name)
    script = tmp_path / "script.py"
    script.write_text(BLOCKS[0])

    # -P: the package is imported from where it is installed
    done = subprocess.run(
        [sys.executable, "-P", script], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )

    assert (done.returncode, done.stderr) == (0, "")
    num_windows = sum(
        (len(path.read_bytes()) - 1) // 128 for path in tmp_path.glob("headrace/**/*.py")
    )
    assert f"num_records={num_windows}," in done.stdout


def test_the_library_code_is_four_lines() -> None:
    """Besides the imports, as the text above it says."""
    statements = ast.parse(BLOCKS[0]).body
    assert sum(not isinstance(line, ast.Import | ast.ImportFrom) for line in statements) == 4
    assert "The library is four lines" in README


def test_the_recipe_trains(tmp_path: Path) -> None:
    """Over two arrays of the shapes that its model takes."""
    random = numpy.random.default_rng(0)
    numpy.save(tmp_path / "x.npy", random.standard_normal((100, 8), dtype=numpy.float32))
    numpy.save(tmp_path / "y.npy", random.integers(0, 3, 100))
    recipe = tmp_path / "my_recipe.py"
    text = BLOCKS[1].replace('"x.npy"', repr(str(tmp_path / "x.npy")))
    recipe.write_text(text.replace('"y.npy"', repr(str(tmp_path / "y.npy"))))

    results = headrace.train(load_recipe(recipe), tmp_path / "run")

    assert results["records"] == 100


def test_the_flags_that_it_names_exist() -> None:
    """Those of the command line."""
    known = {flag for flags in surface().values() for flag in flags}
    assert set(re.findall(r"--[a-z][a-z-]+", README)) <= known | OTHERS


def test_the_recipes_and_strategies_that_it_names_exist() -> None:
    """By the names that the command line takes."""
    assert all(f"`{name}`" in README for name in recipe_names())
    table = re.findall(r"^\| \**([A-Z_]+)\**", README, re.MULTILINE)
    assert table == list(STRATEGIES)
    assert all(isinstance(getattr(headrace, name), headrace.Strategy) for name in table)


def test_the_schedule_that_it_shows_is_drawn(capsys: object) -> None:
    """The command of the table."""
    command = re.search(r"`headrace (schedule [^`]*)`", README)
    assert command is not None
    assert run_command(command[1].split()) == 0
