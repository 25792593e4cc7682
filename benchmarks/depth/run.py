"""What share of the ideal deep pipelines reach, where stages sleep instead of computing."""

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from contestants import Contestant, Headrace, Torch

from headrace.pipeline.mesh import Mesh

sys.path.append(str(Path(__file__).parents[1]))
from ranks import start_ranks
from reporting import busy_s, finish, options_of, show_targets

RESULTS = Path(__file__).parent / "results"
FORWARD_S = 0.02  # a backward pass takes twice as long
SCHEDULES = ("async_1f1b", "async_eager_1f1b")


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark.

    Args:
        name: of the mode.
        depths: n, one launch each.
        multiples: m as multiples of n.
        num_rounds: of all contestants in turn.
        work_s: the ideal time of what is counted in each run, about.
        is_whole: with GPipe and interleaved 1F1B, up to 8 stages.
    """

    name: str
    depths: tuple[int, ...]
    multiples: tuple[int, ...]
    num_rounds: int
    work_s: float
    is_whole: bool


QUICK = Plan("quick", (8,), (1,), 1, 2.5, False)
FULL = Plan("full", (2, 4, 8, 16), (1, 2, 4), 2, 3.0, True)


def main() -> None:
    """One launch for each depth, then the report."""
    parser = options_of(__doc__, "8 stages, m = n, 1 round")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    if options.worker:
        work(plan, options.rounds or plan.num_rounds)
        return
    began_s = time.perf_counter()
    runs = [
        run for depth in plan.depths for run in start_ranks(__file__, sys.argv[1:], depth)["runs"]
    ]
    targets = targets_of(runs)
    show(runs)
    show_targets(targets)
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "depth", "mode": plan.name, "targets": targets},
        {"forward_s": FORWARD_S, "runs": runs},
        began_s=began_s,
        as_json=options.json,
    )


def work(plan: Plan, num_rounds: int) -> None:
    """One rank: all contestants for each m, round after round."""
    torch.set_num_threads(1)
    depth = int(os.environ["WORLD_SIZE"])
    mesh = Mesh.from_environment(depth)
    runs: list[dict[str, Any]] = []
    for multiple in plan.multiples:
        parts = multiple * depth
        ideal_s = parts * 3 * FORWARD_S
        num_batches = max(2, round(plan.work_s / ideal_s))
        contestants = contestants_of(mesh, parts, is_whole=plan.is_whole and depth <= 8)
        for contestant in contestants:
            contestant.run(1)
        for number in range(num_rounds):
            for contestant in contestants:
                batch_s, others_s = measure(contestant, num_batches)
                runs.append(
                    {
                        "n": depth,
                        "m": parts,
                        "contestant": contestant.name,
                        "round": number,
                        "batch_s": batch_s,
                        "share": ideal_s / batch_s,
                        "processors_busy_s": others_s,
                    }
                )
        for contestant in contestants:
            contestant.close()
    if mesh.stage == 0:
        print(json.dumps({"runs": runs}))
    mesh.barrier()
    mesh.close()


def contestants_of(mesh: Mesh, parts: int, *, is_whole: bool) -> list[Contestant]:
    """Who takes part."""
    found: list[Contestant] = [Headrace(mesh, FORWARD_S, parts, name) for name in SCHEDULES]
    found.append(Torch(mesh, FORWARD_S, parts, "1F1B"))
    if is_whole:
        found += [Torch(mesh, FORWARD_S, parts, kind) for kind in ("GPipe", "interleaved 1F1B")]
    return found


def measure(contestant: Contestant, num_batches: int) -> tuple[float, float]:
    """Seconds a batch once the pipeline has filled, known to every rank; processor time of all."""
    ramp = 2  # batches that are not counted: a deep pipeline with m = n fills during two
    dist.barrier()
    used_s = busy_s()
    stamps = contestant.run(ramp + num_batches)
    used_s = busy_s() - used_s
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, stamps)
    times = next(stamps for stamps in gathered if stamps)
    return (times[-1] - times[ramp - 1]) / num_batches, used_s


def share_of(runs: list[dict[str, Any]], name: str, n: int, m: int) -> float:
    """The median share of the ideal."""
    return statistics.median(
        run["share"] for run in runs if (run["contestant"], run["n"], run["m"]) == (name, n, m)
    )


def targets_of(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures with a goal, at n = 8."""
    targets = {}

    def add(name: str, value: float, goal: float) -> None:
        targets[name] = {"value": round(value, 3), "goal": goal, "met": value >= goal}

    for schedule in SCHEDULES:
        for m in sorted({run["m"] for run in runs if run["n"] == 8}):
            share = share_of(runs, f"headrace {schedule}", 8, m)
            add(f"{schedule}_of_ideal_n8_m{m}", share, 0.97)
        gain = share_of(runs, f"headrace {schedule}", 8, 8) / share_of(runs, "torch 1F1B", 8, 8)
        add(f"{schedule}_over_torch_1f1b_n8_m8", gain, 1.8)
    return targets


def show(runs: list[dict[str, Any]]) -> None:
    """A row for each n and m: the shares of the ideal."""
    names = list(dict.fromkeys(run["contestant"] for run in runs))
    print("share of the ideal (medians)\n")
    print(f"{'n':>4}{'m':>5}" + "".join(f"{name:>27}" for name in names))
    for n, m in dict.fromkeys((run["n"], run["m"]) for run in runs):
        took_part = {run["contestant"] for run in runs if (run["n"], run["m"]) == (n, m)}
        shares = [
            f"{share_of(runs, name, n, m):27.3f}" if name in took_part else f"{'':27}"
            for name in names
        ]
        print(f"{n:4}{m:5}{''.join(shares)}")
    print()


if __name__ == "__main__":
    main()
