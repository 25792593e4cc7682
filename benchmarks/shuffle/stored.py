"""Fashion-MNIST as one file of label-and-image rows, in two layouts, and what rivals rewrite."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import headrace
from headrace.recipes import fashion_mnist

__all__ = [
    "IMAGE_BYTES",
    "LAYOUTS",
    "PIECE_RECORDS",
    "RECORD_BYTES",
    "Rows",
    "pieces",
    "rewrite",
    "rows_of",
    "write",
    "write_layout",
]

Rows = NDArray[np.uint8]  # [records, 785]: a label, then 28 x 28 pixels

IMAGE_BYTES = 28 * 28
RECORD_BYTES = 1 + IMAGE_BYTES  # as CIFAR-10's binary files have it: one read brings both
PIECE_RECORDS = 1500  # 1.2 MB, 12 batches: what everyone asks for at a time, 4 times ahead
LAYOUTS = ("sorted by class", "random order")


def rows_of(part: str) -> Rows:
    """The whole part of the data set, "train" or "t10k", in its own order."""
    records = fashion_mnist.data(part)
    loader = headrace.Loader(records, len(records), order=headrace.SequentialOrder(), direct=False)
    batch = next(iter(loader))
    return np.hstack([batch["label"][:, np.newaxis], batch["image"].reshape(-1, IMAGE_BYTES)])


def write_layout(rows: Rows, layout: str, path: Path) -> Rows:
    """Writes the rows in that layout, always the same one; gives what was written."""
    random = np.random.default_rng(0).permutation(len(rows))
    laid_out = rows[random]
    if layout == "sorted by class":
        laid_out = laid_out[np.argsort(laid_out[:, 0], kind="stable")]
    write(laid_out, path)
    return laid_out


def pieces(records: headrace.Records) -> Iterator[Rows]:
    """All records from first to last, in large reads past the page cache, the next ones ahead."""
    order = headrace.SequentialOrder()
    for batch in headrace.Loader(records, PIECE_RECORDS, order=order, direct=True):
        yield batch["data"]


def rewrite(source: Path, target: Path, members: NDArray[np.int64]) -> float:
    """A file whose row i is the source's record members[i]; gives the seconds that it took.

    One pass, with all rows in memory, on the disk at its end: the fastest way there is. Data larger
    than memory takes two passes and a second copy.
    """
    began_s = time.perf_counter()
    places = np.empty(len(members), np.int64)
    places[members] = np.arange(len(members))
    rows = np.empty((len(members), RECORD_BYTES), np.uint8)
    first = 0
    for piece in pieces(headrace.open(source)):
        rows[places[first : first + len(piece)]] = piece
        first += len(piece)
    write(rows, target)
    return time.perf_counter() - began_s


def write(rows: Rows, path: Path) -> None:
    """Writes the rows as .npy, down to the disk, and lets memory forget them."""
    with path.open("wb") as file:
        np.save(file, rows)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
