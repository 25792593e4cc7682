"""Batches of arrays of different lengths: padded to the longest, their lengths beside them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from headrace.data.order import require_whole
from headrace.data.samples import stacked
from headrace.errors import DataError

__all__ = ["Padding"]


@final
@dataclass(frozen=True)
class Padding:
    """A collate function, for ``headrace.Loader(collate=)``: some fields are padded.

    A batch's "tokens", one int64[length] a record, becomes int64[R, longest], and beside it
    "tokens_length" int64[R] says how much of each row is the record's. Arrays may have more axes;
    the first is padded. Fields that are not named are stacked.

    Args:
        values: field -> what it is padded with.
        multiple: the padded length is a whole multiple of this; 8 suits GPUs.
        longest: longer records are cut to so many; None cuts none.

    Raises:
        DataError: multiple or longest is no whole number of at least 1.

    Example::

        headrace.Loader(records, 32, collate=headrace.Padding({"tokens": 0}, multiple=8))
    """

    values: Mapping[str, float]
    multiple: int = 1
    longest: int | None = None

    def __post_init__(self) -> None:
        require_whole("multiple", self.multiple, 1)
        if self.longest is not None:
            require_whole("longest", self.longest, 1)

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The batch of so many samples.

        Raises:
            DataError: a field is missing, or its values are no arrays of one dtype and otherwise
                equal shape.
        """
        padded: dict[str, Any] = {}
        for name, value in self.values.items():
            if samples and name not in samples[0]:
                fields = ", ".join(map(repr, samples[0]))
                raise DataError("no such field to pad", got=repr(name), expected=fields)
            arrays = [np.asarray(sample[name]) for sample in samples]
            padded |= self._padded(name, arrays, value) if arrays else {}
        others = [
            {name: value for name, value in sample.items() if name not in self.values}
            for sample in samples
        ]
        return stacked(others) | padded

    def _padded(self, name: str, arrays: list[Any], value: float) -> dict[str, Any]:
        kinds = {(array.dtype, array.shape[1:], array.ndim > 0) for array in arrays}
        if len(kinds) > 1 or not arrays[0].ndim or arrays[0].dtype.kind not in "biufc":
            raise DataError(
                f"field {name!r} cannot be padded",
                got=" and ".join(sorted({f"{a.dtype}[{a.ndim} axes]" for a in arrays})),
                expected="arrays of numbers that differ in the length of their first axis alone",
                remedy="let a transform make such of them",
            )
        arrays = [array[: self.longest] for array in arrays]
        lengths = np.array([len(array) for array in arrays], np.int64)
        width = -(-int(lengths.max()) // self.multiple) * self.multiple
        rows = np.full((len(arrays), width, *arrays[0].shape[1:]), value, arrays[0].dtype)
        for row, array in zip(rows, arrays, strict=True):
            row[: len(array)] = array
        return {name: rows, f"{name}_length": lengths}
