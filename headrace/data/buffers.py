"""Page-aligned memory that reads land in: lent and used again, or given away with the batch."""

import ctypes
import mmap
import os
from collections import deque
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

__all__ = ["BufferPool", "Given", "Lease", "Memory"]


class Memory(Protocol):
    """Where the reads of one batch land."""

    def array(self) -> NDArray[np.uint8]:
        """uint8[num_bytes], starting on a page."""

    def start_writing(self) -> None:
        """Before the kernel may write behind this process's back."""

    def end_writing(self) -> None:
        """When all reads have ended."""

    def abandon(self) -> None:
        """Leaks the memory: the kernel may still write it, and nobody can wait for that."""


@final
class Given:
    """Memory that goes to whoever gets the batch, and is freed by numpy as any array's.

    No code of ours runs when such an array dies, wherever the user lets it die. For reads through
    the page cache only: these write as the process itself would, so that a fork does no harm.
    """

    def __init__(self, num_bytes: int) -> None:
        whole: NDArray[np.uint8] = np.empty(num_bytes + mmap.PAGESIZE, np.uint8)
        start = -whole.ctypes.data % mmap.PAGESIZE
        self._array = whole[start : start + num_bytes]

    def array(self) -> NDArray[np.uint8]:
        """See Memory."""
        return self._array

    def start_writing(self) -> None:
        """See Memory; a fork need not know."""

    def end_writing(self) -> None:
        """See Memory."""

    def abandon(self) -> None:
        """See Memory."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._array))


@final
class BufferPool:
    """Hands out buffers and takes each back when the last array that looks into it is gone.

    Args:
        max_idle_bytes: memory that is kept for reuse; what is beyond goes back to the system.
    """

    def __init__(self, max_idle_bytes: int = 256 << 20) -> None:
        self._max_idle_bytes = max_idle_bytes
        # A deque, since its append and remove are atomic: arrays die in any thread.
        self._idle: deque[mmap.mmap] = deque()

    @property
    def idle_bytes(self) -> int:
        """Memory that waits for reuse."""
        return sum(map(len, list(self._idle)))

    def lease(self, num_bytes: int) -> "Lease":
        """A buffer of at least num_bytes > 0, its content left over from earlier use."""
        for memory in list(self._idle):
            if num_bytes <= len(memory) <= 4 * num_bytes + mmap.PAGESIZE:
                try:
                    self._idle.remove(memory)
                except ValueError:
                    continue  # another thread's close took it
                return Lease(self, memory, num_bytes)
        # Batches differ a little in size; steps of an eighth let the next one fit the same memory.
        step = max(mmap.PAGESIZE, 1 << max(num_bytes.bit_length() - 4, 0))
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        memory = mmap.mmap(-1, -(-num_bytes // step) * step, flags=flags)
        return Lease(self, memory, num_bytes)

    def take_back(self, memory: mmap.mmap) -> None:
        """Called when the last array that looked into the memory is gone."""
        self._idle.append(memory)
        # The oldest goes: batches may have grown, and what they no longer fit only takes room.
        while self.idle_bytes > self._max_idle_bytes:
            try:
                self._idle.popleft()
            except IndexError:
                return  # another thread's close took it

    def close(self) -> None:
        """Gives the idle memory back to the system; buffers still out follow once dropped."""
        self._max_idle_bytes = 0
        self._idle.clear()


@final
class Lease:
    """One buffer, lent: ``np.asarray(lease)`` and every view of it keep it lent."""

    def __init__(self, pool: BufferPool, memory: mmap.mmap, num_bytes: int) -> None:
        self._pool = pool
        self._memory = memory
        self._process = os.getpid()
        self._is_written = False
        self._anchor = ctypes.c_char.from_buffer(memory)
        self.__array_interface__: dict[str, Any] = {
            "shape": (num_bytes,),
            "typestr": "|u1",
            "data": (ctypes.addressof(self._anchor), False),
            "version": 3,
        }

    def array(self) -> NDArray[np.uint8]:
        """The buffer as uint8[num_bytes], starting on a page."""
        return np.asarray(self)

    def start_writing(self) -> None:
        """Before the kernel may write: keeps the memory out of children that are forked meanwhile.

        Else a fork would make the pages copy-on-write, and a read in flight could land in the copy.
        """
        self._memory.madvise(mmap.MADV_DONTFORK)
        self._is_written = True

    def end_writing(self) -> None:
        """When all reads have ended: children forked from now on see the data, as ever."""
        if self._is_written:
            self._memory.madvise(mmap.MADV_DOFORK)
            self._is_written = False

    def abandon(self) -> None:
        """Leaks the memory: the kernel may still write it, and nobody can wait for that."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))
        del self._anchor

    def __del__(self) -> None:
        if not hasattr(self, "_anchor"):
            return
        if self._is_written and os.getpid() != self._process:
            # This child never had the memory; closing would unmap what now has its addresses.
            self.abandon()
            return
        self.end_writing()
        del self._anchor  # the mapping cannot be closed while something points into it
        self._pool.take_back(self._memory)
