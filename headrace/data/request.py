"""One read of one file, laid out as a submission entry of io_uring."""

import numpy as np
from numpy.typing import NDArray

__all__ = ["OPERATION_READ", "REQUEST", "Requests"]

OPERATION_READ = 22
"""From include/uapi/linux/io_uring.h, as the layout below."""

REQUEST = np.dtype(
    [
        ("operation", "u1"),
        ("modifiers", "u1"),
        ("priority", "u2"),
        ("descriptor", "i4"),
        ("offset", "i8"),
        ("address", "i8"),  # where in memory the bytes go
        ("length", "u4"),
        ("flags", "u4"),  # those of preadv2
        ("ticket", "i8"),  # comes back with the result
        ("unused", "u8", 3),
    ]
)
"""Requests are laid out once a batch, and then copied as they are."""

Requests = NDArray[np.void]
"""An array of REQUEST."""
