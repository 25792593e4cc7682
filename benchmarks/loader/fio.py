"""The disk's own limit: fio's direct reads as long as those that headrace makes of records."""

import json
import math
import subprocess
from pathlib import Path
from typing import Any, final

import numpy as np
from records import Case

from headrace.data.direct import direct_alignment
from headrace.data.plan import Spans, plan_reads

__all__ = ["Fio"]

_FIO_SETTINGS = (
    ("io_uring", ()),
    ("io_uring", ("--fixedbufs=1", "--registerfiles=1", "--nonvectored=1")),
    ("libaio", ()),
)
FIO_NAMES = ("fio io_uring", "fio io_uring registered", "fio libaio")


def fio_rate(setting: str, path: Path, sizes: str, seconds: float) -> tuple[float, float]:
    """Direct random reads of such sizes, 128 at a time: how many a second, and us of processor."""
    engine, options = _FIO_SETTINGS[FIO_NAMES.index(setting)]
    command = [
        "fio", "--name=read", f"--filename={path}", "--readonly", "--rw=randread", "--direct=1",
        "--iodepth=128", f"--ioengine={engine}", "--norandommap", "--randrepeat=0", "--time_based",
        f"--runtime={round(seconds * 1000)}ms", "--output-format=json", *sizes.split(), *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    rate = job["read"]["iops"]
    return rate, (job["usr_cpu"] + job["sys_cpu"]) / rate * 1e4


@final
class Fio:
    """The disk's own limit: fio's direct reads as long as those that headrace makes of records."""

    def __init__(self, case: Case, folder: Path, trial_s: float) -> None:
        self._path = folder / "flat" / "records.bin"
        self.sizes = fio_sizes(case, self._path)
        self.trials = {
            name: fio_rate(name, self._path, self.sizes, trial_s)[0] for name in FIO_NAMES
        }
        self._setting = max(self.trials, key=lambda name: self.trials[name])

    def sits_out(self, number: int) -> bool:
        """Never."""
        return False

    def run(self, number: int, seconds: float, is_cold: bool) -> dict[str, Any]:
        """With the setting that read most in its trial."""
        rate, processor_us = fio_rate(self._setting, self._path, self.sizes, seconds)
        return {"contestant": "fio", "records_per_s": rate, "cpu_us": processor_us}


def fio_sizes(case: Case, path: Path) -> str:
    """fio's options for requests as long as those that headrace makes of records of any length."""
    alignment = max(512, direct_alignment(path))
    lengths = case.lengths()
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    some = np.random.default_rng(0).permutation(case.num_records)[:12_800]
    found = []
    for rows in np.array_split(some, max(1, len(some) // case.batch_size)):
        files = np.zeros(len(rows), np.int32)
        spans = Spans(files, offsets[rows], lengths[rows], np.arange(len(rows) + 1))
        found.append(plan_reads(spans, alignment=alignment).lengths)
    requests = np.concatenate(found)
    # fio takes up to 64 sizes in whole per cent: longer ones in steps, rare ones left.
    step = alignment * max(1, math.ceil((case.most - case.least) / alignment / 40))
    requests = -(-requests // step) * step
    sizes, counts = np.unique(requests[requests <= case.most + 2 * step], return_counts=True)
    percents = np.floor(counts / counts.sum() * 100).astype(int)
    largest_rests = np.argsort(percents - counts / counts.sum() * 100)
    percents[largest_rests[: 100 - percents.sum()]] += 1
    split = ":".join(f"{a}/{b}" for a, b in zip(sizes, percents, strict=True) if b)
    return f"--bssplit={split} --blockalign={alignment}"
