"""The command `headrace schedule`: what each stage does, drawn."""

import json
import shutil
import sys
from typing import Annotated

import typer

from headrace.errors import RecipeError

__all__ = ["schedule"]


def schedule(
    name: Annotated[str, typer.Argument(help="gpipe, 1f1b, async-1f1b or async-eager-1f1b.")],
    stages: Annotated[
        int, typer.Option(help="Processes that the model is cut over, a stage each.")
    ] = 4,
    micro_batches: Annotated[int, typer.Option(help="Pieces that a batch is cut into.")] = 8,
    batches: Annotated[int, typer.Option(help="Batches to draw.")] = 3,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="Whose versions of the weights to count: flush, stale, stash, double-buffer, "
            "predict, spectrain, forecast or forecast-lean; default: forecast, or flush for gpipe "
            "and 1f1b."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the figures as one line of JSON.")
    ] = False,
) -> None:
    """Draw a schedule: its staircase, staleness, bubble and live versions of weights."""
    from headrace.pipeline.schedule import make_schedule
    from headrace.report import figures_of, schedule_report
    from headrace.runs.recipe import find_strategy, strategy_of

    if batches < 1:
        raise RecipeError("number of batches", got=batches, expected="1 or more")
    drawn = make_schedule(_full_name(name), stages, micro_batches, batches)
    chosen = find_strategy(strategy) if strategy else strategy_of(drawn.name)
    chosen.require_schedule(drawn.name)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print(schedule_report(drawn, chosen, width=width))
    if as_json:
        print(json.dumps(figures_of(drawn, chosen)))


def _full_name(name: str) -> str:
    """The schedule's name as strategies know it; 1f1b is what the field calls it."""
    return {"1f1b": "one_f_one_b"}.get(name.lower(), name.lower().replace("-", "_"))
