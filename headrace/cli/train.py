"""The command `headrace train`: a recipe, through one process a stage."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.errors import RecipeError

if TYPE_CHECKING:
    from headrace.runs.config import Run

__all__ = ["train", "train_recipe"]


def train(
    recipe: Annotated[
        str, typer.Argument(help="A Python file with run(), or a name: stdlib_gpt, fashion_mnist.")
    ],
    stages: Annotated[
        int | None, typer.Option(help="Processes that the model is cut over, a stage each.")
    ] = None,
    micro_batches: Annotated[
        int | None, typer.Option(help="Pieces that a batch is cut into.")
    ] = None,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="flush, stale, stash, double-buffer, predict, spectrain, forecast, forecast-lean."
        ),
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the records.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Of the order, the first weights and random layers.")
    ] = None,
    cuts: Annotated[
        str | None,
        typer.Option(
            help="First layer of each stage but the first, such as 3,6; default: cut where the "
            "measured times of the layers say."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the run, for its configuration, metrics and weights; default: "
            "runs/<recipe>."
        ),
    ] = None,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="All stages in this process, to the same bits.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the results as one line of JSON.")
    ] = False,
) -> None:
    """Train a recipe through a pipeline of processes. Options overrule what its run() says."""
    options = {
        "stages": stages,
        "micro_batches": micro_batches,
        "strategy": strategy,
        "epochs": epochs,
        "seed": seed,
        "cuts": cuts,
    }
    results = train_recipe(recipe, options, out=out, simulate=simulate)
    if as_json and results:
        print(json.dumps(results), flush=True)


def train_recipe(
    recipe: str, options: Mapping[str, object], *, out: Path | None, simulate: bool = False
) -> Mapping[str, object]:
    """Trains a recipe in processes of its own, in this one, or as the stage that this process is.

    Args:
        recipe: a path, or the name of a recipe of the package.
        options: of the command line; None leaves the recipe's own.
        out: the run's folder; None takes runs/<recipe>.
        simulate: all stages in this process.

    Returns:
        The run's results; empty in a process of another stage than the last.
    """
    from headrace.cli.progress import on_screen
    from headrace.runs.launch import is_launched
    from headrace.runs.recipe import find_recipe, load_recipe

    path = find_recipe(recipe)
    run = _with_options(load_recipe(path), options)
    folder = Path("runs", path.stem) if out is None else out
    if simulate or is_launched() or run.stages == 1:
        if simulate and is_launched():
            raise RecipeError("--simulate is for one process", got="several, from a launcher")
        from headrace.runs.loop import train

        with on_screen() as progress:
            return train(run, folder, progress=progress, recipe=path)
    return _in_processes(path, run, options, folder)


def _with_options(run: "Run", options: Mapping[str, object]) -> "Run":
    """The run with what the command line says."""
    from headrace.runs.recipe import find_strategy

    given = {name: value for name, value in options.items() if value is not None}
    if "strategy" in given:
        given["strategy"] = find_strategy(str(given["strategy"]))
        given["schedule"] = None
    if "cuts" in given:
        given["cuts"] = _numbers(str(given["cuts"]))
    elif "stages" in given:
        given["cuts"] = None
    return replace(run, **given)  # type: ignore[arg-type]


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part)
    except ValueError as error:
        raise RecipeError(
            "not a list of layer numbers", got=text, expected="such as 3,6", where="--cuts"
        ) from error


def _in_processes(
    path: Path, run: "Run", options: Mapping[str, object], folder: Path
) -> Mapping[str, object]:
    """Looks for mistakes here, then starts the processes."""
    from headrace.runs.config import identity
    from headrace.runs.folder import claim, results_of
    from headrace.runs.launch import launch
    from headrace.runs.prepare import prepare

    held = claim(folder, identity(run, prepare(run).records, path))
    if held.results is not None:
        print(f"{folder} holds this run, finished; choose another --out to train again", flush=True)
        return held.results
    arguments = ["train", str(path), "--out", str(folder)]
    for name, value in options.items():
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", str(value)]
    launch(arguments, num_processes=run.stages, threads=run.threads_per_stage)
    return results_of(folder)
