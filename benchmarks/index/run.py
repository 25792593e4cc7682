"""How fast an index is built, against reading the same files from end to end: see README.md."""

import io
import os
import shutil
import statistics
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.data.checksums import crc32c
from headrace.data.formats import make
from headrace.data.index import FOLDER
from headrace.data.indexing import columns_of_all
from headrace.progress import Silent

sys.path.append(str(Path(__file__).parents[1]))
from reporting import busy_s, finish, options_of, show_targets

RESULTS = Path(__file__).parent / "results"
NUM_FILES = 2  # as many as processors, so that both sides may use both
PIECE_BYTES = 4 << 20  # of plain reading


@dataclass(frozen=True)
class Plan:
    """A mode of the benchmark."""

    name: str
    file_bytes: int
    num_rounds: int


QUICK = Plan("quick", 64 << 20, 3)
FULL = Plan("full", 1 << 30, 5)


@dataclass(frozen=True)
class Case:
    """Files of one kind.

    Args:
        name: for tables.
        format: as headrace calls it.
        goal: the least share of plain reading's speed.
        block: makes some of a file's content, which is written again and again; or
        write: writes a whole file of about so many bytes.
    """

    name: str
    format: str
    goal: float
    block: Callable[[], bytes] | None = None
    write: Callable[[Path, int], None] | None = None


def letters(num_bytes: int) -> bytes:
    """Random letters, without what means something to a text format."""
    random = np.random.default_rng(num_bytes).integers(0, 26, num_bytes)
    return (random + ord("a")).astype(np.uint8).tobytes()


def tfrecord(length: int) -> bytes:
    """Framed records of 8 MiB together."""
    content = letters(length)
    size = length.to_bytes(8, "little")
    frame = size + masked(size) + content + masked(content)
    return frame * max(1, (8 << 20) // len(frame))


def masked(content: bytes) -> bytes:
    """The checksum as TFRecord has it."""
    value = int(crc32c(np.frombuffer(content, np.uint8)))
    value = ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return value.to_bytes(4, "little")


def write_tar(path: Path, file_bytes: int) -> None:
    """Records of an image of 8 KiB and its class, as WebDataset's writer makes them."""
    image, number = letters(8192), 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        while archive.offset < file_bytes:
            for name, content in ((f"{number:08}.jpg", image), (f"{number:08}.cls", b"7")):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
            number += 1


def lines() -> bytes:
    """Of 20 to 200 letters."""
    lengths = np.random.default_rng(0).integers(20, 201, 40_000)
    pool = letters(1 << 20)
    return b"".join(pool[i : i + length] + b"\n" for i, length in enumerate(lengths.tolist()))


def json_lines() -> bytes:
    """Of a text and two numbers."""
    pool = letters(1 << 20).decode()
    return "".join(
        f'{{"text": "{pool[i : i + 100]}", "label": {i % 10}, "score": {i / 7:.6f}}}\n'
        for i in range(40_000)
    ).encode()


def csv() -> bytes:
    """Of ten numbers and a quoted text."""
    random = np.random.default_rng(0).random((40_000, 10))
    return b"".join(
        ",".join(f"{value:.6f}" for value in row).encode() + b',"a text, quoted"\n'
        for row in random
    )


def libsvm() -> bytes:
    """Of 5 to 60 items of 1 000 000 columns."""
    random = np.random.default_rng(0)
    rows = []
    for label in range(20_000):
        columns = np.unique(random.integers(1, 1_000_001, random.integers(5, 61)))
        items = " ".join(f"{column}:{column % 97 / 97:.4f}" for column in columns.tolist())
        rows.append(f"{label % 2} {items}\n")
    return "".join(rows).encode()


CASES = (
    Case("TFRecord, 8 KiB", "tfrecord", 0.8, block=lambda: tfrecord(8192)),
    Case("TFRecord, 300 B", "tfrecord", 0.8, block=lambda: tfrecord(300)),
    Case("tar, 8 KiB + 1 B", "tar", 0.8, write=write_tar),
    Case("lines", "lines", 0.5, block=lines),
    Case("JSON lines", "jsonl", 0.5, block=json_lines),
    Case("CSV", "csv", 0.5, block=csv),
    Case("LIBSVM", "libsvm", 0.5, block=libsvm),
)


def main() -> None:
    """Makes the files of a case after another, measures, and reports."""
    options = options_of(__doc__, "files of 64 MiB, 3 rounds").parse_args()
    plan = QUICK if options.quick else FULL
    plan = Plan(plan.name, plan.file_bytes, options.rounds or plan.num_rounds)
    began_s, busy = time.perf_counter(), busy_s()
    runs: list[dict[str, Any]] = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="headrace-index-") as folder:
            runs += measure(case, plan, Path(folder))
    own_s = sum(os.times()[:2])
    targets = targets_of(runs)
    print(f"other programs used {max(0.0, busy_s() - busy - own_s):.0f} s of processor time\n")
    show_targets(targets)
    finish(
        options.out or RESULTS / f"{plan.name}.json",
        {"benchmark": "index", "mode": plan.name, "targets": targets},
        {"plan": asdict(plan), "num_files": NUM_FILES, "runs": runs},
        began_s=began_s,
        as_json=options.json,
    )


def measure(case: Case, plan: Plan, folder: Path) -> list[dict[str, Any]]:
    """All rounds of a case; compiled code is loaded beforehand, on a small file."""
    paths = [folder / f"{number}.{case.format}" for number in range(NUM_FILES)]
    small = folder / f"small.{case.format}"
    for path in (*paths, small):
        write(case, path, 1 << 20 if path is small else plan.file_bytes)
    index(case, [small], folder)
    num_bytes = sum(path.stat().st_size for path in paths)
    runs = []
    contestants = {
        "plain, cold": (True, lambda: plain(paths)),
        "index, cold": (True, lambda: index(case, paths, folder)),
        "index, warm": (False, lambda: index(case, paths, folder)),
        "plain, warm": (False, lambda: plain(paths)),
    }
    for number in range(plan.num_rounds):
        for name, (is_cold, run) in contestants.items():
            if is_cold:
                forget(paths)
            began_s, cpu_s = time.perf_counter(), sum(os.times()[:2])
            run()
            seconds = time.perf_counter() - began_s
            runs.append(
                {
                    "case": case.name,
                    "round": number,
                    "contestant": name,
                    "bytes_per_s": num_bytes / seconds,
                    "cpu_s_per_gb": (sum(os.times()[:2]) - cpu_s) / num_bytes * 1e9,
                }
            )
    for name in contestants:
        rates = values(runs, case.name, name)
        print(f"{case.name:18}{name:14}{statistics.median(rates) / 1e9:7.2f} GB/s", flush=True)
    return runs


def write(case: Case, path: Path, file_bytes: int) -> None:
    """A file of about so many bytes, all of it on the disk."""
    if case.write is not None:
        case.write(path, file_bytes)
    else:
        assert case.block is not None
        block = case.block()
        with path.open("wb") as file:
            if case.format == "csv":
                file.write(b"a,b,c,d,e,f,g,h,i,j,text\n")
            for _ in range(-(-file_bytes // len(block))):
                file.write(block)
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def forget(paths: Sequence[Path]) -> None:
    """Nothing of the files stays in the page cache."""
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def index(case: Case, paths: Sequence[Path], folder: Path) -> None:
    """Builds it anew."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    columns_of_all(paths, make(case.format, {}), Silent())


def plain(paths: Sequence[Path]) -> None:
    """Reads all files from end to end, each in a thread, and looks at nothing."""
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(plain_file, paths))


def plain_file(path: Path) -> None:
    """One of them, into the same memory again and again."""
    memory = bytearray(PIECE_BYTES)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while file.readinto(memory):
            pass


def values(runs: Sequence[dict[str, Any]], case: str, name: str) -> list[float]:
    """The speeds of a contestant, round by round."""
    return [run["bytes_per_s"] for run in runs if (run["case"], run["contestant"]) == (case, name)]


def targets_of(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of the ratio within a round, cold."""
    targets = {}
    for case in CASES:
        ours, plains = (values(runs, case.name, f"{name}, cold") for name in ("index", "plain"))
        ratio = statistics.median(one / other for one, other in zip(ours, plains, strict=True))
        met = ratio >= case.goal
        targets[case.name] = {"value": round(ratio, 3), "goal": case.goal, "met": met}
    return targets


if __name__ == "__main__":
    main()
