"""What a contestant's process does: it answers requests, a line of JSON each, with such lines.

Called as ``serve.py NAME CASE FOLDER``: of a contestant, the case as JSON, its files.
"""

import gc
import json
import math
import os
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cold import forget, processor_s, resident_bytes
from contestants import CONTESTANTS, Contestant, Task, rows_of
from records import Case, check, files_of

FIRST_BATCHES = 8  # before the clock starts: workers are up, queues are full
LARGEST_PART = 0.9  # of an epoch: the clock stops before the queues run empty


def main() -> None:
    """Reads a first batch, says so, and serves until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(facts: dict[str, Any]) -> None:
        print(json.dumps(facts), file=answers, flush=True)

    name, case_text, folder = sys.argv[1:]
    contestant = next(one for one in CONTESTANTS if one.name == name)
    case = Case(**json.loads(case_text))
    try:
        began_s = time.perf_counter()
        batches = contestant.batches(Task(case, Path(folder), 0, False))
        next(batches)
        end(batches)
        del batches
        gc.collect()
        # Its modules are in memory, headrace's index beside the files.
        answer({"ready_s": round(time.perf_counter() - began_s, 3)})
        for line in sys.stdin:
            what, epoch, seconds, is_cold = json.loads(line)
            task = Task(case, Path(folder), epoch, is_cold)
            function = checked if what == "check" else timed
            answer(function(contestant, task, seconds))
    except Exception:
        answer({"failure": traceback.format_exc(limit=-2)})


def end(batches: Iterator[Any]) -> None:
    """Ends a loader's threads and workers."""
    if hasattr(batches, "close"):
        batches.close()


def checked(contestant: Contestant, task: Task, seconds: float) -> dict[str, Any]:
    """Every record that comes within that time: its bytes, and whether it came before.

    How far batches reach: the standard deviation of the numbers in a batch, over that of all.
    """
    compare = check(task.case)
    numbers: list[int] = []
    reaches = []
    batches = contestant.batches(task)
    ends_s = None
    for batch in batches:
        some = [compare(row, contestant.is_fixed) for row in rows_of(batch)]
        numbers += some
        reaches.append(float(np.std(some)) / (task.case.num_records / math.sqrt(12)))
        ends_s = ends_s or time.perf_counter() + seconds
        if time.perf_counter() > ends_s:
            break
    end(batches)
    del batches, batch
    gc.collect()
    if len(set(numbers)) < len(numbers):
        repeated = len(numbers) - len(set(numbers))
        raise ValueError(f"{repeated} of {len(numbers)} records came twice in an epoch")
    return {"checked": len(numbers), "reach": round(statistics.mean(reaches), 3)}


def timed(contestant: Contestant, task: Task, seconds: float) -> dict[str, Any]:
    """Batches for so long, or until most of the epoch is over."""
    all_began_s = sum(processor_s())
    files = files_of(task.folder.parent, task.folder.name)
    dropped, resident = forget(files) if task.is_cold else None, resident_bytes(files)
    batches = contestant.batches(task)
    num_batches = math.ceil(task.case.num_records / task.case.batch_size)
    first, began_s = 0, time.perf_counter()
    while first < min(FIRST_BATCHES, num_batches // 8):
        next(batches)
        first += 1
        if time.perf_counter() - began_s > seconds:
            break
    left = int(num_batches * LARGEST_PART) - first
    num_records, before, began_s = 0, processor_s(), time.perf_counter()
    for batch in batches:
        num_records += len(batch)
        left -= 1
        if not left or time.perf_counter() - began_s >= seconds:
            break
    took_s, after = time.perf_counter() - began_s, processor_s()
    end(batches)
    del batches, batch
    gc.collect()
    user, system = (later - earlier for later, earlier in zip(after, before, strict=True))
    return {
        "records_per_s": num_records / took_s,
        "num_records": num_records,
        "user_us": user / num_records * 1e6,
        "system_us": system / num_records * 1e6,
        "cpu_us": (user + system) / num_records * 1e6,
        "all_cpu_s": sum(processor_s()) - all_began_s,
        "dropped": dropped,
        "resident_mib": None if resident is None else resident >> 20,
    }


if __name__ == "__main__":
    main()
