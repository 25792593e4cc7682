"""The command `headrace demo`: a small GPT trained with and without draining, side by side."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = ["demo"]

RECIPE = "stdlib_gpt"
PROMPT = b"def "

INTRODUCTION = """\
headrace trains a small GPT on the source files of Python's standard library, on this machine.
Its layers are cut into two stages, a process each. Records are read in a truly random order
straight from the files: the first stage reads only the inputs, the last one only the targets."""

ASYNCHRONOUS = """
1. Without draining: a stage goes on to the next batch while the other still works on this one, and
   forecasts the weights that it will have by then (strategy FORECAST)."""

DRAINING = """
2. The same steps, the same cut, but the pipeline drains at each update (strategy FLUSH, 1F1B)."""

NEXT = """\
What to try next:
  headrace train fashion_mnist               a convolutional net, with its accuracy after each epoch
  headrace train stdlib_gpt --epochs 5       the same GPT for longer
  headrace schedule async-1f1b               what the two processes did, drawn
  headrace train my_recipe.py --stages 4     your own: a Python file with run(), see the README"""


def demo(
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the figures as one line of JSON.")
    ] = False,
) -> None:
    """Watch a small GPT learn through two processes, without and with draining."""
    from headrace.cli.train import train_recipe

    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    print(INTRODUCTION, ASYNCHRONOUS, sep="\n", flush=True)
    flowing = train_recipe(RECIPE, {"strategy": "forecast"}, out=folder / "async")
    print(DRAINING, flush=True)
    cuts = json.loads((folder / "async" / "config.json").read_text())["cuts"]
    options = {"strategy": "flush", "cuts": ",".join(map(str, cuts))}
    draining = train_recipe(RECIPE, options, out=folder / "flush")

    fast, slow = _figures(flowing), _figures(draining)
    ratio = round(fast["samples_per_s"] / slow["samples_per_s"], 4)
    figures = {"async": fast, "flush": slow, "ratio": ratio}
    _show(folder, figures)
    if as_json:
        print(json.dumps(figures), flush=True)


def _figures(results: Mapping[str, Any]) -> dict[str, float]:
    return {"loss": results["loss"], "samples_per_s": results["samples_per_s"]}


def _show(folder: Path, figures: Mapping[str, Any]) -> None:
    """The two losses over time, the speeds, and what the model writes."""
    from headrace.report import plot, smoothed
    from headrace.runs.metrics import read_metrics

    curves = {}
    for name, text in (("flush", "FLUSH"), ("async", "FORECAST")):
        lines: list[dict[str, Any]] = read_metrics(folder / name, "batch")
        losses = smoothed([line["loss"] for line in lines], window=3)
        curves[text] = list(zip((line["seconds"] for line in lines), losses, strict=True))
    print("\nloss in nats a byte, over seconds of training")
    print(plot(curves, width=72, height=14))
    print()
    for name, text in (("async", "FORECAST"), ("flush", "FLUSH")):
        last = curves[text][-1][1]
        print(f"{text:9}{figures[name]['samples_per_s']:8,.1f} samples/s   last loss {last:.3f}")
    print(f"ratio    {figures['ratio']:8.2f}")
    print(f"\nThe model writes, after {len(lines)} batches:\n{_sample(folder / 'async')}\n")
    print(f"{NEXT}\n\nThe two runs are in {folder}")


def _sample(folder: Path) -> str:
    """What the trained model writes after the prompt."""
    from headrace.recipes.models import generate
    from headrace.recipes.stdlib_gpt import LENGTH, model
    from headrace.runs.checkpoint import load_model

    trained = model().eval()
    trained.load_state_dict(load_model(folder))
    text = generate(trained, PROMPT, 240, max_length=LENGTH).decode(errors="replace")
    lines = [line[:88].rstrip() for line in text.splitlines() if line[:88].strip()]
    return "\n".join(f"    {line}" for line in lines[:4])
