"""How fast batches come in random order, from headrace and from others: see README.md."""

import importlib.metadata
import importlib.util
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from contestants import CONTESTANTS, Contestant
from fio import Fio
from records import WRITERS, Case, files_of, write
from server import Server

import headrace
from headrace.data.formats import FORMATS

sys.path.append(str(Path(__file__).parents[1]))
from reporting import finish, options_of, show_targets

RESULTS = Path(__file__).parent / "results"
CASES = (
    Case("0.3 KB", 200, 400, 1_500_000, 256, 320 << 20),
    Case("8 KB", 4096, 12288, 131_072, 256, 512 << 20),
    Case("110 KB", 56_320, 168_960, 12_000, 64, 640 << 20),
)
OURS_BY_PREFERENCE = ("headrace tar", "headrace tfrecord", "headrace lines")


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark."""

    name: str
    num_rounds: int
    cold_s: float
    warm_s: float
    trial_s: float  # of each setting of fio
    cases: tuple[Case, ...]
    is_quick: bool


FULL = Plan("full", 3, 2.0, 1.0, 1.5, CASES, False)
QUICK = Plan(
    "quick",
    1,
    0.5,
    0.4,
    0.4,
    (
        replace(CASES[1], num_records=40_000, limit_bytes=256 << 20),
        replace(CASES[2], num_records=4_400, limit_bytes=380 << 20),
    ),
    True,
)


def main() -> None:
    """Writes the files, measures, and reports."""
    parser = options_of(__doc__, "two sizes of records, small files, few rivals")
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed")
    parser.add_argument("--case", choices=[case.name for case in CASES], help="only this one")
    parser.add_argument("--only", nargs="+", default=(), help="only contestants named so")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    plan = replace(
        plan,
        num_rounds=options.rounds or plan.num_rounds,
        cases=tuple(case for case in plan.cases if options.case in (None, case.name)),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # what is under way is undone
    if shutil.which("fio") is None:
        sys.exit("fio is not installed, and it measures the disk's limit; apt-get install fio")
    began_s = time.perf_counter()
    field, absent = taking_part(plan, options.only)
    measured: dict[str, Any] = {"absent": absent, "cases": {}, "runs": []}
    with tempfile.TemporaryDirectory(prefix="headrace-loader-", dir=options.folder) as folder:
        for case in plan.cases:
            facts, runs = measure(case, plan, field, Path(folder) / case.name.replace(" ", "-"))
            measured["cases"][case.name] = facts
            measured["runs"] += runs
    targets = targets_of(measured, plan)
    show(measured, plan, field)
    show_targets(targets)
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "loader", "mode": plan.name, "targets": targets},
        {"machine": versions(), "plan": asdict(plan), **measured},
        began_s=began_s,
        as_json=options.json,
    )


def taking_part(plan: Plan, only: Sequence[str]) -> tuple[list[Contestant], dict[str, str]]:
    """Those who can, and why the others cannot."""
    field, absent = [], {}
    for one in CONTESTANTS:
        missing = [name for name in one.needs if importlib.util.find_spec(name) is None]
        if not one.is_rival and one.format not in FORMATS:
            absent[one.name] = f"headrace has no format {one.format!r} yet"
        elif missing:
            absent[one.name] = f"not installed: {', '.join(missing)}"
        elif (plan.is_quick and not one.is_quick) or (only and one.name not in only):
            continue
        else:
            field.append(one)
    if plan.is_quick and not any(one.name in OURS_BY_PREFERENCE for one in field):
        field.insert(0, next(one for one in CONTESTANTS if one.name == OURS_BY_PREFERENCE[-1]))
    for name, reason in absent.items():
        say(f"without {name}: {reason}")
    return field, absent


def measure(
    case: Case, plan: Plan, field: Sequence[Contestant], folder: Path
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """All rounds of one size of records: cold, then warm."""
    formats = [name for name in WRITERS if name == "flat" or name in {one.format for one in field}]
    facts: dict[str, Any] = {"write_s": {}, "mib": {}, "checks": {}, "refusals": {}}
    for format in formats:
        facts["write_s"][format] = write(case, format, folder)
        facts["mib"][format] = sum(path.stat().st_size for path in files_of(folder, format)) >> 20
        say(f"{case.name}: wrote {format} in {facts['write_s'][format]:.1f} s")
    os.sync()
    fio = Fio(case, folder, plan.trial_s)
    facts["fio_trials"] = fio.trials
    facts["fio_sizes"] = fio.sizes
    runs: list[dict[str, Any]] = []
    servers = {one.name: Server(one, case, folder) for one in field}
    try:
        for server in servers.values():
            facts["checks"][server.contestant.name] = server.checked(facts["refusals"])
            say(f"{server.contestant.name:26}{facts['checks'][server.contestant.name]}")
        for refusal in set(facts["refusals"].values()):
            say(refusal)
        for is_cold in (True, False):
            for number in range(plan.num_rounds):
                seconds = plan.cold_s if is_cold else plan.warm_s
                entries: list[Fio | Server] = [*servers.values(), *([fio] if is_cold else [])]
                entries = [one for one in entries if not one.sits_out(number)]
                # To and fro, so that a disk that tires or recovers favours nobody.
                for one in entries[:: 1 if number % 2 == 0 else -1]:
                    run = one.run(number, seconds, is_cold)
                    runs.append({"case": case.name, "is_cold": is_cold, "round": number} | run)
                    say(line_of(run))
    finally:
        for server in servers.values():
            server.close()
        shutil.rmtree(folder, ignore_errors=True)
    return facts, runs


def line_of(run: dict[str, Any]) -> str:
    """A run, for those who wait."""
    if "failure" in run:
        return f"{run['contestant']:26}{run['failure']}"
    resident = f", {run['resident_mib']} MiB in memory before" if "resident_mib" in run else ""
    rate, cost = run["records_per_s"], run["cpu_us"]
    return f"{run['contestant']:26}{rate:9.0f} records/s{cost:9.1f} us{resident}"


def values(
    runs: Sequence[dict[str, Any]], case: Case, name: str, key: str, is_cold: bool
) -> list[float]:
    """A figure of a contestant, round by round."""
    return [
        run[key]
        for run in runs
        if (run["case"], run["contestant"], run["is_cold"]) == (case.name, name, is_cold)
        and key in run
    ]


def ratio(
    runs: Sequence[dict[str, Any]], case: Case, ours: str, other: str, key: str, is_cold: bool
) -> float | None:
    """The median over the rounds of our figure over another's in the same round."""
    pairs = zip(
        values(runs, case, ours, key, is_cold),
        values(runs, case, other, key, is_cold),
        strict=False,  # a side entry has one round
    )
    ratios = [one / another for one, another in pairs]
    return statistics.median(ratios) if ratios else None


def best_rival(runs: Sequence[dict[str, Any]], case: Case, key: str, is_cold: bool) -> str | None:
    """Of the rivals with a global shuffle of records of any length, the fastest or the cheapest."""
    pick = max if key == "records_per_s" else min
    medians = {
        one.name: statistics.median(found)
        for one in CONTESTANTS
        if one.is_rival and one.is_global and not one.is_fixed
        if (found := values(runs, case, one.name, key, is_cold))
    }
    return pick(medians, key=lambda name: medians[name]) if medians else None


def targets_of(measured: dict[str, Any], plan: Plan) -> dict[str, Any]:
    """The figures with a goal: medians over the rounds; ratios are taken within a round."""
    runs = measured["runs"]
    targets: dict[str, Any] = {}

    def note(name: str, value: float | None, goal: float, is_least: bool, against: str) -> None:
        if value is not None:
            is_met = value >= goal if is_least else value < goal
            targets[name] = {
                "value": round(value, 3), "goal": goal, "met": is_met, "against": against
            }  # fmt: skip

    for case in plan.cases:
        label = case.name.replace(" ", "_").lower()
        ours = next(
            (name for name in OURS_BY_PREFERENCE if values(runs, case, name, "cpu_us", True)), None
        )
        if ours is None:
            continue
        if case.most > 4096:
            against = ratio(runs, case, ours, "fio", "records_per_s", True)
            note(f"cold_over_fio_{label}", against, 0.95, True, f"{ours} / fio")
        for is_cold in (True, False):
            temperature = "cold" if is_cold else "warm"
            rival = best_rival(runs, case, "records_per_s", is_cold)
            if rival is None:
                continue
            against = ratio(runs, case, ours, rival, "records_per_s", is_cold)
            goal = 2.2 if is_cold else 2.0
            name = f"{temperature}_over_best_rival_{label}"
            note(name, against, goal, True, f"{ours} / {rival}")
            rival = best_rival(runs, case, "cpu_us", is_cold) or rival
            against = ratio(runs, case, ours, rival, "cpu_us", is_cold)
            name = f"{temperature}_cpu_over_cheapest_rival_{label}"
            note(name, against, 1.0, False, f"{ours} / {rival}")
        gather = "np.memmap[indices]"
        against = ratio(runs, case, "headrace npy", gather, "records_per_s", False)
        note(f"warm_npy_over_numpy_{label}", against, 0.9, True, f"headrace npy / {gather}")
    return targets


def show(measured: dict[str, Any], plan: Plan, field: Sequence[Contestant]) -> None:
    """Tables of all."""
    runs = measured["runs"]
    for case in plan.cases:
        facts = measured["cases"][case.name]
        print(f"\n{case.name}: {case.num_records} records, limit {case.limit_bytes >> 20} MiB")
        print(f"{'':26}{'cold/s':>9}{'CPU s/1000':>12}{'warm/s':>10}{'CPU s/1000':>12}"
              f"{'reach':>7}{'written':>10}")  # fmt: skip
        for name in ["fio", *(one.name for one in field)]:
            cells = ""
            for is_cold in (True, False):
                rates = values(runs, case, name, "records_per_s", is_cold)
                costs = values(runs, case, name, "cpu_us", is_cold)
                width = 9 if is_cold else 10
                cells += (
                    f"{statistics.median(rates):{width}.0f}" if rates else " " * (width - 1) + "-"
                )
                cells += f"{statistics.median(costs) / 1000:12.4f}" if costs else f"{'-':>12}"
            reach = facts["checks"].get(name, {}).get("reach", math.nan)
            format = next((one.format for one in field if one.name == name), "")
            written = f"{facts['write_s'][format]:8.1f} s" if format else ""
            print(f"{name:26}{cells}{reach:7.2f}{written:>10}")
    for one in field:
        if one.note:
            print(f"not a global shuffle: {one.name}: {one.note}")
    for name, reason in measured["absent"].items():
        print(f"without {name}: {reason}")
    others_s = sum(run.get("others_cpu_s", 0.0) for run in runs)
    print(f"other programs used {others_s:.1f} s of processor time meanwhile\n")


def versions() -> dict[str, str]:
    """Of what takes part."""
    fio = subprocess.run(["fio", "--version"], capture_output=True, text=True)
    found = {"headrace": headrace.__version__, "fio": fio.stdout.strip()}
    for name in ("numpy", "array_record", "grain", "pylance", "datasets", "pyarrow", "litdata",
                 "mosaicml-streaming", "webdataset"):  # fmt: skip
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def say(text: str) -> None:
    """Progress, where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
