"""Those who read random records from one file: fio, headrace, and what people use today."""

import itertools
import json
import mmap
import os
import resource
import subprocess
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset

from headrace.data.plan import Spans, plan_reads
from headrace.data.reader import EngineName, Pieces, Reader

BLOCK_BYTES = 4096  # each block of the file begins with its number, as int64
BATCH = 256
QUEUE_DEPTH = 128
BATCHES_AHEAD = 4
_POOL = 400  # batches made before the clock starts, used in turn


@dataclass(frozen=True)
class Run:
    """What one contestant did in one round."""

    records_per_s: float
    user_us: float  # processor time a record
    system_us: float


class Contestant(Protocol):
    """Reads for a while."""

    name: str

    def run(self, seconds: float) -> Run:
        """Reads random records for that long."""


@dataclass(frozen=True)
class Case:
    """Records of one kind: lengths in bytes from least to most; of one length: on its multiples."""

    name: str
    least: int
    most: int

    def batches(self, file_bytes: int, seed: int) -> list[Spans]:
        """Random batches, with replacement."""
        random = np.random.default_rng(seed)
        batches = []
        for _ in range(_POOL):
            lengths = random.integers(self.least, self.most + 1, BATCH)
            if self.least == self.most:
                offsets = random.integers(0, file_bytes // self.most, BATCH) * self.most
            else:
                offsets = random.integers(0, file_bytes - self.most, BATCH)
            files = np.zeros(BATCH, np.int32)
            batches.append(Spans(files, offsets, lengths, np.arange(BATCH + 1)))
        return batches


@final
class Fio:
    """The disk's own limit: fio's random direct reads of the same sizes, one job."""

    def __init__(self, path: Path, engine: str, options: Sequence[str], sizes: str) -> None:
        self.name = f"fio {engine}{' registered' if '--registerfiles=1' in options else ''}"
        self._command = [
            "fio", "--name=read", f"--filename={path}", "--readonly", "--rw=randread",
            "--direct=1", f"--iodepth={QUEUE_DEPTH}", f"--ioengine={engine}", "--norandommap",
            "--randrepeat=0", "--time_based", "--output-format=json", *sizes.split(), *options,
        ]  # fmt: skip

    def run(self, seconds: float) -> Run:
        """One fio process."""
        command = [*self._command, f"--runtime={round(seconds * 1000)}ms"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
        job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
        rate = job["read"]["iops"]
        return Run(rate, job["usr_cpu"] / rate * 1e4, job["sys_cpu"] / rate * 1e4)


def fio_sizes(case: Case, file_bytes: int, alignment: int) -> str:
    """fio's options for requests as long as those that headrace makes of the case's records."""
    if case.least == case.most and case.most % alignment == 0:
        return f"--bs={case.most} --blockalign={case.most}"
    plans = [plan_reads(batch, alignment=alignment) for batch in case.batches(file_bytes, 0)[:50]]
    lengths = np.concatenate([plan.lengths for plan in plans])
    # fio takes up to 64 sizes in whole per cent; the rare lengths of merged neighbours are left.
    sizes, counts = np.unique(lengths[lengths <= case.most + 2 * alignment], return_counts=True)
    percents = np.floor(counts / counts.sum() * 100).astype(int)
    largest_rests = np.argsort(percents - counts / counts.sum() * 100)
    percents[largest_rests[: 100 - percents.sum()]] += 1
    split = ":".join(f"{size}/{percent}" for size, percent in zip(sizes, percents, strict=True))
    return f"--bssplit={split} --blockalign={alignment}"


@final
class Headrace:
    """The reader as the loader uses it: some batches started before the oldest is finished."""

    def __init__(self, path: Path, engine: EngineName, batches: list[Spans]) -> None:
        self.name = f"headrace {engine}"
        self._path = path
        self._engine = engine
        self._batches = batches

    def run(self, seconds: float) -> Run:
        """One reader; it is made, and the first batch checked, before the clock starts."""
        with Reader(
            [self._path], engine=self._engine, direct=True, queue_depth=QUEUE_DEPTH
        ) as reader:
            check(reader.finish(reader.start(self._batches[0])), self._batches[0])
            if reader.refusals:
                raise SystemExit(f"no direct reads: {reader.refusals[0]}")
            ahead = deque(reader.start(batch) for batch in self._batches[:BATCHES_AHEAD])

            def read() -> Iterator[int]:
                number = BATCHES_AHEAD
                while True:
                    reader.finish(ahead.popleft())
                    ahead.append(reader.start(self._batches[number % _POOL]))
                    number += 1
                    yield BATCH

            return timed(read(), seconds)


def check(pieces: Pieces, spans: Spans) -> None:
    """The numbers that blocks begin with stand where they should, in each record."""
    for row, offset in enumerate(spans.offsets.tolist()):
        block = -(-offset // BLOCK_BYTES)
        inside = block * BLOCK_BYTES - offset
        record = pieces.record(row)
        if inside + 8 <= len(record) and record[inside : inside + 8].view(np.int64)[0] != block:
            raise SystemExit(f"record {row} of the first batch holds other bytes than the file")


def timed(steps: Iterator[int], seconds: float) -> Run:
    """Takes steps, each so many records, for that long; the processor time of this process."""
    num_records, before, began_s = 0, resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    for num in steps:
        num_records += num
        if time.perf_counter() - began_s >= seconds:
            break
    took_s, after = time.perf_counter() - began_s, resource.getrusage(resource.RUSAGE_SELF)
    return Run(
        num_records / took_s,
        (after.ru_utime - before.ru_utime) / num_records * 1e6,
        (after.ru_stime - before.ru_stime) / num_records * 1e6,
    )


@final
class MemoryMap:
    """What `np.memmap(...)[indices]` does, with nothing of the file in memory at the start."""

    def __init__(self, path: Path, batches: list[Spans], *, is_advised: bool) -> None:
        self.name = "memmap, MADV_RANDOM" if is_advised else "np.memmap[indices]"
        self._path = path
        self._is_advised = is_advised
        self._indices = [batch.offsets // BLOCK_BYTES for batch in batches]

    def run(self, seconds: float) -> Run:
        """Each batch from a fresh mapping of a file of which nothing is in memory.

        Else read-ahead, megabytes for each record, soon has the whole file in memory, and what is
        measured is memory. Only the gathering of records is timed.
        """
        num_records, took_s, user_s, system_s = 0, 0.0, 0.0, 0.0
        for indices in itertools.cycle(self._indices):
            records, began = self._map(), (time.perf_counter(), *os.times()[:2])
            rows = records[indices]
            ended = time.perf_counter(), *os.times()[:2]
            took_s += ended[0] - began[0]
            user_s += ended[1] - began[1]
            system_s += ended[2] - began[2]
            num_records += len(rows)
            if not (rows[:, :8].copy().view(np.int64)[:, 0] == indices).all():
                raise SystemExit("the mapping holds other bytes than the file")
            del records
            if took_s >= seconds:
                break
        return Run(num_records / took_s, user_s / num_records * 1e6, system_s / num_records * 1e6)

    def _map(self) -> NDArray[np.uint8]:
        """Advised, the kernel reads one page for a record and nothing around it."""
        drop_from_cache(self._path)  # which keeps pages that are mapped: the last mapping is gone
        with open(self._path, "rb") as file:
            memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._is_advised:
            memory.madvise(mmap.MADV_RANDOM)
        return np.frombuffer(memory, np.uint8).reshape(-1, BLOCK_BYTES)


class PreadRecords(Dataset[Any]):
    """A map-style data set that reads each record with os.preadv, straight into the batch."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1  # each worker opens its own

    def __getitems__(self, indices: NDArray[np.int64]) -> torch.Tensor:
        """A batch at once, which spares one tensor a record."""
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        rows = torch.empty(len(indices), BLOCK_BYTES, dtype=torch.uint8)
        for row, index in zip(rows.numpy(), indices.tolist(), strict=True):
            os.preadv(self._descriptor, [row.data], index * BLOCK_BYTES)
        return rows


def unchanged(batch: torch.Tensor) -> torch.Tensor:
    """Batches come collated."""
    return batch


@final
class TorchLoader:
    """torch's DataLoader; its workers are up and have read a batch each before the clock starts."""

    def __init__(self, path: Path, batches: list[Spans], num_workers: int = 8) -> None:
        self.name = f"DataLoader, {num_workers} workers"
        self._path = path
        self._indices = [batch.offsets // BLOCK_BYTES for batch in batches]
        self._num_workers = num_workers

    def run(self, seconds: float) -> Run:
        """Processor time is that of the workers too."""
        drop_from_cache(self._path)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader = DataLoader(
                PreadRecords(self._path),
                batch_sampler=self._indices * 20,  # type: ignore[arg-type]
                num_workers=self._num_workers,
                prefetch_factor=4,
                collate_fn=unchanged,
            )
            batches = iter(loader)
        num_first = sum(len(next(batches)) for _ in range(self._num_workers))
        run = timed((len(batch) for batch in batches), seconds)
        num_records = num_first + run.records_per_s * seconds
        del batches, loader  # ends the workers; their time is then counted
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Run(
            run.records_per_s,
            run.user_us + (after.ru_utime - before.ru_utime) / num_records * 1e6,
            run.system_us + (after.ru_stime - before.ru_stime) / num_records * 1e6,
        )


def drop_from_cache(path: Path) -> None:
    """Nothing of the file stays in memory."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


def make_file(path: Path, num_bytes: int, say: Callable[[str], None]) -> None:
    """Writes the data, unless it is there: random bytes, each block begun by its number."""
    if path.exists() and path.stat().st_size == num_bytes:
        return
    say(f"writing {num_bytes / 2**30:.0f} GiB to {path}")
    chunk = np.frombuffer(np.random.default_rng(0).bytes(1 << 23), np.int64).copy()
    chunk = chunk.reshape(-1, BLOCK_BYTES // 8)
    temporary = path.with_suffix(".part")
    with open(temporary, "wb", buffering=0) as file:
        for first in range(0, num_bytes // BLOCK_BYTES, len(chunk)):
            chunk[:, 0] = np.arange(first, first + len(chunk))
            file.write(chunk.data)
        os.fsync(file.fileno())
    drop_from_cache(temporary)
    temporary.rename(path)
