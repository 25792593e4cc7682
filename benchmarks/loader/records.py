"""The same records in every format that takes part, and how long each takes to write."""

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["NUM_SHARDS", "WRITERS", "Case", "files_of", "number_of", "write"]

NUM_SHARDS = 8  # of tar and TFRecord, so that 8 workers have a file each
_NUMBER_BYTES = 16  # a record begins with its number in decimal digits
_POOL_BYTES = 1 << 22
_CHUNK_BYTES = 64 << 20  # of the formats that are made of chunks: their own default


@dataclass(frozen=True)
class Case:
    """Records of one kind; record i begins with the number i, and its length follows from i too.

    Args:
        name: for tables.
        least: bytes of the shortest record.
        most: bytes of the longest.
        num_records: of the data set.
        batch_size: records of a batch.
        limit_bytes: memory that a cold run may use, the page cache included.
    """

    name: str
    least: int
    most: int
    num_records: int
    batch_size: int
    limit_bytes: int

    @property
    def fixed(self) -> int:
        """Bytes of a record where all have one size."""
        return (self.least + self.most) // 2

    def lengths(self) -> NDArray[np.int64]:
        """int64[N]: bytes of each record."""
        return np.random.default_rng(1).integers(self.least, self.most + 1, self.num_records)

    def records(self, *, is_fixed: bool = False) -> Iterator[bytes]:
        """All records in order: the number, then letters that no compressor likes."""
        pool = letters(self.most)
        lengths = [self.fixed] * self.num_records if is_fixed else self.lengths().tolist()
        for number, length in enumerate(lengths):
            start = place(number)
            yield b"%016d" % number + pool[start : start + length - _NUMBER_BYTES]


def letters(most: int) -> bytes:
    """Random bytes without line feeds, so that text formats hold the same records."""
    random = np.random.default_rng(2).integers(0, 64, _POOL_BYTES + most)
    return (random + ord("0")).astype(np.uint8).tobytes()


def place(number: int) -> int:
    """Where in the letters the rest of a record begins."""
    return number * 7919 % _POOL_BYTES


def number_of(record: bytes) -> int:
    """The number that a record holds."""
    return int(record[:_NUMBER_BYTES])


def check(case: Case) -> Callable[[bytes, bool], int]:
    """Gives what compares a record, byte by byte, with what was written; it tells the number."""
    pool, lengths = letters(case.most), case.lengths()

    def compare(record: bytes, is_fixed: bool) -> int:
        number = number_of(record)
        length = case.fixed if is_fixed else int(lengths[number])
        start = place(number)
        if record[_NUMBER_BYTES:] != pool[start : start + length - _NUMBER_BYTES]:
            raise ValueError(f"record {number} holds other bytes than were written")
        return number

    return compare


def files_of(folder: Path, format: str) -> list[Path]:
    """The files of a format, in order; headrace's indexes beside them are none."""
    paths = sorted(path for path in (folder / format).rglob("*") if path.is_file())
    return [path for path in paths if ".headrace" not in path.parts]


def write(case: Case, format: str, folder: Path) -> float:
    """Writes all records; the seconds that it took (until the system had them, not the disk)."""
    target = folder / format
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    began_s = time.perf_counter()
    WRITERS[format](case, target)
    return time.perf_counter() - began_s


def _npy(case: Case, folder: Path) -> None:
    header = {"descr": "|u1", "fortran_order": False, "shape": (case.num_records, case.fixed)}
    with (folder / "records.npy").open("wb", buffering=1 << 20) as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.writelines(case.records(is_fixed=True))


def _flat(case: Case, folder: Path) -> None:
    with (folder / "records.bin").open("wb", buffering=1 << 20) as file:
        file.writelines(case.records())
    np.save(folder / "offsets.npy", np.concatenate([[0], np.cumsum(case.lengths())]))


def _lines(case: Case, folder: Path) -> None:
    with (folder / "records.txt").open("wb", buffering=1 << 20) as file:
        for record in case.records():
            file.write(record)
            file.write(b"\n")


def _shards(case: Case) -> Iterator[tuple[int, list[bytes]]]:
    """The records, at most a thousand at a time, with the shard that they belong to."""
    records, some = case.records(), min(1000, case.num_records // NUM_SHARDS)
    for first in range(0, case.num_records, some):
        count = min(some, case.num_records - first)
        yield first * NUM_SHARDS // case.num_records, [next(records) for _ in range(count)]


def _tar(case: Case, folder: Path) -> None:
    """USTAR; headers from a template, since tarfile would take minutes for the small records."""
    template = bytearray(512)
    for start, text in ((100, b"0000644\0"), (108, b"0000000\0" * 2), (136, b"00000000000\0")):
        template[start : start + len(text)] = text
    template[148:156] = b" " * 8  # the checksum counts itself as blanks
    template[156:157] = b"0"
    template[257:265] = b"ustar\x0000"
    base = sum(template)
    files = [
        (folder / f"records-{shard}.tar").open("wb", buffering=1 << 20)
        for shard in range(NUM_SHARDS)
    ]
    number = 0
    for shard, some in _shards(case):
        for record in some:
            name, size = b"%016d.bin" % number, b"%011o" % len(record)
            template[: len(name)] = name
            template[124:135] = size
            template[148:156] = b"%06o\0 " % (base + sum(name) + sum(size))
            files[shard].write(template)
            files[shard].write(record)
            files[shard].write(bytes(-len(record) % 512))
            number += 1
    for file in files:
        file.write(bytes(1024))
        file.close()


def _tfrecord(case: Case, folder: Path) -> None:
    from crc32c import crc32c

    def masked(text: bytes) -> bytes:
        crc = crc32c(text)
        return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")

    files = [
        (folder / f"records-{shard}.tfrecord").open("wb", buffering=1 << 20)
        for shard in range(NUM_SHARDS)
    ]
    for shard, some in _shards(case):
        for record in some:
            length = len(record).to_bytes(8, "little")
            files[shard].write(b"".join((length, masked(length), record, masked(record))))
    for file in files:
        file.close()


def _arrow(case: Case, folder: Path) -> None:
    import pyarrow

    schema = pyarrow.schema([("data", pyarrow.binary())])
    with pyarrow.ipc.new_file(str(folder / "records.arrow"), schema) as file:
        for some in _tables(case, schema):
            file.write_batch(some)


def _arrow_stream(case: Case, folder: Path) -> None:
    import pyarrow

    schema = pyarrow.schema([("data", pyarrow.binary())])
    with pyarrow.ipc.new_stream(str(folder / "records.arrow"), schema) as file:
        for some in _tables(case, schema):
            file.write_batch(some)


def _tables(case: Case, schema):  # type: ignore[no-untyped-def]
    import pyarrow

    for _, some in _shards(case):
        yield pyarrow.record_batch([pyarrow.array(some, pyarrow.binary())], schema=schema)


def _lance(case: Case, folder: Path) -> None:
    import lance
    import pyarrow

    schema = pyarrow.schema([("data", pyarrow.binary())])
    reader = pyarrow.RecordBatchReader.from_batches(schema, _tables(case, schema))
    lance.write_dataset(reader, str(folder / "records.lance"))


def _array_record(case: Case, folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "records.array_record"), "group_size:1,uncompressed")
    for record in case.records():
        writer.write(record)
    writer.close()


def _mds(case: Case, folder: Path) -> None:
    from contestants import import_streaming

    streaming = import_streaming()
    columns = {"data": "bytes"}
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=_CHUNK_BYTES) as writer:
        for record in case.records():
            writer.write({"data": record})


def _litdata(case: Case, folder: Path) -> None:
    """With the writer that litdata.optimize runs in its workers: here in this process."""
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(folder), chunk_bytes=_CHUNK_BYTES)
    for number, record in enumerate(case.records()):
        writer[number] = record
    writer.done()
    writer.merge()


WRITERS: dict[str, Callable[[Case, Path], None]] = {
    "npy": _npy,
    "lines": _lines,
    "tar": _tar,
    "tfrecord": _tfrecord,
    "arrow": _arrow,
    "arrow_stream": _arrow_stream,
    "flat": _flat,
    "array_record": _array_record,
    "lance": _lance,
    "mds": _mds,
    "litdata": _litdata,
}
