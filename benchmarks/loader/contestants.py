"""Who brings batches of records: headrace and the loaders that people use, each at its best."""

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from records import Case

__all__ = ["CONTESTANTS", "Contestant", "Task", "import_streaming", "rows_of"]

_WORKERS = 8
_LARGEST_BUFFER = 5000  # records that a worker of WebDataset shuffles at a time; its default: 1000
_LARGEST_CALL_BYTES = 32 << 20  # of ArrayRecord, where a few calls must fit in the memory
_AHEAD = 4  # batches that are fetched beside the one in use, by those who leave that to the user


@dataclass(frozen=True)
class Task:
    """What is to be read.

    Args:
        case: its records.
        folder: where the format's files lie.
        epoch: decides the order, where a loader has no epochs of its own.
        is_cold: whether the files are larger than the memory.
    """

    case: Case
    folder: Path
    epoch: int
    is_cold: bool

    def shuffled(self, batch_size: int | None = None) -> Iterator[NDArray[np.int64]]:
        """The batches of a random order, for those who bring none."""
        order = np.random.default_rng(self.epoch).permutation(self.case.num_records)
        size = batch_size or self.case.batch_size
        return (order[first : first + size] for first in range(0, len(order), size))


@dataclass(frozen=True)
class Contestant:
    """One way to get batches.

    Args:
        name: for tables.
        format: of its files, as in records.WRITERS.
        batches: the batches of an epoch; each is what the loader gives, see rows_of.
        needs: modules without which it does not take part.
        is_global: whether any record may come at any place of an epoch.
        is_rival: not headrace.
        is_quick: takes part in the quick mode.
        is_fixed: its records have all one size.
        is_side: another setting of the same loader is known to be better: measured in one round.
        note: what else a reader of the table must know.
    """

    name: str
    format: str
    batches: Callable[[Task], Iterator[Any]]
    needs: tuple[str, ...] = ()
    is_global: bool = True
    is_rival: bool = True
    is_quick: bool = False
    is_fixed: bool = False
    is_side: bool = False
    note: str = ""


def rows_of(batch: Any) -> list[bytes]:
    """The records of a batch, whatever a loader makes of them."""
    if isinstance(batch, np.ndarray):
        return [row.tobytes() for row in batch]
    if isinstance(batch, _Flat):
        flat, starts = batch.bytes.numpy().tobytes(), [0, *batch.ends.tolist()]
        return [flat[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    values = batch if isinstance(batch, list) else batch.to_pylist()
    return [value.encode() if isinstance(value, str) else bytes(value) for value in values]


def headrace_batches(pattern: str, **options: Any) -> Callable[[Task], Iterator[Any]]:
    """headrace, on files as they lie."""

    def batches(task: Task) -> Iterator[Any]:
        import headrace
        from headrace import RandomOrder

        records = headrace.open(str(task.folder / pattern), **options)
        order = RandomOrder(seed=task.epoch)
        # Told what it would find out itself, if the limit were the machine's or the container's.
        loader = headrace.Loader(records, task.case.batch_size, order=order, direct=task.is_cold)
        for batch in loader:
            (values,) = batch.values()
            yield values

    return batches


def ahead(
    fetch: Callable[[Any], Any], batches: Iterator[Any], num_threads: int = _AHEAD
) -> Iterator[Any]:
    """The batches in order, so many fetched at a time by threads."""
    with ThreadPoolExecutor(num_threads) as pool:
        waiting = deque(pool.submit(fetch, one) for one in islice(batches, num_threads))
        try:
            while waiting:
                batch = waiting.popleft().result()
                waiting.extend(pool.submit(fetch, one) for one in islice(batches, 1))
                yield batch
        finally:
            for one in waiting:
                one.cancel()


def memory_map(task: Task) -> Iterator[Any]:
    """np.memmap[indices]: what many trainings of language models do."""
    array = np.load(task.folder / "records.npy", mmap_mode="r").view(np.ndarray)
    return (array[indices] for indices in task.shuffled())


def array_record(task: Task) -> Iterator[Any]:
    """The package's own reader, up to 16 batches in a call, some calls at a time.

    Each call costs it time in proportion to the whole file's records, so they are few.
    """
    from array_record.python.array_record_module import ArrayRecordReader

    path = str(task.folder / "records.array_record")
    reader = ArrayRecordReader(path, options="readahead_buffer_size:0")
    size = task.case.batch_size
    num_batches = min(16, max(1, _LARGEST_CALL_BYTES // (task.case.fixed * size)))
    calls = task.shuffled(num_batches * size)
    for records in ahead(lambda indices: reader.read(indices.tolist()), calls):
        for first in range(0, len(records), size):
            yield records[first : first + size]


class _BatchSource:
    """A source for Grain whose elements are batches: its own batching reads record by record."""

    def __init__(self, task: Task) -> None:
        from grain.python import ArrayRecordDataSource

        self._source = ArrayRecordDataSource(str(task.folder / "records.array_record"))
        self._batches = list(task.shuffled())

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> list[bytes]:
        return list(self._source.__getitems__(self._batches[index].tolist()))


def grain_batched(task: Task) -> Iterator[Any]:
    """Grain, with a source that asks ArrayRecord for whole batches."""
    from grain import python as grain

    options = grain.ReadOptions(num_threads=_AHEAD, prefetch_buffer_size=2 * _AHEAD)
    return iter(grain.MapDataset.source(_BatchSource(task)).to_iter_dataset(options))


def grain_default(task: Task) -> Iterator[Any]:
    """Grain as its documentation shows it."""
    from grain import python as grain

    source = grain.ArrayRecordDataSource(str(task.folder / "records.array_record"))
    shuffled = grain.MapDataset.source(source).shuffle(seed=task.epoch)
    return iter(shuffled.to_iter_dataset().batch(task.case.batch_size, batch_fn=list))


def lance_take(scheme: str) -> Callable[[Task], Iterator[Any]]:
    """Lance's take, some at a time."""

    def batches(task: Task) -> Iterator[Any]:
        import lance

        data = lance.dataset(scheme + str(task.folder / "records.lance"))
        return ahead(lambda indices: data.take(indices, columns=["data"])["data"], task.shuffled())

    return batches


@dataclass(frozen=True)
class _Flat:
    """Records of any length in two tensors, which workers hand over without a copy."""

    bytes: Any
    ends: Any

    def __len__(self) -> int:
        return len(self.ends)


class PreadRecords:
    """A map-style data set that reads each record with os.preadv, straight into the batch."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "records.bin"
        self._offsets = np.load(folder / "offsets.npy")
        self._descriptor = -1  # each worker opens its own

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitems__(self, indices: Sequence[int]) -> _Flat:
        """A batch at once, which spares one tensor a record."""
        import torch

        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        rows = np.asarray(indices)
        offsets = self._offsets[rows]
        ends = np.cumsum(self._offsets[rows + 1] - offsets)
        flat = torch.empty(int(ends[-1]), dtype=torch.uint8)
        view, start = memoryview(flat.numpy()), 0
        for offset, end in zip(offsets.tolist(), ends.tolist(), strict=True):
            os.preadv(self._descriptor, [view[start:end]], offset)
            start = end
        return _Flat(flat, torch.from_numpy(ends))


def unchanged(batch: Any) -> Any:
    """Batches come collated."""
    return batch


def bytes_of(batch: list[Any]) -> list[bytes]:
    """The records of a batch whose elements are dicts of one field, or views of bytes."""
    return [one["data"] if isinstance(one, dict) else bytes(one) for one in batch]


def torch_loader(task: Task) -> Iterator[Any]:
    """torch's DataLoader with its own shuffle."""
    return _loaded(PreadRecords(task.folder), task, collate_fn=unchanged, shuffle=True)


def _loaded(data: Any, task: Task, **options: Any) -> Iterator[Any]:
    from torch.utils.data import DataLoader

    torch_seed(task.epoch)
    return iter(
        DataLoader(
            data,
            batch_size=task.case.batch_size,
            num_workers=_WORKERS,
            **options,
        )
    )


def torch_seed(seed: int) -> None:
    """For the order of torch's own sampler."""
    import torch

    torch.manual_seed(seed)


def _hugging_face(task: Task) -> Any:
    import datasets

    return datasets.Dataset.from_file(str(task.folder / "records.arrow"))


def hugging_face(task: Task) -> Iterator[Any]:
    """datasets, map-style, in a DataLoader with its own shuffle, as its documentation shows."""
    data = _hugging_face(task)
    return _loaded(data, task, collate_fn=bytes_of, shuffle=True)


def hugging_face_arrow(task: Task) -> Iterator[Any]:
    """datasets, whole batches of shuffled indices as Arrow arrays, some at a time.

    What it gives are views into the mapped file, so that nothing has been read yet: combined.
    """
    data = _hugging_face(task).with_format("arrow")

    def fetch(indices: NDArray[np.int64]) -> Any:
        return data[indices.tolist()]["data"].combine_chunks()

    return ahead(fetch, task.shuffled())


def streaming(algorithm: str) -> Callable[[Task], Iterator[Any]]:
    """MosaicML's StreamingDataset on local shards."""

    def batches(task: Task) -> Iterator[Any]:
        module = import_streaming()
        module.base.util.clean_stale_shared_memory()
        data = module.StreamingDataset(
            local=str(task.folder),
            shuffle=True,
            shuffle_algo=algorithm,
            shuffle_seed=task.epoch,
            batch_size=task.case.batch_size,
        )
        return _loaded(data, task, collate_fn=bytes_of)

    return batches


_libraries: list[Any] = []


def import_streaming() -> Any:
    """The package streaming, which wants a torchvision that cannot be had for every torch."""
    if "streaming" not in sys.modules and not _libraries:
        import torch

        library = torch.library.Library("torchvision", "FRAGMENT")
        for operation in ("nms", "qnms"):  # torchvision looks for them as it is imported
            if not hasattr(torch.ops.torchvision, operation):
                library.define(f"{operation}(Tensor boxes) -> Tensor")
        _libraries.append(library)  # what it defines is gone when it is
    import streaming

    return streaming


def litdata(task: Task) -> Iterator[Any]:
    """LitData's StreamingDataset on local chunks, in its own DataLoader.

    By default it permutes 256 records of a chunk at a time, which makes batches of neighbours.
    """
    from litdata import StreamingDataLoader, StreamingDataset

    seed = task.epoch + 1
    data = StreamingDataset(str(task.folder), shuffle=True, seed=seed, item_shuffle_window="full")
    return iter(
        StreamingDataLoader(
            data,
            batch_size=task.case.batch_size,
            num_workers=_WORKERS,
            collate_fn=bytes_of,
        )
    )


def webdataset(task: Task) -> Iterator[Any]:
    """WebDataset: shards in random order, a worker each, and buffers that fill half the memory."""
    import webdataset as wds

    case = task.case
    buffer_size = min(_LARGEST_BUFFER, case.limit_bytes // 2 // _WORKERS // case.fixed)
    urls = sorted(str(path) for path in task.folder.glob("*.tar"))
    data = wds.WebDataset(urls, shardshuffle=len(urls), seed=task.epoch, empty_check=False)
    picked = data.shuffle(buffer_size).to_tuple("bin")
    batched = picked.batched(case.batch_size, collation_fn=firsts)
    loader = wds.WebLoader(batched, batch_size=None, num_workers=_WORKERS)
    return iter(loader)


def firsts(batch: list[Any]) -> list[bytes]:
    """The only field of each record."""
    return [one[0] for one in batch]


def _headrace(format: str, pattern: str, **options: Any) -> Contestant:
    return Contestant(
        f"headrace {format}",
        format,
        headrace_batches(pattern, **options),
        is_rival=False,
        is_fixed=format == "npy",
        is_quick=format in ("npy", "tar"),
    )


_ARRAY_RECORD = "array_record"
CONTESTANTS: tuple[Contestant, ...] = (
    _headrace("npy", "records.npy"),
    _headrace("lines", "records.txt"),
    _headrace("tar", "records-*.tar", fields=("bin",)),
    _headrace("tfrecord", "records-*.tfrecord"),
    _headrace("arrow", "records.arrow"),
    Contestant("np.memmap[indices]", "npy", memory_map, is_fixed=True, is_quick=True),
    Contestant("ArrayRecord", _ARRAY_RECORD, array_record, (_ARRAY_RECORD,), is_quick=True),
    Contestant("Grain, batches", _ARRAY_RECORD, grain_batched, ("grain", _ARRAY_RECORD)),
    Contestant("Grain", _ARRAY_RECORD, grain_default, ("grain", _ARRAY_RECORD), is_side=True),
    Contestant("Lance take, io_uring", "lance", lance_take("file+uring://"), ("lance",)),
    Contestant("Lance take", "lance", lance_take(""), ("lance",), is_side=True),
    Contestant("DataLoader, pread", "flat", torch_loader, ("torch",), is_quick=True),
    Contestant(
        "HF datasets, DataLoader", "arrow_stream", hugging_face, ("datasets",), is_side=True
    ),
    Contestant("HF datasets, arrow", "arrow_stream", hugging_face_arrow, ("datasets",)),
    Contestant("MosaicML naive", "mds", streaming("naive"), ("streaming",)),
    Contestant(
        "MosaicML py1e",
        "mds",
        streaming("py1e"),
        ("streaming",),
        is_global=False,
        is_side=True,
        note="shuffles within blocks, here as large as the data",
    ),
    Contestant(
        "LitData",
        "litdata",
        litdata,
        ("litdata",),
        is_global=False,
        note="chunks in random order, shuffled within a chunk",
    ),
    Contestant(
        "WebDataset",
        "tar",
        webdataset,
        ("webdataset",),
        is_global=False,
        note="a buffer of at most 5000 records a worker",
    ),
)


warnings.filterwarnings("ignore", message="This DataLoader will create")
