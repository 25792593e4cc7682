"""How files are read: past the page cache or through it, how many reads at a time; decided once."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from headrace.data.direct import choose_direct
from headrace.data.disk import DEFAULT_DEPTH, disk_of
from headrace.data.reader import EngineName, Reader

__all__ = ["Manner", "choose_manner", "in_words"]

_MOST_LOOKED_AT = 64


@final
@dataclass(frozen=True)
class Manner:
    """What a Reader is told, so that it need not look at the files.

    Args:
        direct: past the page cache.
        alignment: of the reads, in bytes.
        queue_depth: reads in flight at a time.
    """

    direct: bool
    alignment: int
    queue_depth: int


def choose_manner(paths: Sequence[Path], engine: EngineName, direct: bool | None) -> Manner:
    """The manner for files: direct as of Reader; and where it is, as many reads at a time as their
    disk answers best to (that of the largest of the first 64 files).

    Raises:
        DataError: a file is missing; looked at only when the answer may be direct.
    """
    is_direct, alignment = choose_direct(paths, direct)
    some = paths[:_MOST_LOOKED_AT]
    disk = disk_of(max(some, key=_size), engine) if is_direct and some else None
    return Manner(is_direct, alignment, disk.queue_depth if disk else DEFAULT_DEPTH)


def in_words(reader: Reader) -> str:
    """How a reader reads, such as "io_uring, 128 reads at a time, past the page cache"."""
    name = {"uring": "io_uring"}.get(reader.engine, reader.engine)
    way = "past the page cache" if reader.direct else "through the page cache"
    refused = f" ({reader.refusals[0]})" if reader.refusals else ""
    return f"{name}, {reader.queue_depth} reads at a time, {way}{refused}"


def _size(path: Path) -> int:
    return path.stat().st_size
