"""A run's folder: whose it is, whether it is finished, what it holds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import RecipeError
from headrace.files import read_json, write_json

__all__ = ["Claim", "claim", "results_of", "write_config", "write_results"]


@dataclass(frozen=True)
class Claim:
    """What a folder holds of a run.

    Args:
        results: those of the finished run; None where it is not finished.
        cuts: those that an unfinished run was split by; None where there is none.
        is_new: there was no run in the folder.
    """

    results: Mapping[str, object] | None
    cuts: tuple[int, ...] | None
    is_new: bool


def claim(folder: Path, identity: Mapping[str, object]) -> Claim:
    """Looks whether the folder is free, or holds a run of this very identity. Writes nothing.

    Raises:
        RecipeError: it holds something else, or another run: all that differs is named.
    """
    if folder.exists() and not folder.is_dir():
        raise RecipeError("the run's folder is a file", where=folder, remedy="choose another --out")
    config = _read(folder / "config.json")
    if config is None:
        return Claim(None, None, is_new=True)
    stored = config.get("identity")
    differences = _differences(stored if isinstance(stored, dict) else {}, identity)
    if differences:
        raise RecipeError(
            f"{folder} holds a different run; choose another --out, or remove the folder:\n"
            + differences
        )
    cuts = config.get("cuts")
    return Claim(
        results=_read(folder / "results.json"),
        cuts=tuple(cuts) if isinstance(cuts, list) else None,
        is_new=False,
    )


def _differences(stored: Mapping[str, object], wanted: Mapping[str, object]) -> str:
    """The keys that differ, a line each."""
    return "\n".join(
        f"  - {key}: the folder has {json.dumps(stored.get(key))}, this run {json.dumps(value)}"
        for key, value in wanted.items()
        if stored.get(key) != json.loads(json.dumps(value))
    )


def _read(path: Path) -> dict[str, object] | None:
    """A JSON object of ours; None where there is no such file."""
    try:
        value = read_json(path)
    except OSError as error:
        raise RecipeError(
            "the run's folder cannot be read",
            got=error.strerror,
            where=path.parent,
            remedy="choose another --out",
        ) from error
    except json.JSONDecodeError as error:
        raise RecipeError(
            "not a run's folder: a file is not JSON", got=error, where=path
        ) from error
    if value is not None and not isinstance(value, dict):
        raise RecipeError("not a run's folder", got=type(value).__name__, where=path)
    return value


def write_config(
    folder: Path,
    identity: Mapping[str, object],
    *,
    recipe: Path | None,
    placement: Mapping[str, object],
) -> None:
    """Makes the folder this run's, and takes away what an unfinished run left.

    Raises:
        RecipeError: nothing can be written there.
    """
    config = {
        "identity": identity,
        "recipe": None if recipe is None else str(recipe.resolve()),
        **placement,
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in (*folder.glob("model*.safetensors*"), *folder.glob("error-*.txt")):
            left.unlink()
        write_json(folder / "config.json", config)
    except OSError as error:
        raise RecipeError(
            "the run's folder cannot be written",
            got=error.strerror,
            where=folder,
            remedy="choose another --out",
        ) from error


def write_results(folder: Path, results: Mapping[str, object]) -> None:
    """Marks the run finished. Comes last."""
    write_json(folder / "results.json", results)


def results_of(folder: Path) -> Mapping[str, object]:
    """The results of a finished run.

    Raises:
        RecipeError: the run has not finished.
    """
    results = _read(folder / "results.json")
    if results is None:
        raise RecipeError("the run has not finished", where=folder)
    return results
