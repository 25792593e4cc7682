"""One batch of reads under way: what is left of it, and what went wrong."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.buffers import Memory
from headrace.data.plan import ReadPlan
from headrace.data.request import OPERATION_READ, REQUEST, Requests
from headrace.errors import ReadError

__all__ = ["TICKET_BITS", "Read"]

TICKET_BITS = 32
"""Of a ticket these bits say which request of its batch it is, those above say which batch."""


@final
class Read:
    """One batch under way, from Reader.start to Reader.finish; nothing in it is the caller's."""

    def __init__(
        self,
        number: int,
        plan: ReadPlan,
        memory: Memory | None,
        indices: NDArray[np.int64] | None,
    ) -> None:
        self.number = number
        self.plan = plan
        self.memory = memory
        self.indices = indices
        self.buffer = np.empty(0, np.uint8) if memory is None else memory.array()
        self.num_left = len(plan.offsets)
        self.next_request = 0
        self.again: list[int] = []
        self.failures: dict[int, int] = {}  # request -> -errno, or bytes when the file ended
        # What is left of each request; descriptors and flags are filled in when it is pushed.
        requests: Requests = np.zeros(self.num_left, REQUEST)
        requests["operation"] = OPERATION_READ
        requests["offset"] = plan.offsets
        requests["address"] = plan.destinations + self.buffer.ctypes.data
        requests["length"] = plan.lengths
        requests["ticket"] = np.arange(self.num_left) + (number << TICKET_BITS)
        self.requests = requests
        self.descriptors, self.flags = requests["descriptor"], requests["flags"]
        self.needed = plan.needed  # the plan's own until a request comes back short
        self.modes = np.zeros(self.num_left, np.int8)

    @property
    def has_unsent(self) -> bool:
        """Whether requests wait to be pushed."""
        return bool(self.again) or self.next_request < len(self.plan.offsets)

    def advance(self, request: int, num_bytes: int) -> None:
        """A request came back short: what is left of it."""
        if self.needed is self.plan.needed:
            self.needed = self.needed.copy()
        self.requests["offset"][request] += num_bytes
        self.requests["address"][request] += num_bytes
        self.requests["length"][request] -= num_bytes
        self.needed[request] -= num_bytes

    def error(self, paths: Sequence[Path]) -> ReadError:
        """What the first record that lacks bytes lacks."""
        plan, spans = self.plan, self.plan.spans
        worst: tuple[int, int, int] | None = None
        for request, result in self.failures.items():
            reached = int(self.requests["offset"][request]) + max(result, 0)
            lacking = (
                (spans.files == plan.files[request])
                & (spans.lengths > 0)
                & (spans.offsets < int(plan.offsets[request] + plan.lengths[request]))
                & (spans.offsets + spans.lengths > reached)
            )
            piece = int(np.flatnonzero(lacking)[0])
            if worst is None or piece < worst[0]:
                worst = piece, reached, result
        assert worst is not None
        piece, reached, result = worst
        record = int(np.searchsorted(spans.starts, piece, side="right")) - 1
        offset, length = int(spans.offsets[piece]), int(spans.lengths[piece])
        name = record if self.indices is None else int(self.indices[record])
        got = max(0, min(reached - offset, length))
        cause = "the file ends there" if result >= 0 else os.strerror(-result)
        return ReadError(
            f"record {name} could not be read",
            got=f"{got} bytes at offset {offset} ({cause})",
            expected=f"{length} bytes",
            where=paths[int(spans.files[piece])],
            remedy=_remedy(result),
        )


def _remedy(result: int) -> str:
    if result >= 0:
        return "the file was cut short since it was opened; restore it, then open the data again"
    if -result == errno.ENOENT:
        return "the file is gone; restore it"
    if -result in (errno.EMFILE, errno.ENFILE):
        return "raise the limit of open files (ulimit -n)"
    if -result == errno.EIO:
        return "the device reports an error; look at the system's log"
    return "look at the file's permissions and its file system"
