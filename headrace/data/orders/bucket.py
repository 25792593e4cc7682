"""Length bucketing: batches of records of about one length, which need little padding."""

import hashlib
from typing import ClassVar, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from headrace.data.order import Identity, Order, RandomOrder, checked_positions, require_whole
from headrace.data.permutation import keys_of, permuted
from headrace.errors import DataError

__all__ = ["BucketOrder"]


@final
class BucketOrder(Order):
    """A random order of which each window of so many batches is sorted by length, batch by batch.

    The window's batches, each of neighbours in length, come in a random order of their own; if the
    last one is short, the longest records are in it and it stays the last. What is lost: which
    records share a batch is no longer independent of their lengths. Which record is in which window
    is as random as in RandomOrder, so any record may meet any other of its length.

    Everything is a function of (seed, epoch, position): a position costs the sorting of its window,
    so ask for a window's positions together, as Loader does. Memory is 8 bytes a record, kept.

    Args:
        lengths: int64[N], of the records, in whatever unit; such as ``records.lengths("text")``.
        batch_size: that of the Loader; another one gives other batches than those sorted here.
        seed: a whole number, at least 0.
        window_batches: batches of a window. More need less padding; with 1 nothing is sorted out.

    Raises:
        DataError: they are something else.

    Example::

        order = headrace.BucketOrder(records.lengths("text"), batch_size=32)
        loader = headrace.Loader(records, 32, order=order, collate=headrace.Padding({"text": 0}))
    """

    version: ClassVar[int] = 1

    def __init__(
        self, lengths: ArrayLike, batch_size: int, seed: int = 0, *, window_batches: int = 64
    ) -> None:
        require_whole("batch_size", batch_size, 1)
        require_whole("the seed", seed, 0)
        require_whole("window_batches", window_batches, 1)
        array = np.asarray(lengths)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise DataError(
                "the lengths are wrong",
                got=f"{array.dtype} of shape {array.shape}",
                expected="a 1-D array of whole numbers, one a record",
            )
        self.batch_size = batch_size
        self.seed = seed
        self.window_batches = window_batches
        self._lengths: NDArray[np.int64] = array.astype(np.int64)
        content = self._lengths.astype("<i8", copy=False).tobytes()
        self._digest = hashlib.blake2b(content, digest_size=16).hexdigest()
        self._random = RandomOrder(seed)

    def __repr__(self) -> str:
        return (
            f"<BucketOrder of {len(self._lengths)} records, batch_size={self.batch_size}, "
            f"seed={self.seed}, window_batches={self.window_batches}>"
        )

    @property
    def identity(self) -> Identity:
        """Kind, version, seed, sizes of batch and window, and a hash of the lengths."""
        return {
            "kind": "bucket",
            "version": self.version,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "window_batches": self.window_batches,
            "lengths": self._digest,
        }

    def num_positions(self, num_records: int) -> int:
        """The number of records; see Order."""
        if num_records != len(self._lengths):
            raise DataError(
                "the order has lengths for another number of records",
                got=f"{len(self._lengths)} lengths",
                expected=f"{num_records}, one a record",
            )
        return num_records

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order."""
        positions = checked_positions(self, positions, num_records, epoch)
        windows, within = np.divmod(positions, self.batch_size * self.window_batches)
        found = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            mine = windows == window
            found[mine] = self._window(window, epoch)[within[mine]]
        return found

    def _window(self, window: int, epoch: int) -> NDArray[np.int64]:
        """The records of a window, in their order."""
        num_records, size = len(self._lengths), self.batch_size * self.window_batches
        positions = np.arange(window * size, min((window + 1) * size, num_records))
        records = self._random.indices(positions, num_records, epoch)
        records = records[np.argsort(self._lengths[records], kind="stable")]
        num_full = len(records) // self.batch_size
        keys = keys_of(
            f"headrace bucket order {self.version}, seed {self.seed}, epoch {epoch}, "
            f"window {window}"
        )
        batches = permuted(np.arange(num_full), num_full, keys)
        full = records[: num_full * self.batch_size].reshape(num_full, self.batch_size)
        return np.concatenate([full[batches].ravel(), records[num_full * self.batch_size :]])
