"""Schedules and runs as text: a staircase with its figures, two losses in one plot."""

from collections.abc import Mapping, Sequence

from headrace.pipeline.clock import bubble, live_versions, micro_batches_in_flight, staleness
from headrace.pipeline.schedule import Schedule
from headrace.pipeline.strategy import Strategy

__all__ = ["figures_of", "plot", "schedule_report", "smoothed"]

MARKS = "·*+x"


def figures_of(schedule: Schedule, strategy: Strategy) -> dict[str, object]:
    """The figures of a schedule, for scripts; lists have one value a stage."""
    stages = range(schedule.num_stages)
    return {
        "schedule": schedule.name,
        "strategy": strategy.name,
        "stages": schedule.num_stages,
        "micro_batches": schedule.num_micro_batches,
        "bubble": bubble(schedule),
        "staleness": [max(dict(staleness(schedule, k)).values(), default=0) for k in stages],
        "live_versions": [live_versions(schedule, strategy, k) for k in stages],
        "micro_batches_in_flight": [micro_batches_in_flight(schedule, k) for k in stages],
    }


def schedule_report(schedule: Schedule, strategy: Strategy, *, width: int | None = None) -> str:
    """The staircase, then for each stage what it costs.

    Args:
        schedule: a few batches of it.
        strategy: whose versions are counted.
        width: of the staircase at most, in characters; None shows all that `str(schedule)` does.
    """
    figures = figures_of(schedule, strategy)
    num_batches = sum(1 for _ in schedule.slots())
    lines = [
        f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_micro_batches} "
        f"micro-batches a batch, {num_batches} batches; strategy {strategy.name}",
        "",
        *(_cut(row, width) for row in str(schedule).splitlines()),
        "",
        "F forward, B backward of a micro-batch; * the stage's update of its weights",
        "staleness: updates between a micro-batch's forward pass and the update that it is part of",
        "",
        "stage  staleness of a batch's micro-batches  live versions  micro-batches in flight",
    ]
    for stage in range(schedule.num_stages):
        lines.append(
            f"{stage:5}  {_last_batch(schedule, stage):37}"
            f"  {live_versions(schedule, strategy, stage):13}"
            f"  {micro_batches_in_flight(schedule, stage):23}"
        )
    lines += [
        "",
        f"bubble {figures['bubble']:.1%} of all stages' time, with ramp and drain "
        "(forward = backward = 1, nothing else takes time)",
    ]
    return "\n".join(lines)


def _cut(row: str, width: int | None) -> str:
    """A row of a staircase, cut at a blank so that it fits."""
    if width is None or len(row) <= width:
        return row
    return row[: width - 4].rpartition(" ")[0].rstrip() + " ..."


def _last_batch(schedule: Schedule, stage: int) -> str:
    """The staleness of the last batch's micro-batches, equal ones in short: 1 for 3, 0 for 5."""
    last = [stale for _, stale in staleness(schedule, stage)][-schedule.num_micro_batches :]
    runs: list[list[int]] = []
    for value in last:
        if runs and runs[-1][0] == value:
            runs[-1][1] += 1
        else:
            runs.append([value, 1])
    return ", ".join(f"{value} for {count}" for value, count in runs)


def smoothed(losses: Sequence[float], window: int) -> list[float]:
    """The mean of each loss and the ones around it, at most so many on each side."""
    means = []
    for place in range(len(losses)):
        near = losses[max(0, place - window) : place + window + 1]
        means.append(sum(near) / len(near))
    return means


def plot(curves: Mapping[str, Sequence[tuple[float, float]]], *, width: int, height: int) -> str:
    """Curves as one small plot of characters; where two meet, the later one is seen.

    Args:
        curves: name -> points (x, y), at least one in all; x in seconds.
        width: of the plot in characters, without the labels at its left.
        height: in lines, without the axis and the legend below it.
    """
    points = [point for curve in curves.values() for point in curve]
    right = max(x for x, _ in points) or 1.0
    low, high = min(y for _, y in points), max(y for _, y in points)
    step = (high - low or 1.0) / (height - 1)
    grid = [[" "] * width for _ in range(height)]
    for mark, curve in zip(MARKS, curves.values(), strict=False):
        for x, y in curve:
            grid[round((high - y) / step)][round(x / right * (width - 1))] = mark
    rows = [f"{high - row * step:6.2f} ┤{''.join(cells)}" for row, cells in enumerate(grid)]
    end = f"{right:.0f} s"
    legend = "   ".join(f"{mark} {name}" for mark, name in zip(MARKS, curves, strict=False))
    axis = [f"{'':7}└{'─' * width}", f"{'':8}0{end:>{width - 1}}", f"{'':8}{legend}"]
    return "\n".join(line.rstrip() for line in (*rows, *axis))
