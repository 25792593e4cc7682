"""What the tests of formats share: one epoch in a random order, through the loader."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

import headrace
from headrace.data.reader import EngineName

ENGINES: tuple[EngineName, ...] = ("uring", "threads")


def epoch(
    records: headrace.Records, engine: EngineName = "threads", batch_size: int = 7, seed: int = 3
) -> tuple[NDArray[np.int64], dict[str, Any]]:
    """The order of an epoch, and per field what came, joined: an array or a list."""
    order = headrace.RandomOrder(seed)
    indices = order.indices(np.arange(len(records)), len(records), 0)
    assert sorted(indices.tolist()) == list(range(len(records)))
    with headrace.Loader(records, batch_size, order=order, engine=engine) as loader:
        batches = list(loader)
    joined: dict[str, Any] = {}
    for name in records.fields:
        columns = [batch[name] for batch in batches]
        if columns and isinstance(columns[0], np.ndarray):
            joined[name] = np.concatenate(columns)
        else:
            joined[name] = [value for column in columns for value in column]
    return indices, joined
