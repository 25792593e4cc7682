"""What the tests of the reader share: records in files, and the truth about their bytes."""

import ctypes
import errno
import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.data import uring
from headrace.data.backend import Engine
from headrace.data.plan import Spans
from headrace.data.reader import Pieces
from headrace.data.request import Requests
from headrace.data.uring import Uring


def need_uring() -> None:
    """Skips the test where the system refuses io_uring."""
    try:
        Uring(1).close()
    except OSError as error:
        pytest.skip(f"io_uring is refused here: {error}")


def need_direct(folder: Path) -> None:
    """Skips the test where the file system of the folder refuses direct reads."""
    path = folder / "direct"
    path.write_bytes(bytes(1 << 16))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            os.preadv(descriptor, [mmap.mmap(-1, 1 << 16)], 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        pytest.skip(f"direct reads are refused in {folder}: {error}")


def one_piece_each(files: object, offsets: object, lengths: object) -> Spans:
    """Spans of records that are one piece each."""
    whole = [
        np.atleast_1d(np.asarray(values, kind))
        for values, kind in ((files, np.int32), (offsets, np.int64), (lengths, np.int64))
    ]
    whole = np.broadcast_arrays(*whole)
    return Spans(
        whole[0].astype(np.int32),
        whole[1].astype(np.int64),
        whole[2].astype(np.int64),
        np.arange(len(whole[0]) + 1),
    )


def true_records(paths: list[Path], spans: Spans) -> list[bytes]:
    """The records' bytes by open, seek and read."""
    records = []
    for start, stop in zip(spans.starts[:-1], spans.starts[1:], strict=True):
        parts = []
        for piece in range(start, stop):
            with open(paths[spans.files[piece]], "rb") as file:
                file.seek(int(spans.offsets[piece]))
                parts.append(file.read(int(spans.lengths[piece])))
                assert len(parts[-1]) == spans.lengths[piece]
        records.append(b"".join(parts))
    return records


def records_of(pieces: Pieces) -> list[bytes]:
    return [pieces.record(number).tobytes() for number in range(len(pieces.starts) - 1)]


def random_file(path: Path, num_bytes: int, seed: int = 0) -> Path:
    path.write_bytes(np.random.default_rng(seed).bytes(num_bytes))
    return path


def num_descriptors() -> int:
    """Open descriptors of this process, none of them held by garbage of earlier tests."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def older_kernel(monkeypatch: pytest.MonkeyPatch, known: int) -> list[int]:
    """io_uring as of a kernel that knows only these flags; the list grows by what it is asked."""
    real = uring._system_call
    asked = []

    def refuse_newer(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
        if number == 425:
            address = arguments[1]
            assert isinstance(address, ctypes.c_void_p) and address.value
            flags = ctypes.c_uint32.from_address(address.value + 8).value & ~(1 << 4)
            asked.append(flags)
            if flags & ~known:
                return -errno.EINVAL
        return real(libc, number, *arguments)

    monkeypatch.setattr(uring, "_system_call", refuse_newer)
    return asked


Answer = Callable[[int, int, int, int], int]
"""(descriptor, flags, length, times asked for this ticket before) -> most bytes, or -errno."""


class Scripted(Engine):
    """An engine that reads at once, as much as a script says, and gives the last back first."""

    name = "uring"

    def __init__(self, depth: int, answer: Answer) -> None:
        self._depth = depth
        self._answer = answer
        self._ended: list[tuple[int, int]] = []
        self._times: dict[int, int] = {}
        self.is_interrupted = False

    @property
    def num_in_flight(self) -> int:
        return len(self._ended)

    @property
    def room(self) -> int:
        return self._depth - len(self._ended)

    def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
        assert len(requests) <= self.room
        names = ["descriptor", "offset", "address", "length", "flags", "ticket"]
        for descriptor, offset, address, length, flags, ticket in requests[names].tolist():
            times = self._times.setdefault(ticket, 0)
            self._times[ticket] += 1
            assert length > 0
            allowed = self._answer(descriptor, flags, length, times)
            if allowed > 0:
                start = address - buffer.ctypes.data
                target = buffer[start : start + min(allowed, length)]
                allowed = os.preadv(descriptor, [target.data], offset)
            self._ended.append((ticket, allowed))

    def collect(self, num_wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        assert num_wanted <= self.num_in_flight
        ended = np.array(self._ended[::-1], np.int64).reshape(-1, 2)
        self._ended.clear()
        if self.is_interrupted:
            raise KeyboardInterrupt
        return ended[:, 0], ended[:, 1]

    def close(self) -> bool:
        return True


REFUSALS = (
    errno.EPERM,
    errno.ENOSYS,
    errno.EACCES,
    errno.ENOMEM,
    errno.EMFILE,
    errno.EINVAL,
)
