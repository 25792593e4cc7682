"""For torch's own DataLoader: records as a map-style data set, batches as an iterable one."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from headrace.data.batch_reader import BatchReader
from headrace.data.decoding import Batch
from headrace.data.loader import Loader
from headrace.data.reader import EngineName
from headrace.data.records import Records
from headrace.errors import RunError

__all__ = ["IterableBatches", "MapDataset"]


@final
class MapDataset:
    """A map-style data set, as torch.utils.data.Dataset is one; its samples are dicts of fields.

    torch's DataLoader asks it for the samples of a batch together (``__getitems__``), so that their
    reads are under way at once, where a Dataset of one's own would wait for one after another.
    Processes that DataLoader forks or spawns each make a reader of their own.

    Args:
        records: what to read.
        fields: names of those to read; None is all.
        engine: as of Reader.
        direct: as of Reader.

    Example::

        loader = torch.utils.data.DataLoader(MapDataset(records), batch_size=256, shuffle=True)
    """

    def __init__(
        self,
        records: Records,
        fields: Sequence[str] | None = None,
        *,
        engine: EngineName = "auto",
        direct: bool | None = None,
    ) -> None:
        self.records = records
        self._fields = tuple(records.fields if fields is None else fields)
        self._engine: EngineName = engine
        self._direct = direct
        self._readers: dict[tuple[int, int], BatchReader] = {}

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One sample.

        Raises:
            IndexError: no such record, so that a plain loop over the data set ends.
            ReadError: it could not be read.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        return self.__getitems__([index % len(self)])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The samples of a batch, all their reads at a time."""
        batch = self._reader().read(np.array(indices, np.int64))
        return [{name: batch[name][row] for name in self._fields} for row in range(len(indices))]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_readers": {}}

    def _reader(self) -> BatchReader:
        """That of this thread, which a forked child has not."""
        key = os.getpid(), threading.get_native_id()
        if key not in self._readers:
            self._readers[key] = BatchReader(
                self.records, self._fields, engine=self._engine, direct=self._direct
            )
        return self._readers[key]


@final
class IterableBatches(IterableDataset[Batch]):
    """The batches of a Loader, for what takes nothing but torch's DataLoader.

    With ``torchdata.stateful_dataloader.StatefulDataLoader`` the state is the Loader's own: exact,
    and loaded in constant time. Where any iterable will do, such as in Lightning, give the Loader
    itself.

    Args:
        loader: reads ahead and shuffles already, so DataLoader needs batch_size=None, no workers.

    Example::

        StatefulDataLoader(IterableBatches(loader), batch_size=None)
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        """What is left of the current epoch.

        Raises:
            RunError: in a worker of DataLoader, each of which would give all batches.
        """
        if get_worker_info() is not None:
            raise RunError(
                "a worker of DataLoader iterates over a headrace.Loader",
                expected="num_workers=0; each worker would give every batch again",
                remedy="ask for workers where the Loader is made: Loader(records, ..., workers=4)",
            )
        return iter(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """The Loader's."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """As of Loader."""
        self.loader.load_state_dict(state)
