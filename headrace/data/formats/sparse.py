"""Rows of a sparse matrix, as a batch of LIBSVM records is."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import RunError

__all__ = ["SparseRows"]


@final
@dataclass(frozen=True, eq=False)
class SparseRows:
    """A matrix in compressed sparse rows (CSR): row r is the items indptr[r]:indptr[r + 1].

    Args:
        data: float64[N], the values.
        indices: int64[N], the column of each; ascending in a row.
        indptr: int64[R + 1].
        shape: (R, number of columns).
    """

    data: NDArray[np.float64]
    indices: NDArray[np.int64]
    indptr: NDArray[np.int64]
    shape: tuple[int, int]

    def __len__(self) -> int:
        """How many rows."""
        return self.shape[0]

    def to_scipy(self) -> Any:
        """A scipy.sparse.csr_array of the same values.

        Raises:
            RunError: there is no scipy.
        """
        try:
            from scipy import sparse
        except ImportError as error:
            raise RunError("this needs scipy", remedy="pip install scipy") from error
        return sparse.csr_array((self.data, self.indices, self.indptr), shape=self.shape)

    def __getitem__(self, key: int | slice | NDArray[np.int64]) -> "SparseRows":
        """Some rows: one, those of a slice, or those of an array of row numbers."""
        rows = np.atleast_1d(np.arange(len(self))[key])
        sizes = np.diff(self.indptr)[rows]
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        items = np.arange(indptr[-1]) + np.repeat(self.indptr[rows] - indptr[:-1], sizes)
        shape = (len(rows), self.shape[1])
        return SparseRows(self.data[items], self.indices[items], indptr, shape)

    def spread(self, rows: NDArray[np.int64], num_rows: int) -> "SparseRows":
        """As these rows of so many; the others have no items."""
        sizes = np.zeros(num_rows, np.int64)
        sizes[rows] = np.diff(self.indptr)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return SparseRows(self.data, self.indices, indptr, (num_rows, self.shape[1]))

    @classmethod
    def stacked(cls, parts: Sequence["SparseRows"], num_columns: int) -> "SparseRows":
        """The rows of all parts, which have so many columns, one after another."""
        sizes = [np.diff(part.indptr) for part in parts]
        indptr = np.cumsum(np.concatenate([np.zeros(1, np.int64), *sizes]))
        return cls(
            np.concatenate([np.empty(0), *(part.data for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *(part.indices for part in parts)]),
            indptr,
            (len(indptr) - 1, num_columns),
        )
