"""A file opened to be read from end to end."""

import os
from io import FileIO
from pathlib import Path

__all__ = ["open_sequential"]


def open_sequential(path: Path) -> FileIO:
    """The file, without a buffer; the system is told, and reads far ahead at less cost.

    Raises:
        OSError: it cannot be opened.
    """
    file = path.open("rb", buffering=0)
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
    return file
