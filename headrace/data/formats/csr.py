"""Sparse rows in a NumPy archive: what `headrace pack` makes of LIBSVM text."""

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import ANY_LENGTH, BYTE, Column
from headrace.data.formats.format import Format, bytes_of
from headrace.data.formats.layout import Layout
from headrace.data.formats.mapped import Mapped
from headrace.data.formats.npz import arrays_in
from headrace.data.formats.sparse import SparseRows
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["CSR", "INDPTR", "ITEM"]

ITEM: np.dtype[Any] = np.dtype([("index", "<i8"), ("value", "<f8")])
"""One item of a row: its column and value side by side, so that one read brings all of a row."""
INDPTR: np.dtype[Any] = np.dtype("<i8")

_MEMBERS = ("items", "indptr", "shape")


@final
@dataclass(frozen=True)
class CSR(Format):
    """Field "features", of which a batch holds SparseRows, and one for each further array of as
    many rows, such as "label".

    The archive holds "items" of ITEM, "indptr" and "shape", the latter two as scipy has them: of
    z = np.load(path), csr_array((z["items"]["value"], z["items"]["index"], z["indptr"]),
    z["shape"]) is the matrix. Row r is the items indptr[r] to indptr[r + 1].
    """

    name: ClassVar[str] = "csr"
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """A zip archive with arrays of these names."""
        if not head.startswith(b"PK\x03\x04"):
            return False
        try:
            with zipfile.ZipFile(path) as archive:
                return {f"{name}.npy" for name in _MEMBERS} <= set(archive.namelist())
        except zipfile.BadZipFile:
            return False

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """From the archive's directory, the arrays' headers and the shape.

        Raises:
            DataError: as of Npz; an array is missing, of another dtype, or does not fit the rest.
        """
        arrays = arrays_in(path)
        layouts = {name: found["data"] for name, found in arrays.items() if "data" in found}
        items = arrays.get("items", {}).get("index")
        indptr, shape = (layouts.pop(name, None) for name in ("indptr", "shape"))
        if items is None or items.stride_bytes != ITEM.itemsize or indptr is None or shape is None:
            raise _wrong(path, ", ".join(sorted(arrays)), f"items of {ITEM}, indptr and shape")
        for name, one, count in (("indptr", indptr, indptr.num_records), ("shape", shape, 2)):
            if (one.dtype, one.shape, one.num_records) != (INDPTR, (), count) or not count:
                raise _wrong(
                    path, f"{name} of {one.dtype}{[one.num_records]}", f"{INDPTR}[{count or 1}]"
                )
        num_rows, num_features = np.fromfile(path, INDPTR, 2, offset=shape.start_bytes).tolist()
        for name, one in layouts.items():
            if one.num_records != num_rows:
                raise _wrong(path, f"{name} of {one.num_records} rows", num_rows)
        if indptr.num_records != num_rows + 1:
            raise _wrong(
                path, f"indptr of {indptr.num_records}", f"{num_rows + 1} for {num_rows} rows"
            )
        return {"features": _Rows(path, items, indptr, num_features), **layouts}

    def join(self, abouts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """As many columns as the widest file has."""
        widths = [about["num_features"] for about in abouts if about]
        return {"num_features": max(widths)} if widths else {}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> SparseRows:
        """One row.

        Raises:
            ValueError: a column that is out of range.
        """
        lengths = np.array([len(record)])
        return _rows(record, np.zeros(1, np.int64), lengths, about["num_features"])

    def collate(self, field: str, values: list[Any], about: Mapping[str, Any]) -> SparseRows:
        """The rows one after another."""
        return SparseRows.stacked(values, about["num_features"])

    def decode_batch(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> SparseRows | None:
        """As decode and collate of each."""
        try:
            return _rows(memory, begins, lengths, about["num_features"])
        except ValueError:
            return None


def _rows(
    memory: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    num_features: int,
) -> SparseRows:
    items = np.frombuffer(b"".join(bytes_of(memory, begins, lengths)), ITEM)
    indices, values = items["index"].astype(np.int64), items["value"].astype(np.float64)
    if len(items) and (indices.min() < 0 or indices.max() >= num_features):
        wrong = indices[(indices < 0) | (indices >= num_features)][0]
        raise ValueError(f"column {wrong} of {num_features}")
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths // ITEM.itemsize)])
    return SparseRows(values, indices, indptr, (len(begins), num_features))


def _wrong(path: Path, got: object, expected: object) -> DataError:
    return DataError(
        "the arrays are no sparse rows",
        got=got,
        expected=expected,
        where=path,
        remedy="write them again by headrace pack --to csr",
    )


@final
class _Rows:
    """Rows whose places the file's own indptr tells, mapped as far as it is asked for."""

    dtype: ClassVar[np.dtype[Any]] = BYTE
    shape: ClassVar[tuple[int | None, ...]] = ANY_LENGTH
    first_missing: ClassVar[int | None] = None

    def __init__(self, path: Path, items: Layout, indptr: Layout, num_features: int) -> None:
        self._path = path
        self._file = Mapped(path, path.stat().st_size)
        self._items_begin, self._num_items = items.start_bytes, items.num_records
        self._indptr_begin = indptr.start_bytes
        self.num_records = indptr.num_records - 1
        self.about: Mapping[str, Any] = {"num_features": num_features}

    def lookup(self, indices: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Offsets and lengths of records.

        Raises:
            DataError: the file has changed, or its indptr is damaged.
        """
        content = self._file.content()
        indptr: NDArray[np.int64] = np.ndarray(
            self.num_records + 1, INDPTR, content.data, self._indptr_begin
        )
        begins, ends = indptr[indices], indptr[indices + 1]
        wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > self._num_items))
        if len(wrong):
            raise DataError(
                "the indptr of sparse rows is damaged",
                got=f"items {begins[wrong[0]]} to {ends[wrong[0]]}",
                expected=f"some of {self._num_items}, in order",
                where=f"{self._path}, record {indices[wrong[0]]}",
            )
        return self._items_begin + begins * ITEM.itemsize, (ends - begins) * ITEM.itemsize
