"""Recipes and strategies are found by name; what is wrong with one is said with file and line."""

import subprocess
import sys

import pytest

import headrace
from headrace.errors import DataError, RecipeError
from headrace.runs.recipe import (
    find_recipe,
    find_strategy,
    load_recipe,
    recipe_names,
    strategy_of,
)
from tests.recipes import write_recipe


def message_of(text, tmp_path, kind=RecipeError):
    """The error of a recipe with this text."""
    path = tmp_path / "faulty.py"
    path.write_text(text)
    with pytest.raises(kind) as caught:
        load_recipe(path)
    assert type(caught.value) is kind
    return str(caught.value)


def test_a_recipe_becomes_a_run(tmp_path):
    """Its run() is called; the file's folder is importable, as for `python FILE`."""
    (tmp_path / "beside_the_recipe.py").write_text("seed = 5\n")
    more = "\nimport beside_the_recipe\n\nfirst = run\n\n\ndef run():\n    import dataclasses\n\n"
    more += "    return dataclasses.replace(first(), seed=beside_the_recipe.seed)\n"

    run = load_recipe(write_recipe(tmp_path, more=more))

    assert isinstance(run, headrace.Run)
    assert (run.batch_size, run.seed, run.model.__module__) == (32, 5, "recipe")


def test_the_recipes_of_the_package():
    """Both are known by name, and each is a file of the package."""
    assert recipe_names() == ["fashion_mnist", "stdlib_gpt"]
    assert find_recipe("stdlib_gpt").name == "stdlib_gpt.py"
    assert find_recipe("stdlib_gpt").is_file()


def test_a_file_comes_before_a_recipe_of_the_package(tmp_path, monkeypatch):
    """A path is what the user sees."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stdlib_gpt").write_text("")

    assert find_recipe("stdlib_gpt").resolve() == tmp_path / "stdlib_gpt"


def test_no_such_recipe():
    """The names are listed; a close one is asked for."""
    with pytest.raises(RecipeError) as caught:
        find_recipe("fashion-mnist")

    assert str(caught.value) == (
        "no such recipe: got fashion-mnist, expected a Python file, or one of fashion_mnist, "
        "stdlib_gpt; did you mean fashion_mnist?"
    )


def test_a_recipe_without_run(tmp_path):
    """What is missing, where, and what to write."""
    assert message_of("def runs(): ...\n", tmp_path) == (
        "a recipe without run(): got no function of that name, expected def run() -> headrace.Run; "
        f"in {tmp_path}/faulty.py; write a function run that returns a headrace.Run(...)"
    )
    assert "without run()" in message_of("run = 3\n", tmp_path)


def test_run_returns_something_else(tmp_path):
    """The type that came, and the one that was expected."""
    assert message_of("def run():\n    return {}\n", tmp_path) == (
        "run() of the recipe returned something else: got dict, expected headrace.Run; "
        f"in {tmp_path}/faulty.py"
    )


def test_a_recipe_that_raises(tmp_path):
    """While it is loaded, and in run(): the exception, file and line, also of a relative path."""
    assert message_of("\n\n1 / 0\n", tmp_path) == (
        "the recipe failed while it was loaded: got ZeroDivisionError: division by zero; "
        f"in {tmp_path}/faulty.py, line 3"
    )
    text = "import json\n\n\ndef run():\n    return json.loads('')\n"
    assert message_of(text, tmp_path) == (
        "run() of the recipe failed: got JSONDecodeError: Expecting value: line 1 column 1 "
        f"(char 0); in {tmp_path}/faulty.py, line 5"
    )


def test_a_recipe_by_a_relative_path_that_raises(tmp_path, monkeypatch):
    """The line is found whatever the path is relative to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "relative.py").write_text("1 / 0\n")

    with pytest.raises(RecipeError, match="in relative.py, line 1$"):
        load_recipe(find_recipe("relative.py"))


def test_a_recipe_that_is_not_python(tmp_path):
    """The line of the syntax error, once; a file of another kind."""
    assert message_of("def run(:\n", tmp_path) == (
        "the recipe failed while it was loaded: got SyntaxError: invalid syntax; "
        f"in {tmp_path}/faulty.py, line 1"
    )
    (tmp_path / "recipe.yaml").write_text("run: 3\n")
    with pytest.raises(RecipeError, match=r"Python file: got recipe.yaml, expected \*.py"):
        load_recipe(tmp_path / "recipe.yaml")


def test_a_recipe_that_ends_the_process(tmp_path):
    """sys.exit() in a recipe is a failure of the recipe, not a success of the command."""
    assert message_of("import sys\n\nsys.exit()\n", tmp_path) == (
        f"the recipe failed while it was loaded: got SystemExit; in {tmp_path}/faulty.py, line 3"
    )


def test_errors_of_ours_keep_their_kind(tmp_path):
    """What headrace itself says in run() is passed on, with the file."""
    text = "import headrace\n\n\ndef run():\n    headrace.open('nowhere.npy')\n"
    assert message_of(text, tmp_path, DataError).endswith(f"; in {tmp_path}/faulty.py, line 5")
    text = "import headrace\n\nheadrace.open('nowhere.npy')\n"
    assert message_of(text, tmp_path, DataError).endswith(f"; in {tmp_path}/faulty.py, line 3")


@pytest.mark.parametrize("name", ["FORECAST", "forecast", "Forecast"])
def test_a_strategy_by_name(name):
    """In any case."""
    assert find_strategy(name) is headrace.FORECAST


def test_an_unknown_strategy():
    """All are listed; a close one is asked for."""
    with pytest.raises(RecipeError) as caught:
        find_strategy("forcast")

    assert str(caught.value) == (
        "unknown strategy: got forcast, expected one of FLUSH, STALE, STASH, DOUBLE_BUFFER, "
        "PREDICT, SPECTRAIN, FORECAST, FORECAST_LEAN, or package.module:NAME; in --strategy; "
        "did you mean FORECAST?"
    )


def test_a_strategy_of_the_users_own(tmp_path, monkeypatch):
    """package.module:NAME; what is wrong with it is said."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_strategies.py").write_text("from headrace import STASH as MINE\nOTHER = 3\n")
    (tmp_path / "broken_strategies.py").write_text("1 / 0\n")

    assert find_strategy("own_strategies:MINE") is headrace.STASH
    with pytest.raises(RecipeError, match="own_strategies:OTHER is not a strategy: got int, expec"):
        find_strategy("own_strategies:OTHER")
    with pytest.raises(RecipeError, match="cannot be imported.*no attribute 'NONE'"):
        find_strategy("own_strategies:NONE")
    with pytest.raises(RecipeError, match="cannot be imported.*No module named 'no_such_module'"):
        find_strategy("no_such_module:NAME")
    with pytest.raises(RecipeError, match="cannot be imported.*ZeroDivisionError: division"):
        find_strategy("broken_strategies:NAME")
    with pytest.raises(RecipeError, match="cannot be imported"):
        find_strategy(":NAME")


def test_the_strategy_of_a_schedule():
    """FORECAST where it goes with the schedule, else the first that does."""
    assert strategy_of("async_1f1b") is headrace.FORECAST
    assert strategy_of("one_f_one_b") is strategy_of("gpipe") is headrace.FLUSH


def test_loading_a_recipe_needs_no_torch(tmp_path):
    """What is wrong with a recipe is said before seconds have passed."""
    path = write_recipe(tmp_path)
    code = (
        "import sys; from pathlib import Path; from headrace.runs.recipe import load_recipe; "
        f"load_recipe(Path({str(path)!r})); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
