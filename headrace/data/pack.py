"""Rewrites records, in their order or shuffled, into a standard format that is read in place."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from headrace.data.batch_reader import BatchReader
from headrace.data.decoding import Batch
from headrace.data.order import Order
from headrace.data.records import Records
from headrace.data.writers import WRITERS
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["pack"]

_BATCH = 256


def pack(records: Records, target: Path, format: str, order: Order, progress: Progress) -> None:
    """Writes a data set anew. What is written has its name only once it is whole.

    Args:
        records: what to write.
        target: a folder to make for "npy", else a file.
        format: "npy": fields of one shape, each as ``target/<field>.npy``. "tar": any fields, a
            member each as WebDataset has them; arrays as .npy, objects as .json. "tfrecord": one
            field of bytes, text or JSON. "csr": sparse rows and what numbers go with them.
        order: which record comes when; epoch 0 of it.
        progress: is told ``records`` written so far and ``num_records``.

    Raises:
        DataError: the target exists, or the fields do not go into the format.
        ReadError: a record could not be read; nothing is left behind.
    """
    if format not in WRITERS:
        raise DataError("unknown format to write", got=format, expected=", ".join(WRITERS))
    if target.exists():
        raise DataError("the target exists", got=target, remedy="give another name, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    num_done, num_records = 0, order.num_positions(len(records))
    with ExitStack() as stack:
        writer = WRITERS[format](records.fields, target, num_records, stack)
        for batch, size in _batches(records, order):
            writer.write(batch, size)
            num_done += size
            progress.update({"records": num_done, "num_records": num_records})
        writer.finish()


def _batches(records: Records, order: Order) -> Iterator[tuple[Batch, int]]:
    """All records in the order, the next batch under way while one is written."""
    num_positions = order.num_positions(len(records))
    every = (
        order.indices(np.arange(start, min(start + _BATCH, num_positions)), len(records), 0)
        for start in range(0, num_positions, _BATCH)
    )
    with BatchReader(records, tuple(records.fields)) as reader:
        for indices, batch in reader.batches(every, num_ahead=1):
            yield batch, len(indices)
