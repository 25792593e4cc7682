"""How near random reads come to the disk's own limit, and at what cost: see README.md."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from contestants import (
    BATCH,
    BATCHES_AHEAD,
    QUEUE_DEPTH,
    Case,
    Contestant,
    Fio,
    Headrace,
    MemoryMap,
    TorchLoader,
    fio_sizes,
    make_file,
)

from headrace.data.direct import direct_alignment

sys.path.append(str(Path(__file__).parents[1]))
from reporting import busy_s, finish, options_of, show_targets

RESULTS = Path(__file__).parent / "results"
CASES = (Case("4 KiB", 4096, 4096), Case("4-12 KiB", 4096, 12288))
FIO_SETTINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("io_uring", ()),
    ("io_uring", ("--fixedbufs=1", "--registerfiles=1", "--nonvectored=1")),
    ("libaio", ()),
)


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark."""

    name: str
    file_gib: int
    num_rounds: int
    seconds: float  # of each run
    trial_s: float  # of each setting of fio
    num_rival_rounds: int


QUICK = Plan("quick", 1, 3, 1.2, 0.6, 1)
FULL = Plan("full", 8, 7, 4.0, 3.0, 3)


def main() -> None:
    """Makes the file, measures, and reports."""
    parser = options_of(__doc__, "small file, short runs")
    parser.add_argument("--folder", type=Path, help="where the data file is made, and kept")
    parser.add_argument("--seconds", type=float, help="length of each run")
    parser.add_argument("--gib", type=int, help="size of the data file")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    plan = Plan(
        plan.name,
        options.gib or plan.file_gib,
        options.rounds or plan.num_rounds,
        options.seconds or plan.seconds,
        plan.trial_s,
        plan.num_rival_rounds,
    )
    if shutil.which("fio") is None:
        sys.exit("fio is not installed, and it measures the disk's limit; apt-get install fio")
    began_s = time.perf_counter()
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
        measured = measure(plan, options.folder)
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-read-") as folder:
            measured = measure(plan, Path(folder))
    targets = targets_of(measured["runs"])
    show(measured, targets)
    setting = {"batch": BATCH, "batches_ahead": BATCHES_AHEAD, "queue_depth": QUEUE_DEPTH}
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "read", "mode": plan.name, "targets": targets},
        {"machine": versions(), "plan": asdict(plan), "setting": setting, **measured},
        began_s=began_s,
        as_json=options.json,
    )


def measure(plan: Plan, folder: Path) -> dict[str, Any]:
    """Trials of fio's settings, then the rounds, each of all contestants in turn."""
    path, file_bytes = folder / f"records-{plan.file_gib}.bin", plan.file_gib << 30
    make_file(path, file_bytes, say)
    alignment = max(512, direct_alignment(path))
    trials: dict[str, float] = {}
    fields: list[tuple[Case, list[Contestant], list[Contestant]]] = []
    for case in CASES:
        batches = case.batches(file_bytes, 1)
        best = best_fio(case, path, fio_sizes(case, file_bytes, alignment), plan, trials)
        ours: list[Contestant] = [best, Headrace(path, "uring", batches)]
        rivals: list[Contestant] = []
        if case.least == case.most:
            ours.append(Headrace(path, "threads", batches))
            # One batch of the mapping that is not advised reads about 1 GiB ahead.
            rivals = [MemoryMap(path, batches, is_advised=False)] if plan.file_gib >= 8 else []
            rivals += [MemoryMap(path, batches, is_advised=True), TorchLoader(path, batches)]
        fields.append((case, ours, rivals))
    runs: list[dict[str, Any]] = []
    for number in range(plan.num_rounds):
        for case, ours, rivals in fields:
            # To and fro, so that a disk that tires or recovers favours nobody.
            contestants = ours[:: 1 if number % 2 == 0 else -1]
            contestants += rivals if number < plan.num_rival_rounds else []
            for contestant in contestants:
                runs.append({"case": case.name, "round": number} | one(contestant, plan.seconds))
    return {
        "alignment": alignment,
        "read_ahead_kib": read_ahead_kib(path),
        "trials": trials,
        "runs": runs,
    }


def read_ahead_kib(path: Path) -> int | None:
    """How far the kernel reads ahead on the file's disk, which decides what a mapping costs."""
    number = path.stat().st_dev
    setting = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/queue/read_ahead_kb")
    return int(setting.read_text()) if setting.exists() else None


def best_fio(
    case: Case, path: Path, sizes: str, plan: Plan, trials: dict[str, float]
) -> Contestant:
    """fio with the setting that read most in its trial."""
    candidates = [Fio(path, engine, options, sizes) for engine, options in FIO_SETTINGS]
    rates = [candidate.run(plan.trial_s).records_per_s for candidate in candidates]
    trials |= {
        f"{case.name}: {candidate.name}": rate
        for candidate, rate in zip(candidates, rates, strict=True)
    }
    return max(zip(rates, candidates, strict=True), key=lambda pair: pair[0])[1]


def one(contestant: Contestant, seconds: float) -> dict[str, Any]:
    """One run, and how much the rest of the machine worked meanwhile."""
    own_s, all_s = own_busy_s(), busy_s()
    run = contestant.run(seconds)
    others_s = busy_s() - all_s - (own_busy_s() - own_s)
    say(f"{contestant.name:24}{run.records_per_s:9.0f} records/s")
    return {"contestant": contestant.name} | asdict(run) | {"others_cpu_s": max(0.0, others_s)}


def own_busy_s() -> float:
    """Seconds of processor time of this process and the children that have ended."""
    return sum(os.times()[:4])


def targets_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures with a goal: medians over the rounds; ratios are taken within a round."""
    uring = values(runs, "4 KiB", "headrace uring", "user_us", "system_us")
    figures = {
        "uring_over_fio_4k": (ratio_to_fio(runs, "4 KiB", "headrace uring"), 0.95),
        "uring_over_fio_4k_12k": (ratio_to_fio(runs, "4-12 KiB", "headrace uring"), 0.95),
        "threads_over_fio_4k": (ratio_to_fio(runs, "4 KiB", "headrace threads"), 0.6),
    }
    targets = {
        name: {"value": round(value, 3), "goal": goal, "met": value >= goal}
        for name, (value, goal) in figures.items()
    }
    cost_us = statistics.median(uring)
    targets["cpu_us_per_record_4k"] = {
        "value": round(cost_us, 2),
        "goal": 3.0,
        "met": cost_us < 3.0,
    }
    return targets


def ratio_to_fio(runs: Sequence[dict[str, Any]], case: str, name: str) -> float:
    """The median over the rounds of the rate over fio's in the same round."""
    ours = values(runs, case, name, "records_per_s")
    fios = values(runs, case, "fio", "records_per_s")
    return statistics.median(one / other for one, other in zip(ours, fios, strict=True))


def values(runs: Sequence[dict[str, Any]], case: str, name: str, *keys: str) -> list[float]:
    """A figure of the contestant whose name starts so, round by round; several keys are added."""
    return [
        sum(run[key] for key in keys)
        for run in runs
        if run["case"] == case and run["contestant"].startswith(name)
    ]


def show(measured: dict[str, Any], targets: dict[str, Any]) -> None:
    """A table of all, and the figures with a goal."""
    runs = measured["runs"]
    for case in CASES:
        print(
            f"\n{case.name}{'records/s':>28}{'least':>9}{'most':>9}{'user us':>9}{'system us':>11}"
        )
        for name in dict.fromkeys(run["contestant"] for run in runs if run["case"] == case.name):
            rates = values(runs, case.name, name, "records_per_s")
            user, system = (
                statistics.median(values(runs, case.name, name, key))
                for key in ("user_us", "system_us")
            )
            print(
                f"{name:24}{statistics.median(rates):12.0f}{min(rates):9.0f}{max(rates):9.0f}"
                f"{user:9.2f}{system:11.2f}"
            )
    for name, rate in measured["trials"].items():
        print(f"trial of {name}: {rate:.0f} reads/s")
    others_s = sum(run["others_cpu_s"] for run in runs)
    print(f"other programs used {others_s:.1f} s of processor time meanwhile\n")
    show_targets(targets)


def versions() -> dict[str, str]:
    """Of what only this benchmark uses."""
    fio = subprocess.run(["fio", "--version"], capture_output=True, text=True)
    return {"numpy": np.__version__, "fio": fio.stdout.strip()}


def say(text: str) -> None:
    """Progress, where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
