"""The C library's functions that compiled code calls, and how a read by one of them ends."""

import sys
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["HAS_FLAGS", "int32", "int64", "read", "read_at", "write"]

_types: Any = numba.types
int32, int64, _pointer = _types.int32, _types.int64, _types.intp

HAS_FLAGS = sys.platform == "linux"
"""Whether reads take flags; elsewhere there are none, and pread stands in."""


def _function(name: str, answer: Any, *arguments: Any) -> Any:
    """A function of the C library, found by name when it is compiled in or loaded from a cache."""
    return _types.ExternalFunction(name, answer(*arguments))


read = _function("read", int64, int32, _pointer, int64)
write = _function("write", int64, int32, _pointer, int64)
_pread = _function("pread", int64, int32, _pointer, int64, int64)
_preadv2 = _function("preadv2", int64, int32, _pointer, int32, int64, int32)
_errno_address = _function("__errno_location" if HAS_FLAGS else "__error", _types.CPointer(int32))


@numba.njit(nogil=True, cache=True)
def read_at(descriptor: int, piece: NDArray[np.int64], offset: int, flags: int) -> Any:
    """One read of a file.

    Args:
        descriptor: of the file.
        piece: int64[2], the address where the bytes go, and how many are wanted.
        offset: of the first of them in the file.
        flags: as of preadv2; 0 where there are none.

    Returns:
        How many came, or -errno.
    """
    if HAS_FLAGS and flags:
        result = _preadv2(int32(descriptor), piece.ctypes.data, int32(1), offset, int32(flags))
    else:
        result = _pread(int32(descriptor), piece[0], piece[1], offset)
    return -int64(_errno_address()[0]) if result < 0 else result
