"""What the page cache has, compiled: copied at once by the thread that asks, without a queue."""

import numba
import numpy as np
from numpy.typing import NDArray

from headrace.data.libc import read_at
from headrace.data.request import Requests

__all__ = ["copy_cached"]

_RWF_NOWAIT = 8  # include/uapi/linux/fs.h, Linux 4.14


@numba.njit(nogil=True, cache=True)
def copy_cached(requests: Requests) -> NDArray[np.int64]:
    """Does the reads that need not wait for a disk.

    It copies through system calls rather than from a mapping of the file, where one that has been
    cut short meanwhile ends the process.

    Returns:
        int64[E], the bytes that came of each, which may be fewer than it asks for; or -errno,
        EAGAIN where nothing was there, of which the system may have begun to read it.
    """
    results = np.empty(len(requests), np.int64)
    piece = np.zeros(2, np.int64)
    for row in range(len(requests)):
        request = requests[row]
        piece[0], piece[1] = request.address, request.length
        results[row] = read_at(request.descriptor, piece, request.offset, _RWF_NOWAIT)
    return results
