"""Draws a results file: accuracy over time for both layouts, and what an epoch's time goes to."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from figures import names_of, of, reached, trajectory

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

__all__ = ["draw"]

RESULTS = Path(__file__).parent / "results"
# Okabe and Ito's colours, which the colour-blind can tell apart; queues from light to dark.
STYLES: dict[str, tuple[str, str]] = {
    "RandomOrder": ("#000000", "-"),
    "PageOrder, 5 records": ("#009E73", "-"),
    "blocks of 10 %, written": ("#CC79A7", "-"),
    "queue of 1 %": ("#F0B860", "-"),
    "queue of 5 %": ("#E69F00", "-"),
    "queue of 10 %": ("#D55E00", "-"),
    "queue of 50 %": ("#8B2500", "-"),
    "queue of 10 %, pre-shuffled": ("#56B4E9", "--"),
    "queue of 50 %, pre-shuffled": ("#0072B2", "--"),
}


def main() -> None:
    """Reads the results, writes the picture beside them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS / "full.json")
    parser.add_argument("--out", type=Path, help="the picture; by default beside the results")
    options = parser.parse_args()
    path = options.out or options.results.with_suffix(".png")
    draw(json.loads(options.results.read_text()), path)
    print(f"wrote {path}")


def draw(results: dict[str, Any], path: Path) -> None:
    """The picture of a results file."""
    pyplot.rcParams.update({"font.size": 9, "axes.titlesize": 9.5, "axes.titleweight": "bold"})
    runs, layouts = results["runs"], list(results["comparisons"])
    figure, axes = pyplot.subplots(2, 2, figsize=(9.5, 7.4), layout="constrained")
    panels = axes.ravel().tolist()
    curves(panels[0], runs, layouts[0])
    panels[0].set_title("(a) File sorted by class")
    panels[0].set_ylim(0, 100)
    curves(panels[1], runs, layouts[0])
    panels[1].set_title("(b) File sorted by class, the upper end")
    curves(panels[2], runs, layouts[1])
    panels[2].set_title("(c) File in random order")
    lowest, highest = limits(runs)
    for panel in panels[1:3]:
        panel.set_ylim(lowest, highest)
    epochs(panels[3], results["figures"], layouts[0])
    panels[3].set_title("(d) An epoch: training (pale); reading alone, cold (full)")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    num_seeds, num_epochs = results["plan"]["num_seeds"], results["plan"]["num_epochs"]
    seeds = "1 seed" if num_seeds == 1 else f"median of {num_seeds} seeds; the band is their range"
    figure.suptitle(f"Fashion-MNIST read from disk, {num_epochs} epochs, {seeds}", fontsize=10.5)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def limits(runs: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Of the upper end: what is above the worst of the good ones' first looks."""
    highest = max(map(reached, runs))
    return np.floor(highest) - 10, np.ceil(highest)


def curves(axes: Axes, runs: Sequence[dict[str, Any]], layout: str) -> None:
    """Accuracy over time."""
    for name in in_order(names_of(runs, layout)):
        points = [trajectory(run) for run in of(runs, layout, name)]
        seconds = np.median([point[0] for point in points], axis=0)
        accuracies = np.array([point[1] for point in points])
        colour, line = STYLES[name]
        width = 2.0 if name == "RandomOrder" else 1.2
        top = 3 if name == "RandomOrder" else 2
        middle = np.median(accuracies, axis=0)
        axes.plot(seconds, middle, line, color=colour, linewidth=width, label=name, zorder=top)
        if len(points) > 1:
            edges = accuracies.min(axis=0), accuracies.max(axis=0)
            axes.fill_between(seconds, *edges, color=colour, alpha=0.15, linewidth=0)
    axes.set_xlabel("seconds since the start, rewriting of the file included")
    axes.set_ylabel("test accuracy, %")
    axes.set_xlim(0, None)
    axes.grid(alpha=0.3)


def epochs(axes: Axes, rows: Sequence[dict[str, Any]], layout: str) -> None:
    """Training from the disk, and what reading alone takes, which goes on meanwhile."""
    some = {row["contestant"]: row for row in rows if row["layout"] == layout}
    for place, name in enumerate(in_order(list(some))):
        whole_s, reading_s = some[name]["epoch_s"], some[name]["storage_s"]
        colour = STYLES[name][0]
        axes.barh(place, whole_s, 0.75, color=colour, alpha=0.35, linewidth=0)
        axes.barh(place, reading_s, 0.35, color=colour, linewidth=0)
        text = f"  {whole_s:.2f} s; {reading_s:.2f} s"
        axes.text(whole_s, place, text, va="center", fontsize=8)
    axes.set_yticks([])
    axes.set_ylabel("contestants as in the legend")
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * max(row["epoch_s"] for row in some.values()))
    axes.set_xlabel("seconds (medians)")


def in_order(names: Sequence[str]) -> Iterator[str]:
    """As the legend has them."""
    return (name for name in STYLES if name in names)


if __name__ == "__main__":
    main()
