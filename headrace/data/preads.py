"""Reads by threads, the compiled part: none of it holds the interpreter's lock or can be halved."""

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from headrace.data.libc import int32, int64, read, read_at, write
from headrace.data.request import REQUEST, Requests

__all__ = ["STOP", "Pool", "ask", "collect", "make_pool", "num_free", "push", "serve"]

STOP = -1
"""In a pipe of work, in place of a row: the thread ends."""

_NUM_FREE, _NUM_COLLECTED, _NUM_ENDED, _NUM_WANTED = range(4)  # places in Pool.counts
_PENDING = -(1 << 62)  # in Pool.results: the read has not ended, or there is none
_PIPE_ROWS = 512  # as many bytes as a pipe takes whole or not at all

_compiled = numba.njit(nogil=True, cache=True)


class Pool(NamedTuple):
    """What the threads and the one who gives them work share; a read has a row while it lasts."""

    counts: NDArray[np.int64]
    free: NDArray[np.int64]  # rows; the first counts[_NUM_FREE] are free
    table: Requests
    results: NDArray[np.int64]  # bytes that came, or -errno


def make_pool(num_rows: int) -> Pool:
    """A pool without work."""
    counts = np.array([num_rows, 0, 0, 0])
    table: Requests = np.zeros(num_rows, REQUEST)
    return Pool(counts, np.arange(num_rows), table, np.full(num_rows, _PENDING))


def num_free(pool: Pool) -> int:
    """Reads that may be pushed."""
    return int(pool.counts[_NUM_FREE])


def _atomic_add(typing_context: Any, counts: Any, place: Any, amount: Any) -> Any:
    """numba has no such step for processors, so this writes it in LLVM's terms."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        item_pointer: Any = cgutils.get_item_pointer
        address = item_pointer(context, builder, kind, array, [arguments[1]])
        before = builder.atomic_rmw("add", address, arguments[2], "seq_cst")
        return builder.add(before, arguments[2])

    return int64(counts, int64, int64), generate


_add: Any = intrinsic(_atomic_add)
"""_add(counts, place, amount) adds in one step for all threads, and returns the sum."""


@_compiled
def push(pool: Pool, requests: Requests, work: int) -> None:
    """Gives rows to as many reads as are free at most, and their numbers to the threads."""
    rows = np.empty(_PIPE_ROWS, np.int64)
    for start in range(0, len(requests), _PIPE_ROWS):
        part = requests[start : start + _PIPE_ROWS]
        pool.counts[_NUM_FREE] -= len(part)
        first = pool.counts[_NUM_FREE]
        for i in range(len(part)):
            rows[i] = pool.free[first + i]
            pool.table[rows[i]] = part[i]
        while write(int32(work), rows.ctypes.data, 8 * len(part)) < 0:
            pass  # a signal


@_compiled
def ask(pool: Pool, num_reads: int) -> bool:
    """Whether so many reads have ended; if not, a byte comes once they have."""
    wanted = pool.counts[_NUM_COLLECTED] + num_reads
    _add(pool.counts, _NUM_WANTED, wanted - pool.counts[_NUM_WANTED])
    return bool(_add(pool.counts, _NUM_ENDED, 0) >= wanted)


@_compiled
def collect(pool: Pool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tickets and results of the reads that have ended; their rows are free again."""
    num_rows, num = len(pool.results), 0
    tickets, results = np.empty(num_rows, np.int64), np.empty(num_rows, np.int64)
    for row in range(num_rows):
        if pool.results[row] != _PENDING:
            tickets[num], results[num] = pool.table[row].ticket, pool.results[row]
            pool.results[row] = _PENDING
            pool.free[pool.counts[_NUM_FREE]] = row
            pool.counts[_NUM_FREE] += 1
            num += 1
    pool.counts[_NUM_COLLECTED] += num
    return tickets[:num], results[:num]


@_compiled
def serve(pool: Pool, work: int, wake: int) -> None:
    """Reads until told to stop.

    Args:
        pool: shared with other threads.
        work: end of a pipe of row numbers. Threads wait here; the system gives a row to one.
        wake: end of a pipe that gets a byte when as many reads have ended as ``ask`` was asked for.
    """
    here, piece = np.zeros(1, np.int64), np.zeros(2, np.int64)
    while True:
        if read(int32(work), here.ctypes.data, 8) != 8:
            continue  # a signal
        row = here[0]
        if row == STOP:
            return
        request = pool.table[row]
        piece[0], piece[1] = request.address, request.length
        result = read_at(request.descriptor, piece, request.offset, request.flags)
        pool.results[row] = result
        if _add(pool.counts, _NUM_ENDED, 1) == pool.counts[_NUM_WANTED]:
            write(int32(wake), here.ctypes.data, 1)
