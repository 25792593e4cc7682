"""What a truly random order gains over a shuffle queue, blocks and pages: see README.md."""

import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

import numpy as np
import torch
from contestants import CONTESTANTS, Contestant
from figures import FIXED, comparisons, figures_of, targets_of
from reporting import busy_s, finish, options_of, show_targets
from sources import BATCH, Source
from stored import LAYOUTS, PIECE_RECORDS, RECORD_BYTES, Rows, rows_of, write_layout
from training import EVALUATIONS, LEARNING_RATE, MOMENTUM, Training, read_alone, tensors_of

from headrace.data.direct import direct_alignment

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark."""

    name: str
    num_seeds: int
    num_epochs: int


QUICK = Plan("quick", 1, 3)
FULL = Plan("full", 3, 12)


@dataclass
class Entry:
    """One contestant on one layout, with one seed."""

    contestant: Contestant
    layout: str
    seed: int
    source: Source
    training: Training
    storage: dict[str, Any]


def main() -> None:
    """Writes the layouts, trains, and reports."""
    parser = options_of(__doc__, "one seed, 3 epochs", limit="3 minutes")
    parser.add_argument("--folder", type=Path, help="where the files are made, and removed")
    parser.add_argument("--epochs", type=int, help="epochs of each training")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    plan = Plan(plan.name, options.rounds or plan.num_seeds, options.epochs or plan.num_epochs)
    began_s, all_s, own_s = time.perf_counter(), busy_s(), time.process_time()
    torch.set_num_threads(1)  # computing has one processor; reading uses another
    with tempfile.TemporaryDirectory(prefix="headrace-shuffle-", dir=options.folder) as folder:
        alignment = direct_alignment_of(Path(folder))
        runs = measure(plan, Path(folder))
    others_s = busy_s() - all_s - (time.process_time() - own_s)
    targets = targets_of(runs)
    show(runs)
    print(f"other programs used {max(0.0, others_s):.1f} s of processor time meanwhile\n")
    show_targets(targets)
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "shuffle", "mode": plan.name, "targets": targets},
        {
            "command": " ".join(["python", "benchmarks/shuffle/run.py", *sys.argv[1:]]),
            "machine": {"numpy": np.__version__},
            "plan": asdict(plan),
            "setting": {
                "batch": BATCH,
                "record_bytes": RECORD_BYTES,
                "piece_records": PIECE_RECORDS,
                "learning_rate": LEARNING_RATE,
                "momentum": MOMENTUM,
                "evaluations_an_epoch": EVALUATIONS,
                "torch_threads": torch.get_num_threads(),
                "direct_alignment": alignment,
            },
            "others_cpu_s": others_s,
            "figures": figures_of(runs),
            "comparisons": {layout: comparisons(runs, layout) for layout in LAYOUTS},
            "runs": runs,
        },
        began_s=began_s,
        as_json=options.json,
    )


def direct_alignment_of(folder: Path) -> int:
    """What direct reads want in this folder; an end where there are none, as nothing were cold."""
    path = folder / "probe"
    path.write_bytes(bytes(4096))
    alignment = direct_alignment(path)
    if not alignment:
        sys.exit(f"{folder} is on a file system without direct reads: name another by --folder")
    return alignment


def measure(plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """All seeds, one after another; within a seed an epoch of everyone, then the next."""
    train, test = rows_of("train"), tensors_of(rows_of("t10k"))
    paths = {layout: folder / f"{layout.split()[0]}.npy" for layout in LAYOUTS}
    laid_out = {layout: write_layout(train, layout, path) for layout, path in paths.items()}
    for one in CONTESTANTS[0], CONTESTANTS[-1]:  # compiles, and opens what is opened once
        read_alone(one.prepare(paths[LAYOUTS[0]], 0), laid_out[LAYOUTS[0]])
    runs: list[dict[str, Any]] = []
    for seed in range(plan.num_seeds):
        entries = []
        for layout in LAYOUTS:
            for contestant in CONTESTANTS:
                if layout in contestant.layouts:
                    source = contestant.prepare(paths[layout], seed)
                    training = Training(source, test, seed, plan.num_epochs)
                    storage = read_of(source, laid_out[layout], f"{contestant.name}, {layout}")
                    entries.append(Entry(contestant, layout, seed, source, training, storage))
        for epoch in range(plan.num_epochs):
            # To and fro, so that a machine that tires or recovers favours nobody.
            for entry in entries[:: 1 if (seed + epoch) % 2 == 0 else -1]:
                entry.training.epoch()
                say_epoch(entry)
        runs += [run_of(entry) for entry in entries]
        for entry in entries:
            if entry.source.path not in paths.values():
                entry.source.path.unlink()
    return runs


def read_of(source: Source, laid_out: Rows, name: str) -> dict[str, Any]:
    """Reading alone; an end if the records are not those of the order."""
    storage = read_alone(source, laid_out)
    if not storage.is_right:
        sys.exit(f"{name}: the records read are not those of its order")
    rate = len(laid_out) / storage.seconds
    say(f"{name:48}{storage.seconds:7.3f} s an epoch, {rate:8.0f} records/s; right")
    return asdict(storage)


def run_of(entry: Entry) -> dict[str, Any]:
    """What the results file has of one training."""
    return {
        "layout": entry.layout,
        "contestant": entry.contestant.name,
        "seed": entry.seed,
        "setup_s": entry.source.setup_s,
        "storage": entry.storage,
        "epochs": [asdict(epoch) for epoch in entry.training.epochs],
    }


def say_epoch(entry: Entry) -> None:
    """The epoch that has just ended, for those who wait."""
    epoch, number = entry.training.epochs[-1], len(entry.training.epochs)
    accuracies = " ".join(f"{accuracy:5.2f}" for accuracy in epoch.accuracies)
    say(
        f"seed {entry.seed}, epoch {number:2}, {entry.layout:16}{entry.contestant.name:30}"
        f"{epoch.seconds:6.2f} s, waited {epoch.waited_s:5.2f} s, {accuracies} %"
    )


def show(runs: Sequence[dict[str, Any]]) -> None:
    """The tables of the README."""
    rows = figures_of(runs)
    for layout in LAYOUTS:
        found = comparisons(runs, layout)
        print(f"\n| {layout} | accuracy % | written s | read s | epoch s | less time % | points |")
        print("| --- " * 7 + "|")
        for row in rows:
            if row["layout"] == layout:
                print(f"| {' | '.join(cells_of(row, found.get(row['contestant'])))} |")
    print(f"\n| seconds to | {' % | '.join(f'{accuracy:.0f}' for accuracy in FIXED)} % |")
    print("| --- " * (1 + len(FIXED)) + "|")
    for row in rows:
        times = [median_or_never(row["seconds_to"][str(accuracy)]) for accuracy in FIXED]
        print(f"| {row['contestant']}, {row['layout']} | {' | '.join(times)} |")
    print()


def cells_of(row: dict[str, Any], found: dict[str, Any] | None) -> list[str]:
    """A contestant's row; found is what RandomOrder gains over it, None for RandomOrder."""
    accuracies = (
        f"{np.mean(row['reached']):.2f} ({min(row['reached']):.2f}-{max(row['reached']):.2f})"
    )
    times = [f"{row[key]:.2f}" for key in ("setup_s", "storage_s", "epoch_s")]
    gains = ["", ""]
    if found:
        less = found["median_less_time"]
        gains = ["never" if less is None else f"{less:.1f}", f"{found['mean_points']:.2f}"]
    return [row["contestant"], accuracies, *times, *gains]


def median_or_never(times: Sequence[float | None]) -> str:
    """The median over the seeds; how many have come that far, where not all have."""
    reached = [at_s for at_s in times if at_s is not None]
    if len(reached) == len(times):
        return f"{np.median(reached):.1f}"
    return f"never in {len(times) - len(reached)} of {len(times)}"


def say(text: str) -> None:
    """Progress, where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
