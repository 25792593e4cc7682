"""Records of one size, one after another, in a file that says nothing of itself."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import DTypeLike

from headrace.data.formats.arrays import check_members, columns_of_array
from headrace.data.formats.format import Format
from headrace.data.formats.layout import Layout
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Raw"]


@final
@dataclass(frozen=True)
class Raw(Format):
    """Field "data"; of a structured dtype, a field for each of its members.

    As ``np.fromfile(path, dtype, offset=offset).reshape(-1, *shape)``. A record of an image and its
    label: ``dtype=[("image", "u1", (3, 32, 32)), ("label", "u1")]``.

    Args:
        dtype: of the elements; all that np.dtype takes, such as "<f4" or a list of members.
        shape: of one record; () is one element.
        offset: bytes of a header to pass over.

    Raises:
        DataError: an option that makes no sense.
    """

    dtype: DTypeLike
    shape: int | tuple[int, ...] = ()
    offset: int = 0

    name: ClassVar[str] = "raw"
    takes_any_bytes: ClassVar[bool] = True
    is_indexed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise DataError(
                "not a dtype", got=repr(self.dtype), expected='such as "<f4"', where="format raw"
            ) from error
        shape = self.shape if isinstance(self.shape, tuple | list) else (self.shape,)
        if not all(type(extent) is int and extent >= 0 for extent in shape):
            raise _wrong("shape", self.shape, "whole numbers, at least 0")
        if type(self.offset) is not int or self.offset < 0:
            raise _wrong("offset", self.offset, "a whole number of bytes, at least 0")
        # What was given in several ways is one value, so that equal formats are equal.
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", tuple(shape))
        if self._record_bytes == 0:
            raise _wrong(
                "dtype or shape", f"{dtype} {tuple(shape)}", "records of at least one byte"
            )

    @property
    def _elements(self) -> np.dtype[Any]:
        return np.dtype(self.dtype)

    @property
    def _record_shape(self) -> tuple[int, ...]:
        return (self.shape,) if isinstance(self.shape, int) else self.shape

    @property
    def _record_bytes(self) -> int:
        return self._elements.itemsize * math.prod(self._record_shape)

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Layout]:
        """From the file's size.

        Raises:
            DataError: the size is no whole number of records, or the dtype cannot be trained on.
        """
        check_members(self._elements, path)
        size_bytes = path.stat().st_size
        num_records, left = divmod(size_bytes - self.offset, self._record_bytes)
        if num_records < 0 or left:
            raise DataError(
                "the file is no whole number of records",
                got=f"{size_bytes} bytes",
                expected=f"{self.offset} and a multiple of {self._record_bytes}",
                where=path,
                remedy="look at dtype=, shape= and offset=",
            )
        return columns_of_array(self._elements, (num_records, *self._record_shape), self.offset)


def _wrong(option: str, got: object, expected: str) -> DataError:
    return DataError(f"{option} of the records is wrong", got=repr(got), expected=expected)
