"""How a disk answers to random reads: measured for a moment, once, and kept in the cache folder."""

import hashlib
import os
import platform
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headrace.data.plan import Spans
from headrace.data.reader import EngineName, Reader
from headrace.errors import HeadraceError
from headrace.files import cache_folder, read_json, write_json

__all__ = ["DEFAULT_DEPTH", "Disk", "disk_of", "measure"]

DEFAULT_DEPTH = 128
"""Reads in flight where nothing was measured."""

READ_BYTES = 4096
_DEPTHS = (8, 16, 32, 64, 128, 256)
_ROUNDS = 3
_ROUND_S = 0.03
_ENOUGH = 0.97  # of the best rate; more reads in flight only wait for each other
_LEAST_BYTES = 64 << 20  # of a file; the reads of a smaller one would come upon each other
_VERSION = 1


@dataclass(frozen=True)
class Disk:
    """A disk's answer to random, aligned reads of READ_BYTES past the page cache.

    Args:
        queue_depth: the fewest reads in flight that reach 97 % of the best rate.
        reads_per_s: with so many.
        rates: reads per second by reads in flight, for each depth tried.
    """

    queue_depth: int
    reads_per_s: float
    rates: dict[int, float]


def disk_of(path: Path, engine: EngineName) -> Disk | None:
    """The disk that a file lies on; measured by reading the file if nobody has done so before.

    None where it cannot be measured (the file is below 64 MiB, direct reads are refused) or the
    result cannot be kept, since a measurement takes half a second.
    """
    try:
        status, system = path.stat(), os.statvfs(path)
        text = f"{platform.node()} {status.st_dev} {getattr(system, 'f_fsid', 0)} {engine}"
        name = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        place = cache_folder() / "disks" / f"{name}.json"
        kept = _kept(place)
        if kept is not None or status.st_size < _LEAST_BYTES:
            return kept
        place.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(place.parent, os.W_OK):
            return None
        disk = measure(path, engine)
        if disk is not None:
            write_json(place, {"version": _VERSION, "disk": asdict(disk), "of": str(path.parent)})
    except (OSError, HeadraceError):
        return None
    return disk


def measure(path: Path, engine: EngineName = "auto") -> Disk | None:
    """Reads pages of a file at random, with few and with many reads in flight, for half a second.

    None if the file system does not read it past the page cache.

    Raises:
        DataError: the engine is refused.
        ReadError: the file cannot be read.
    """
    num_pages = path.stat().st_size // READ_BYTES
    found: dict[int, list[float]] = {depth: [] for depth in _DEPTHS}
    generator = np.random.default_rng()  # other pages each time: a disk has memory too
    for number in range(_ROUNDS):
        for depth in _DEPTHS if number % 2 == 0 else reversed(_DEPTHS):
            with Reader([path], engine=engine, direct=True, queue_depth=depth) as reader:
                found[depth].append(_rate(reader, depth, num_pages, generator))
                if not reader.direct:
                    return None
    rates = {depth: max(some) for depth, some in found.items()}  # others only slow it down
    best = max(rates.values())
    depth = next(depth for depth in _DEPTHS if rates[depth] >= _ENOUGH * best)
    return Disk(depth, rates[depth], rates)


def _rate(reader: Reader, depth: int, num_pages: int, generator: np.random.Generator) -> float:
    """Reads per second, so many in flight at a time."""
    size = max(1, depth // 2)
    under_way = deque(
        reader.start(_pages(generator.integers(0, num_pages, size))) for _ in range(4)
    )
    reader.finish(under_way.popleft())  # the file is opened by now
    num_reads, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _ROUND_S:
        under_way.append(reader.start(_pages(generator.integers(0, num_pages, size))))
        reader.finish(under_way.popleft())
        num_reads += size
    return num_reads / (time.perf_counter() - began_s)


def _pages(numbers: NDArray[np.int64]) -> Spans:
    offsets = numbers * READ_BYTES
    lengths = np.full(len(offsets), READ_BYTES)
    return Spans(np.zeros(len(offsets), np.int32), offsets, lengths, np.arange(len(offsets) + 1))


def _kept(place: Path) -> Disk | None:
    """What was measured before."""
    try:
        facts = read_json(place)
        if not isinstance(facts, dict) or facts["version"] != _VERSION:
            return None
        disk = facts["disk"]
        rates = {int(depth): float(rate) for depth, rate in disk["rates"].items()}
        return Disk(int(disk["queue_depth"]), float(disk["reads_per_s"]), rates)
    except (KeyError, TypeError, ValueError):
        return None
