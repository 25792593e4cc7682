"""A recipe: a Python file whose `run()` returns the Run."""

import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from headrace.errors import HeadraceError, RecipeError
from headrace.pipeline.strategy import FORECAST, STRATEGIES, Strategy
from headrace.runs.config import Run

__all__ = ["find_recipe", "find_strategy", "load_recipe", "recipe_names", "strategy_of"]


def recipe_names() -> list[str]:
    """The recipes that the package ships, by name."""
    files = (Path(__file__).parents[1] / "recipes").glob("*.py")
    return sorted(path.stem for path in files if path.stem not in ("__init__", "models"))


def find_recipe(name: str) -> Path:
    """The file of a recipe, given its path or the name of one that the package ships.

    Raises:
        RecipeError: there is no such file.
    """
    path = Path(name)
    if path.is_file():
        return path
    if name in recipe_names():
        return Path(__file__).parents[1] / "recipes" / f"{name}.py"
    raise RecipeError(
        "no such recipe",
        got=name,
        expected=f"a Python file, or one of {', '.join(recipe_names())}",
        remedy=_did_you_mean(name, recipe_names()),
    )


def find_strategy(name: str) -> Strategy:
    """A strategy by its name (any case), or a user's own by `package.module:NAME`.

    Raises:
        RecipeError: there is none of that name.
    """
    if ":" in name:
        return _imported_strategy(name)
    key = name.upper().replace("-", "_")
    if key not in STRATEGIES:
        raise RecipeError(
            "unknown strategy",
            got=name,
            expected=f"one of {', '.join(STRATEGIES)}, or package.module:NAME",
            where="--strategy",
            remedy=_did_you_mean(key, list(STRATEGIES)),
        )
    return STRATEGIES[key]


def strategy_of(schedule: str) -> Strategy:
    """The strategy that a schedule is drawn with where none is named: the default one if it may."""
    fitting = [s for s in STRATEGIES.values() if schedule in s.schedules]
    return FORECAST if FORECAST in fitting else fitting[0]


def _did_you_mean(name: str, known: list[str]) -> str | None:
    """The closest of the known names, as a question."""
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else None


def _imported_strategy(reference: str) -> Strategy:
    module, _, name = reference.partition(":")
    try:
        strategy = getattr(importlib.import_module(module), name)
    except Exception as error:
        raise RecipeError(
            "a strategy that cannot be imported",
            got=f"{reference} ({type(error).__name__}: {error})",
            where="--strategy",
        ) from error
    if not isinstance(strategy, Strategy):
        raise RecipeError(
            f"{reference} is not a strategy",
            got=type(strategy).__name__,
            expected="a headrace.Strategy",
            where="--strategy",
        )
    return strategy


def load_recipe(path: Path) -> Run:
    """The run that a recipe describes.

    The file's folder is importable while it runs, as for `python FILE`.

    Raises:
        RecipeError: the file fails, has no `run`, or its `run()` returns something else.
    """
    module = _imported(path)
    run = getattr(module, "run", None)
    if not callable(run):
        raise RecipeError(
            "a recipe without run()",
            got="no function of that name",
            expected="def run() -> headrace.Run",
            where=path,
            remedy="write a function run that returns a headrace.Run(...)",
        )
    try:
        value = run()
    except (Exception, SystemExit) as error:
        raise _failed(path, "run() of the recipe failed", error) from error
    if not isinstance(value, Run):
        raise RecipeError(
            "run() of the recipe returned something else",
            got=type(value).__name__,
            expected="headrace.Run",
            where=path,
        )
    return value


def _imported(path: Path) -> ModuleType:
    """The recipe as a module under its own name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RecipeError("a recipe is a Python file", got=path.name, expected="*.py", where=path)
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(path, "the recipe failed while it was loaded", error) from error
    return module


def _failed(path: Path, what: str, error: BaseException) -> HeadraceError:
    """What went wrong in the user's file, with the line of it; our own errors keep their kind."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path.resolve() or Path(frame.filename) == path.absolute()
    ]
    got = f"{type(error).__name__}: {error}".removesuffix(": ")
    if isinstance(error, SyntaxError):  # has a place of its own, which may be in another file
        got = f"{type(error).__name__}: {error.msg}"
        path, lines = Path(error.filename or path), [error.lineno]
    where = f"{path}, line {lines[-1]}" if lines and lines[-1] else path
    if isinstance(error, HeadraceError):
        return type(error)(str(error), where=where)
    return RecipeError(what, got=got, where=where)
