"""Threads that move tensors run as soon as they wake, even where every processor computes.

A thread that wakes on a busy processor waits until the thread that runs there has used up its slice
of time, some milliseconds; a message between stages passes through four threads. Linux (6.12 and
newer) lets a waking thread with a shorter slice go first, and threads inherit their slice.
"""

import ctypes
import platform
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = ["prompt_threads"]

_SLICE_NS = 100_000  # the shortest that Linux grants
_CALLS: Mapping[str, tuple[int, int]] = {"x86_64": (314, 315), "aarch64": (274, 275)}
"""sched_setattr and sched_getattr."""
_FORM = "IIQiIQQQ"  # struct sched_attr: size, policy, flags, nice, priority, slice in ns, ...
_BYTES = struct.calcsize(_FORM)
_ORDINARY = 0  # SCHED_OTHER
_DEFAULT_NS = 0


@contextmanager
def prompt_threads() -> Iterator[None]:
    """Threads started inside, by whatever library, go first when they wake.

    They get no more processor time than others, and it takes no privilege. Where the system does
    not know of it, nothing happens.
    """
    is_set = _set_slice(_SLICE_NS)
    try:
        yield
    finally:
        if is_set:
            _set_slice(_DEFAULT_NS)


def _set_slice(slice_ns: int) -> bool:
    """Sets the calling thread's slice of time, and nothing else; whether it could."""
    if sys.platform != "linux" or platform.machine() not in _CALLS:
        return False
    set_call, get_call = _CALLS[platform.machine()]
    system = ctypes.CDLL(None)
    answer = ctypes.create_string_buffer(_BYTES)
    if system.syscall(get_call, 0, answer, _BYTES, 0) != 0:
        return False
    fields = list(struct.unpack(_FORM, answer.raw))
    if fields[1] != _ORDINARY:  # the user has chosen another policy
        return False
    fields[5] = slice_ns
    return bool(system.syscall(set_call, 0, struct.pack(_FORM, *fields), 0) == 0)
