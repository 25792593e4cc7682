"""A file in memory as far as it is looked at, whose size is watched."""

from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import DataError

__all__ = ["Mapped"]


@final
class Mapped:
    """A file's bytes, mapped when they are first asked for; pickled, it is mapped again.

    Args:
        path: the file.
        size_bytes: its size.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes
        self._mapped: NDArray[np.uint8] | None = None
        self._inode = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_mapped": None}

    def content(self, *, keep: bool = True) -> NDArray[np.uint8]:
        """uint8[size_bytes]; its size is looked at each time, as a look beyond the end of a file
        that was cut short ends the process.

        Args:
            keep: whether the next call may have the same mapping.

        Raises:
            DataError: the file has another size by now, or cannot be read.
        """
        try:
            status = self._path.stat()
            if status.st_size != self._size_bytes:
                raise DataError(
                    "the file has changed since it was opened",
                    got=f"{status.st_size} bytes",
                    expected=f"{self._size_bytes} bytes",
                    where=self._path,
                    remedy="open the data again",
                )
            if self._mapped is not None and self._inode == status.st_ino:
                return self._mapped
            mapped: NDArray[np.uint8] = np.memmap(self._path, np.uint8, "r").view(np.ndarray)
        except OSError as error:
            raise DataError(
                "a file cannot be read", got=error.strerror, where=self._path
            ) from error
        self._mapped, self._inode = (mapped if keep else None), status.st_ino
        return mapped
