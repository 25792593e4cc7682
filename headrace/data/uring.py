"""io_uring driven by numpy: its rings are arrays, and submission entries are vectorised stores."""

import ctypes
import errno
import mmap
import os
import sys
from typing import final

import numpy as np
from numpy.typing import NDArray

from headrace.data.request import REQUEST, Requests

__all__ = ["Uring"]

# From include/uapi/linux/io_uring.h; the system calls have one number on every processor.
_SETUP_CALL, _ENTER_CALL = 425, 426
_SETUP_CLAMP, _SETUP_COOP_TASKRUN = 1 << 4, 1 << 8
_SETUP_SINGLE_ISSUER, _SETUP_DEFER_TASKRUN = 1 << 12, 1 << 13
_FEATURE_READ = 1 << 3  # RW_CUR_POS came with the plain READ operation, in Linux 5.6
_ENTER_GETEVENTS = 1
_ENTRIES_OFFSET = 0x10000000
_TRANSIENT = (errno.EINTR, errno.EAGAIN, errno.EBUSY)

_PARAMETERS = np.dtype(
    [
        ("sq_entries", "u4"),
        ("cq_entries", "u4"),
        ("flags", "u4"),
        ("sq_thread", "u4", 2),
        ("features", "u4"),
        ("wq_fd", "u4"),
        ("reserved", "u4", 3),
        ("sq_off", "u4", 8),  # head, tail, ring_mask, ring_entries, flags, dropped, array
        ("sq_user", "u8"),
        ("cq_off", "u4", 8),  # head, tail, ring_mask, ring_entries, overflow, cqes
        ("cq_user", "u8"),
    ]
)
_COMPLETION = np.dtype([("ticket", "i8"), ("result", "i4"), ("flags", "u4")])


@final
class Uring:
    """The contract of headrace.data.backend.Engine by one io_uring.

    The ring belongs to the thread and process that made it: the kernel is told so, and saves locks
    and interruptions for it.

    Args:
        queue_depth: requests in flight at a time.

    Raises:
        OSError: the kernel, a container or a limit refuses (EPERM, ENOSYS, EACCES, ENOMEM, EMFILE,
            EINVAL even without newer flags).
    """

    name = "uring"

    def __init__(self, queue_depth: int) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "io_uring exists on Linux only")
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._process = os.getpid()
        self._fd, parameters = self._set_up(queue_depth)
        try:
            self._map(parameters)
            self._enter(0, 0)  # some containers allow the set-up and refuse this
        except OSError:
            os.close(self._fd)
            raise
        self._depth = min(queue_depth, int(parameters["sq_entries"]))

    def _set_up(self, queue_depth: int) -> tuple[int, np.void]:
        newest = _SETUP_SINGLE_ISSUER | _SETUP_DEFER_TASKRUN  # Linux 6.1
        for flags in (newest, _SETUP_COOP_TASKRUN, 0):
            parameters = np.zeros(1, _PARAMETERS)
            parameters["flags"] = _SETUP_CLAMP | flags
            address = ctypes.c_void_p(parameters.ctypes.data)
            fd = _system_call(self._libc, _SETUP_CALL, ctypes.c_uint(queue_depth), address)
            if fd >= 0:
                break
            if fd != -errno.EINVAL or not flags:
                raise OSError(-fd, "io_uring_setup is refused")
        if not int(parameters[0]["features"]) & _FEATURE_READ:
            os.close(fd)
            raise OSError(errno.ENOSYS, "io_uring is older than its read operation (Linux 5.6)")
        return fd, parameters[0]

    def _map(self, parameters: np.void) -> None:
        """Lays arrays over the rings; since Linux 5.4 both rings are one mapping."""
        num_slots, num_completions = int(parameters["sq_entries"]), int(parameters["cq_entries"])
        sq, cq = parameters["sq_off"].tolist(), parameters["cq_off"].tolist()
        ring_bytes = max(sq[6] + 4 * num_slots, cq[5] + _COMPLETION.itemsize * num_completions)
        self._rings = mmap.mmap(self._fd, ring_bytes, flags=mmap.MAP_SHARED)
        entry_bytes = REQUEST.itemsize * num_slots
        self._slots = mmap.mmap(
            self._fd, entry_bytes, flags=mmap.MAP_SHARED, offset=_ENTRIES_OFFSET
        )
        self._sq_head = np.frombuffer(self._rings, np.uint32, 1, sq[0])
        self._sq_tail = np.frombuffer(self._rings, np.uint32, 1, sq[1])
        # The kernel finds entries through an array of slot numbers; ours are always in order.
        np.frombuffer(self._rings, np.uint32, num_slots, sq[6])[:] = np.arange(num_slots)
        self._cq_head = np.frombuffer(self._rings, np.uint32, 1, cq[0])
        self._cq_tail = np.frombuffer(self._rings, np.uint32, 1, cq[1])
        self._completions = np.frombuffer(self._rings, _COMPLETION, num_completions, cq[5])
        self._tickets, self._results = self._completions["ticket"], self._completions["result"]
        # Entries as rows of words: numpy copies those in one piece, structures field by field.
        self._entries = np.frombuffer(self._slots, np.uint64).reshape(num_slots, -1)

    @property
    def num_in_flight(self) -> int:
        """Requests pushed and not yet collected."""
        return (int(self._sq_tail[0]) - int(self._cq_head[0])) & 0xFFFFFFFF

    @property
    def room(self) -> int:
        """Requests that may be pushed now."""
        return self._depth - self.num_in_flight

    def push(self, requests: Requests, buffer: NDArray[np.uint8]) -> None:
        """Copies requests to the ring, at most ``room``; see headrace.data.backend.Engine."""
        tail, num_slots, num = int(self._sq_tail[0]), len(self._entries), len(requests)
        rows = requests.view(np.uint64).reshape(num, self._entries.shape[1])
        first = tail & (num_slots - 1)
        before_wrap = min(num, num_slots - first)
        self._entries[first : first + before_wrap] = rows[:before_wrap]
        if before_wrap < num:
            self._entries[: num - before_wrap] = rows[before_wrap:]
        # The kernel reads the tail in a system call of this thread: no barrier is needed.
        self._sq_tail[0] = (tail + num) & 0xFFFFFFFF

    def collect(self, num_wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Submits what was pushed, waits for num_wanted requests to end, returns all that have."""
        self._submit(num_wanted)
        while ((int(self._cq_tail[0]) - int(self._cq_head[0])) & 0xFFFFFFFF) < num_wanted:
            self._enter(0, num_wanted)
        return self._reap()

    def close(self) -> bool:
        """Waits for what the kernel still does and gives the ring back.

        Returns whether it could wait: False means that the kernel may still write into buffers.
        """
        # A child made by fork shares the rings with its parent, and must take nothing from them.
        waited = os.getpid() == self._process
        try:
            while waited and self.num_in_flight:
                self.collect(self.num_in_flight)
        except OSError:  # another thread than the ring's own
            waited = False
        del self._sq_head, self._sq_tail, self._cq_head, self._cq_tail
        del self._completions, self._tickets, self._results, self._entries
        self._rings.close()
        self._slots.close()
        os.close(self._fd)
        return waited

    def _reap(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        head, tail = int(self._cq_head[0]), int(self._cq_tail[0])
        start = head & (len(self._completions) - 1)
        stop = start + ((tail - head) & 0xFFFFFFFF)
        tickets, results = self._tickets[start:stop].copy(), self._results[start:stop].astype(int)
        if stop > len(self._completions):
            wrapped = slice(stop - len(self._completions))
            tickets = np.concatenate([tickets, self._tickets[wrapped]])
            results = np.concatenate([results, self._results[wrapped]])
        self._cq_head[0] = tail
        return tickets, results

    @property
    def _num_unsubmitted(self) -> int:
        return (int(self._sq_tail[0]) - int(self._sq_head[0])) & 0xFFFFFFFF

    def _submit(self, num_wanted: int = 0) -> None:
        """One system call as a rule; the kernel may take fewer entries when short of memory."""
        self._enter(self._num_unsubmitted, num_wanted)
        while num_unsubmitted := self._num_unsubmitted:
            self._enter(num_unsubmitted, 0)

    def _enter(self, num_submit: int, num_wanted: int) -> None:
        """Submits, waits (less long where a signal comes), and lets the kernel book what ended."""
        submitted = _system_call(
            self._libc, _ENTER_CALL, self._fd, num_submit, num_wanted, _ENTER_GETEVENTS, None, 0
        )
        # EAGAIN, EBUSY: short of memory for a moment. The callers look at the rings, and try again.
        if submitted < 0 and -submitted not in _TRANSIENT:
            raise OSError(-submitted, "io_uring_enter failed")


def _system_call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    """What a system call that Python has no function for answers, or -errno."""
    answer = int(libc.syscall(number, *arguments))
    return answer if answer >= 0 else -ctypes.get_errno()
