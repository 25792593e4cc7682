"""Indexes many files at once; one that is interrupted keeps the files that were done."""

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import final

from headrace.data.formats.format import Column, Format
from headrace.data.index import Stored, columns_of
from headrace.data.refusals import reading
from headrace.progress import Progress

__all__ = ["columns_of_all"]

_UPDATE_S = 0.1


def columns_of_all(
    paths: Sequence[Path], format: Format, progress: Progress
) -> list[Mapping[str, Column | Stored]]:
    """Where the records of each field lie, file by file; see headrace.data.index.columns_of.

    Files without an index are read through, as many at a time as the process may use processors.

    Args:
        paths: the files.
        format: of all of them.
        progress: is told ``files``, ``num_files``, ``bytes``, ``num_bytes``: those read through so
            far and all there are.

    Raises:
        DataError: of the first file, in their order, that is damaged or cannot be read.
    """
    if not format.is_indexed:
        return [reading(path, columns_of, path, format, progress) for path in paths]
    total = _Total(paths, progress)
    num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    with ThreadPoolExecutor(max(1, min(num_threads, len(paths))), "headrace-index") as pool:
        futures = [
            pool.submit(total.index, number, path, format) for number, path in enumerate(paths)
        ]
        try:
            return [future.result() for future in futures]
        except BaseException:
            total.is_stopped = True
            for future in futures:
                future.cancel()
            raise


class _Stopped(Exception):
    """Another file failed, or the user interrupted."""


@final
class _Total:
    """Adds up what the scans of all files report."""

    def __init__(self, paths: Sequence[Path], progress: Progress) -> None:
        self._sizes = [path.stat().st_size if path.exists() else 0 for path in paths]
        self._read = [0] * len(paths)
        self._num_done = 0
        self._progress = progress
        self._lock = Lock()
        self._shown_s = 0.0
        self.is_stopped = False

    def index(self, number: int, path: Path, format: Format) -> Mapping[str, Column | Stored]:
        """One file, in a thread of the pool."""
        columns = reading(path, columns_of, path, format, _One(self, number, self._progress))
        self.add(number, self._sizes[number], is_done=True)
        return columns

    def add(self, number: int, num_bytes: int, *, is_done: bool = False) -> None:
        """So much of a file has been read."""
        if self.is_stopped:
            raise _Stopped
        with self._lock:
            self._read[number] = num_bytes
            self._num_done += is_done
            now_s = time.monotonic()
            is_last = self._num_done == len(self._sizes)
            if now_s - self._shown_s < _UPDATE_S and not is_last:
                return
            self._shown_s = now_s
            facts = {
                "files": self._num_done,
                "num_files": len(self._sizes),
                "bytes": sum(self._read),
                "num_bytes": sum(self._sizes),
            }
            self._progress.update(facts)


@final
class _One:
    """The progress that the scan of one file sees."""

    def __init__(self, total: _Total, number: int, progress: Progress) -> None:
        self._total = total
        self._number = number
        self._progress = progress

    def say(self, text: str) -> None:
        """As it comes."""
        self._progress.say(text)

    def update(self, facts: Mapping[str, object]) -> None:
        """The bytes that were read."""
        self._total.add(self._number, int(str(facts["bytes"])))
