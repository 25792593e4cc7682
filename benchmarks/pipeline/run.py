"""How much faster two processes train than one, and than torch's own ways: see README.md."""

import argparse
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from contestants import (
    Contestant,
    DataParallel,
    Headrace,
    OneProcess,
    Torch1F1B,
    Workload,
    stage_model,
)

from headrace.pipeline.clock import Durations, span
from headrace.pipeline.graph import layers
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.profile import profile
from headrace.pipeline.schedule import make_schedule
from headrace.pipeline.strategy import FLUSH, FORECAST, SPECTRAIN

sys.path.append(str(Path(__file__).parents[1]))
from ranks import start_ranks
from reporting import busy_s, finish, options_of, show_targets

RESULTS = Path(__file__).parent / "results"
NUM_PROCESSES = 2
RAMP = 1  # batches at the start of each run that are not counted
ASYNCHRONOUS = {"async_1f1b": "", "async_eager_1f1b": "_eager"}  # schedule: how figures say it
POOL = 4  # batches of data in memory, used in turn


@dataclass(frozen=True)
class Case:
    """One comparison: everyone trains on batches of the same size."""

    name: str
    num_rows: int
    parts: int  # m of headrace and of one process
    num_batches: int  # counted in each round
    rival_parts: tuple[int, ...]  # m that Schedule1F1B may choose from, in rows of the whole batch
    data_parallel_parts: tuple[int, ...]
    is_asynchronous_paper: bool = False
    has_one_process: bool = True


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark."""

    name: str
    num_rounds: int
    cases: tuple[Case, ...]
    workload: Workload = field(default_factory=Workload)


QUICK = Plan(
    "quick",
    3,
    (
        Case("a, m=2", 512, 2, 2, (), ()),
        Case("b, m=1", 256, 1, 2, (4,), (1,), is_asynchronous_paper=True, has_one_process=False),
    ),
)
FULL = Plan(
    "full",
    5,
    (
        Case("a, m=2", 512, 2, 8, (2, 4, 8), (1, 2)),
        Case("a, m=4", 1024, 4, 4, (4, 8, 16), (1, 2, 4)),
        Case("b, m=1", 256, 1, 16, (2, 4, 8), (1, 2), is_asynchronous_paper=True),
    ),
)


def main() -> None:
    """Starts the two processes, waits, and reports."""
    parser = options_of(__doc__, "fewer rounds and rivals")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    num_rounds = options.rounds or plan.num_rounds
    if options.worker:
        work(plan, num_rounds)
        return
    began_s = time.perf_counter()
    measured = start_ranks(__file__, sys.argv[1:], NUM_PROCESSES)
    targets = targets_of(measured)
    show(measured, targets)
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "pipeline", "mode": plan.name, "targets": targets},
        {"workload": asdict(plan.workload), **measured},
        began_s=began_s,
        as_json=options.json,
    )


def work(plan: Plan, num_rounds: int) -> None:
    """One rank: trials of the rivals' m, warm-up, then the rounds."""
    torch.set_num_threads(1)
    mesh = Mesh.from_environment(NUM_PROCESSES)
    data = {case.num_rows: plan.workload.batches(case.num_rows, POOL) for case in plan.cases}
    trials: dict[str, float] = {}
    fields = [
        contestants_of(case, plan.workload, mesh, data[case.num_rows], trials)
        for case in plan.cases
    ]
    predicted = predict(plan, mesh)
    runs: list[dict[str, Any]] = []
    for number in range(num_rounds):
        for case, contestants in zip(plan.cases, fields, strict=True):
            for contestant in contestants:
                run = measure(contestant, RAMP, case.num_batches)
                runs.append(
                    {"case": case.name, "round": number, "contestant": contestant.name} | run
                )
    for contestants in fields:
        for contestant in contestants:
            contestant.close()
    if mesh.stage == 0:
        cases = [asdict(case) for case in plan.cases]
        print(json.dumps({"cases": cases, "trials": trials, "predicted": predicted, "runs": runs}))
    mesh.barrier()
    mesh.close()


def contestants_of(
    case: Case, workload: Workload, mesh: Mesh, data: Any, trials: dict[str, float]
) -> list[Contestant]:
    """Who takes part in a case, warmed up; each rival with the m that won its trial."""
    strategies = (
        [(SPECTRAIN, schedule) for schedule in ASYNCHRONOUS]
        if case.is_asynchronous_paper
        else [*((FORECAST, schedule) for schedule in ASYNCHRONOUS), (FLUSH, "one_f_one_b")]
    )
    ours: list[Contestant] = []
    if case.has_one_process:
        ours.append(OneProcess(workload, mesh, data, case.parts))
    ours += [Headrace(workload, mesh, data, case.parts, *choice) for choice in strategies]
    for contestant in ours:
        contestant.run(2)
    for make, choices in ((Torch1F1B, case.rival_parts), (DataParallel, case.data_parallel_parts)):
        candidates: list[tuple[float, Contestant]] = []
        for parts in choices:
            rival = make(workload, mesh, data, parts)
            if len(choices) == 1:
                rival.run(1)
                candidates.append((0.0, rival))
                continue
            seconds = measure(rival, 1, max(2, case.num_batches // 2))["batch_s"]
            trials[f"{case.name}: {rival.name}"] = seconds
            candidates.append((seconds, rival))
        ours += [min(candidates, key=lambda candidate: candidate[0])[1]] if candidates else []
    return ours


def measure(contestant: Contestant, ramp: int, num_batches: int) -> dict[str, Any]:
    """One run: seconds a batch behind the ramp and with all, the losses, what others computed.

    The numbers are the same in every rank.
    """
    dist.barrier()
    began_s, own_s, all_s = time.perf_counter(), time.process_time(), busy_s()
    stamps = contestant.run(ramp + num_batches)
    own_s = time.process_time() - own_s
    dist.barrier()
    all_s = busy_s() - all_s
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (began_s, stamps, own_s))
    reports = [(start, found) for start, found, _ in gathered if found]
    start, found = reports[-1]
    times = [moment for moment, _ in found]
    losses = [[loss for _, loss in stamps] for _, stamps in reports]
    return {
        "batch_s": (times[-1] - times[ramp - 1]) / num_batches,
        "batch_with_ramp_s": (times[-1] - start) / len(times),
        "first_loss": statistics.fmean(loss[0] for loss in losses),
        "last_loss": statistics.fmean(loss[-1] for loss in losses),
        "cpu_s_a_batch": [round(cpu / len(times), 4) for _, _, cpu in gathered],
        "others_cpu_s": round(max(0.0, all_s - sum(cpu for _, _, cpu in gathered)), 2),
    }


def predict(plan: Plan, mesh: Mesh) -> dict[str, Any]:
    """The clock's ratios of a draining 1F1B to the others, from the measured times of the stages.

    Both ranks measure at once, as both compute at once later.
    """
    cases = [case for case in plan.cases if not case.is_asynchronous_paper]
    if not cases:
        return {}
    model = stage_model(plan.workload, mesh.stage, NUM_PROCESSES)
    num_rows = cases[0].num_rows // cases[0].parts
    inputs, targets = plan.workload.batches(num_rows, 1)[0]
    is_last = mesh.stage == NUM_PROCESSES - 1
    loss = torch.nn.functional.cross_entropy if is_last else None
    mesh.barrier()
    costs = profile(layers(model), inputs, loss=loss, targets=targets, repeats=7)
    own = (
        sum(cost.forward_s for cost in costs),
        sum(cost.backward_s for cost in costs),
        update_s(plan.workload, model),
    )
    everyone: list[Any] = [None] * NUM_PROCESSES
    dist.all_gather_object(everyone, own)
    forward, backward, update = zip(*everyone, strict=True)
    durations = Durations(forward, backward, update)
    ratios = {
        case.name: {
            schedule: batch_span("one_f_one_b", case.parts, durations)
            / batch_span(schedule, case.parts, durations)
            for schedule in ASYNCHRONOUS
        }
        for case in cases
    }
    return {"durations_s": asdict(durations), "ratios": ratios}


def update_s(workload: Workload, model: torch.nn.Module) -> float:
    """The median time of one optimizer step."""
    optimizer = workload.optimizer(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) * 1e-9
    times = []
    for _ in range(7):
        began_s = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - began_s)
    return statistics.median(times)


def batch_span(name: str, parts: int, durations: Durations) -> float:
    """Seconds a batch in the steady state: what each further batch adds."""
    short, long = (make_schedule(name, NUM_PROCESSES, parts, count) for count in (10, 20))
    return (span(long, durations) - span(short, durations)) / 10


def targets_of(measured: dict[str, Any]) -> dict[str, Any]:
    """The figures with a goal: medians, over the rounds, of the ratio within a round."""
    targets = {}

    def add(name: str, value: float | None, goal: float) -> None:
        if value is not None:
            targets[name] = {"value": round(value, 3), "goal": goal, "met": value >= goal}

    for case in measured["cases"]:
        name, parts = case["name"], case["parts"]
        ratio = partial(ratio_of, measured, name)
        for schedule, said in ASYNCHRONOUS.items():
            if case["is_asynchronous_paper"]:
                ours = f"headrace SPECTRAIN {schedule},"
                add(f"spectrain{said}_over_torch_1f1b", ratio("torch Schedule1F1B", ours), 1.6)
                add(f"spectrain{said}_over_torch_ddp", ratio("torch DDP", ours), 1.6)
                continue
            ours = f"headrace FORECAST {schedule},"
            key = f"forecast{said}_m{parts}_over"
            add(f"{key}_one_process", ratio("one process", ours), 1.85)
            gain = ratio("headrace FLUSH", ours)
            predicted = measured["predicted"]["ratios"][name][schedule]
            add(f"{key}_draining_of_predicted", gain and gain / predicted, 0.95)
    return targets


def ratio_of(measured: dict[str, Any], case: str, slow: str, fast: str) -> float | None:
    """How often the time of `fast` goes into that of `slow`; None where one did not take part."""
    times = [seconds_of(measured, case, name) for name in (slow, fast)]
    if not all(times):
        return None
    return statistics.median(one / other for one, other in zip(*times, strict=True))


def seconds_of(measured: dict[str, Any], case: str, name: str) -> list[float]:
    """Seconds a batch of the contestant whose name starts so, round by round."""
    return [
        run["batch_s"]
        for run in measured["runs"]
        if run["case"] == case and run["contestant"].startswith(name)
    ]


def show(measured: dict[str, Any], targets: dict[str, Any]) -> None:
    """Two tables: the times of all, and the figures with a goal."""
    for case in measured["cases"]:
        print(f"\n({case['name']}) batches of {case['num_rows']} rows")
        heads = f"{'least':>8}{'most':>8}{'rows/s':>9}{'with ramp':>11}{'last loss':>11}"
        print(f"{'':40}{'s a batch':>10}{heads}")
        names = dict.fromkeys(
            run["contestant"] for run in measured["runs"] if run["case"] == case["name"]
        )
        for name in names:
            runs = [
                run
                for run in measured["runs"]
                if run["case"] == case["name"] and run["contestant"] == name
            ]
            times = [run["batch_s"] for run in runs]
            middle = statistics.median(times)
            ramp = statistics.median(run["batch_with_ramp_s"] for run in runs)
            print(
                f"{name:40}{middle:10.3f}{min(times):8.3f}{max(times):8.3f}"
                f"{case['num_rows'] / middle:9.0f}{ramp:11.3f}{runs[-1]['last_loss']:11.4f}"
            )
    for name, seconds in measured["trials"].items():
        print(f"trial of {name}: {seconds:.3f} s a batch")
    if measured["predicted"]:
        print(f"\nthe clock predicts {measured['predicted']['ratios']}")
    others_s = sum(run["others_cpu_s"] for run in measured["runs"])
    print(
        f"other programs used {others_s:.1f} s of processor time while these runs were measured\n"
    )
    show_targets(targets)


if __name__ == "__main__":
    main()
