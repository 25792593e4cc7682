"""Text or any bytes as windows of fixed length, which may overlap and never span two files."""

from pathlib import Path

import numpy as np

from headrace.data.formats.layout import Layout
from headrace.errors import DataError

__all__ = ["scan"]


def scan(path: Path, length: int, stride: int | None = None, ahead: int = 0) -> dict[str, Layout]:
    """Field "window", and with ahead > 0 field "next": the same windows that many bytes later.

    A file of s bytes has (s - length - ahead) // stride + 1 windows, none if it is shorter than
    length + ahead. What is left at its end belongs to no window.

    Args:
        path: the file.
        length: bytes of a window.
        stride: bytes from one window to the next; None is the length.
        ahead: how many bytes later the second field begins; 0 leaves it out.

    Raises:
        DataError: a number that is not whole or too small.
    """
    stride = length if stride is None else stride
    for name, value, least in (("length", length, 1), ("stride", stride, 1), ("ahead", ahead, 0)):
        if type(value) is not int or value < least:
            raise DataError(
                f"{name} of the windows is wrong",
                got=repr(value),
                expected=f"a whole number of bytes, at least {least}",
            )
    left = path.stat().st_size - length - ahead
    num_windows = left // stride + 1 if left >= 0 else 0
    byte = np.dtype(np.uint8)
    layouts = {"window": Layout(byte, (length,), num_windows, 0, stride)}
    if ahead:
        layouts["next"] = Layout(byte, (length,), num_windows, ahead, stride)
    return layouts
