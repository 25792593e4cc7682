"""From the runs to the figures: accuracy reached, seconds to an accuracy, and those with a goal."""

import statistics
from collections.abc import Sequence
from typing import Any

from contestants import CONTESTANTS, OURS

__all__ = [
    "FIXED",
    "best_queue",
    "comparisons",
    "figures_of",
    "reached",
    "seconds_to",
    "targets_of",
    "trajectory",
]

FIXED = (80.0, 85.0, 87.0, 88.0, 89.0)  # accuracies to which the seconds are listed for everyone
GOAL_LESS_TIME = 43.5  # per cent; the paper's average over its networks
GOAL_POINTS = 1.01

Run = dict[str, Any]


def trajectory(run: Run) -> tuple[list[float], list[float]]:
    """Seconds since the start, what was written beforehand included, and the accuracies then."""
    seconds, accuracies, before_s = [], [], run["setup_s"]
    for epoch in run["epochs"]:
        seconds += [before_s + at_s for at_s in epoch["evaluated_s"]]
        accuracies += epoch["accuracies"]
        before_s += epoch["seconds"]
    return seconds, accuracies


def reached(run: Run) -> float:
    """The best accuracy of all evaluations, which favours whoever goes up and down."""
    return max(trajectory(run)[1])


def seconds_to(run: Run, accuracy: float) -> float | None:
    """When an evaluation first gave at least that; None is never."""
    pairs = zip(*trajectory(run), strict=True)
    return next((at_s for at_s, found in pairs if found >= accuracy), None)


def of(runs: Sequence[Run], layout: str, contestant: str) -> list[Run]:
    """The runs of one contestant on one layout, seed by seed."""
    some = [run for run in runs if (run["layout"], run["contestant"]) == (layout, contestant)]
    return sorted(some, key=lambda run: int(run["seed"]))


def names_of(runs: Sequence[Run], layout: str) -> list[str]:
    """The contestants on a layout."""
    return list(dict.fromkeys(run["contestant"] for run in runs if run["layout"] == layout))


def comparisons(runs: Sequence[Run], layout: str) -> dict[str, Any]:
    """OURS with each other contestant, seed by seed.

    ``target`` is the accuracy that the other one reaches in every seed: what it can be relied on
    for. Each is asked when it first gave that.
    """
    ours, found = of(runs, layout, OURS), {}
    for name in names_of(runs, layout):
        if name == OURS:
            continue
        theirs = of(runs, layout, name)
        target = min(map(reached, theirs))
        pairs = [
            (seconds_to(a, target), seconds_to(b, target))
            for a, b in zip(ours, theirs, strict=True)
        ]
        less = [100 * (1 - a / b) for a, b in pairs if a is not None and b is not None]
        found[name] = {
            "target": target,
            "seconds": pairs,
            "less_time": less,
            "median_less_time": statistics.median(less) if len(less) == len(pairs) else None,
            "points": [reached(a) - reached(b) for a, b in zip(ours, theirs, strict=True)],
        }
        found[name]["mean_points"] = statistics.mean(found[name]["points"])
    return found


def best_queue(runs: Sequence[Run], layout: str) -> str:
    """Of the queues over the data as it lies, the one that comes to the highest accuracy."""
    queues = [one.name for one in CONTESTANTS if one.is_queue]
    return max(queues, key=lambda name: statistics.mean(map(reached, of(runs, layout, name))))


def targets_of(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures with a goal, over data sorted by class that nobody has pre-shuffled."""
    layout = "sorted by class"
    found = comparisons(runs, layout)
    targets = {}
    best = best_queue(runs, layout)
    for label, name in {"best queue": best, "queue of 10 %": "queue of 10 %"}.items():
        one = found[name]
        figures = {
            f"per cent less time than the {label}": (one["median_less_time"], GOAL_LESS_TIME),
            f"points more than the {label}": (one["mean_points"], GOAL_POINTS),
        }
        for text, (value, goal) in figures.items():
            is_met = value is not None and value >= goal
            targets[text] = {"value": value, "goal": goal, "met": is_met, "rival": name}
    return targets


def figures_of(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """A row of the table for each layout and contestant: medians over the seeds."""
    rows = []
    for layout in dict.fromkeys(run["layout"] for run in runs):
        for name in names_of(runs, layout):
            some = of(runs, layout, name)
            epochs = [epoch for run in some for epoch in run["epochs"]]
            rows.append(
                {
                    "layout": layout,
                    "contestant": name,
                    "reached": [reached(run) for run in some],
                    "at_the_end": [run["epochs"][-1]["accuracies"][-1] for run in some],
                    "setup_s": statistics.median(run["setup_s"] for run in some),
                    "storage_s": statistics.median(run["storage"]["seconds"] for run in some),
                    "storage_processor_s": statistics.median(
                        run["storage"]["processor_s"] for run in some
                    ),
                    "epoch_s": statistics.median(epoch["seconds"] for epoch in epochs),
                    "waited_s": statistics.median(epoch["waited_s"] for epoch in epochs),
                    "seconds_to": {
                        str(one): [seconds_to(run, one) for run in some] for one in FIXED
                    },
                }
            )
    return rows
