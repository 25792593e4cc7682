"""What carries out single reads, many at a time, and which of the two ways to take."""

import errno
import os
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.data.request import Requests
from headrace.data.threads import Threads
from headrace.data.uring import Uring
from headrace.errors import DataError

__all__ = ["Engine", "EngineName", "make_engine"]

EngineName = Literal["auto", "uring", "threads"]

_REFUSALS = (
    errno.EPERM,
    errno.ENOSYS,
    errno.EACCES,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
    errno.EINVAL,
)


class Engine(Protocol):
    """Carries out single reads, many at a time; used by one thread."""

    name: str

    @property
    def num_in_flight(self) -> int:
        """Requests pushed and not yet collected."""

    @property
    def room(self) -> int:
        """Requests that may be pushed now."""

    def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
        """Queues at most ``room`` reads, all of them into the buffer."""

    def collect(self, num_wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Sets off what was pushed and waits until num_wanted (at most those in flight) have ended.

        Returns the tickets of all that have ended and how: bytes read, or -errno.
        """

    def close(self) -> bool:
        """Ends; False if reads may still be in flight because this thread cannot wait for them."""


def make_engine(name: EngineName, queue_depth: int) -> Engine:
    """The engine of that name; "auto" is io_uring, or threads where it is refused.

    Raises:
        DataError: no such engine, or "uring" where it is refused.
    """
    if name not in ("auto", "uring", "threads"):
        raise DataError("unknown engine", got=name, expected="auto, uring or threads")
    if name == "threads":
        return Threads(queue_depth)
    try:
        return Uring(queue_depth)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        if name == "uring":
            raise DataError(
                "io_uring is refused on this machine",
                got=f"{errno.errorcode[error.errno]}, {os.strerror(error.errno)}",
                where="engine='uring'",
                remedy="use engine='auto', which takes threads where io_uring is refused",
            ) from error
        return Threads(queue_depth)
