"""What all benchmarks share: the machine, its load, the targets, the results file and last line."""

import json
import os
import platform
import time
from argparse import ArgumentParser
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = ["busy_s", "finish", "options_of", "show_targets"]


def options_of(description: str | None, quick: str, *, limit: str = "50 s") -> ArgumentParser:
    """The options of every benchmark.

    Args:
        description: of the benchmark.
        quick: what its quick mode leaves out.
        limit: how long that takes at most.
    """
    parser = ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=f"under {limit}: {quick}")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    parser.add_argument("--rounds", type=int, help="rounds of all contestants")
    parser.add_argument("--out", type=Path, help="the results file")
    return parser


def busy_s() -> float:
    """Seconds that all processors of the machine have worked, for anyone (Linux; else 0)."""
    try:
        words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    except OSError:
        return 0.0
    user, nice, system = (int(word) for word in words[:3])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def show_targets(targets: Mapping[str, Mapping[str, Any]]) -> None:
    """The figures with a goal, a line each."""
    width = max(map(len, targets), default=0) + 2
    for name, target in targets.items():
        mark = "met" if target["met"] else "MISSED"
        value = "never" if target["value"] is None else f"{target['value']:.3f}"
        print(f"{name:{width}}{value:>8}  goal {target['goal']:.2f}  {mark}")


def finish(
    path: Path, facts: dict[str, Any], details: Mapping[str, Any], *, began_s: float, as_json: bool
) -> None:
    """Writes the results file, says where it is, and prints the last line for scripts.

    Args:
        path: the results file.
        facts: the members of the last line; how long it took is added.
        details: what only the file has; versions and machine are added.
        began_s: when the benchmark began, by time.perf_counter().
        as_json: whether scripts read the last line.
    """
    facts = facts | {"seconds": round(time.perf_counter() - began_s, 1)}
    machine = _machine() | details.get("machine", {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, **details, "machine": machine}, indent=1) + "\n")
    print(f"{facts['seconds']} s; raw results in {path}")
    if as_json:
        print(json.dumps(facts))


def _machine() -> dict[str, Any]:
    """What the figures were measured on."""
    model = "unknown"
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if "model name" in line), model)
    return {
        "processor": model,
        "num_processors": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
