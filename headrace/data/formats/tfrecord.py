"""TFRecord files, as TensorFlow writes them: any bytes, each framed by its length and checksums."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.example import parse_example
from headrace.data.formats.format import Format, Table, bytes_of, of_decoding
from headrace.data.formats.walking import walk_file
from headrace.errors import DataError
from headrace.progress import Progress

# What is compiled is imported where it is used: numba takes a while to load.

__all__ = ["TFRecord"]

_LEAST_BYTES = 16  # of a frame
_ZLIB = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")


@final
@dataclass(frozen=True)
class TFRecord(Format):
    """Field "record": its bytes, both checksums looked at whenever it is read.

    Args:
        example: records are tf.train.Example messages; values are what parse_example makes of them.

    Source: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
    """

    example: bool = of_decoding(False)

    name: ClassVar[str] = "tfrecord"

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name, or a first length that its checksum confirms and the file has room for."""
        if path.suffix in (".tfrecord", ".tfrecords"):
            return True
        length = int.from_bytes(head[:8], "little")
        if len(head) < 12 or path.stat().st_size < length + _LEAST_BYTES:
            return False  # nearly all files of other formats, so that numba is not loaded for them
        from headrace.data.formats.frames import HEAD_BYTES, LENGTH, walk

        piece = np.frombuffer(head[:HEAD_BYTES], np.uint8).copy()
        return walk(piece, length + _LEAST_BYTES, np.empty(1, np.int64))[2] != LENGTH

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Table]:
        """From length to length; of records over 256 KiB only these are read.

        Raises:
            DataError: a length's checksum is wrong, or the file ends within a record.
        """
        chain = _Chain(path)
        walk_file(path, chain.step, progress)
        return {"record": chain.table()}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """Bytes, or of an Example a dict.

        Raises:
            ValueError: a checksum or the length is wrong, or the bytes are no Example.
        """
        from headrace.data.formats.frames import DATA, FINE, HEAD_BYTES, LENGTH, SIZE, fault_of

        fault = fault_of(record)
        if fault != FINE:
            length = int.from_bytes(record[:8].tobytes(), "little")
            raise ValueError(
                {
                    LENGTH: "the checksum of its length is wrong",
                    SIZE: f"its length is {length} and should be {len(record) - _LEAST_BYTES}",
                    DATA: f"the checksum of its {length} bytes is wrong",
                }[fault]
            )
        payload = record[HEAD_BYTES : HEAD_BYTES - _LEAST_BYTES].tobytes()
        return parse_example(payload) if self.example else payload

    def decode_batch(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> list[Any] | None:
        """As decode of each; the checksums by compiled code, all at once."""
        from headrace.data.formats.frames import HEAD_BYTES, all_fine

        if not all_fine(memory, begins, lengths):
            return None
        payloads = bytes_of(memory, begins + HEAD_BYTES, lengths - _LEAST_BYTES)
        return list(map(parse_example, payloads)) if self.example else payloads


@final
class _Chain:
    """The frames of a file, as far as it has been walked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size_bytes = path.stat().st_size
        self._offsets: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
        self._num_records = 0

    def step(self, start: int, piece: NDArray[np.uint8]) -> tuple[int, int]:
        """The frames that have their head in a piece; see headrace.data.formats.walking."""
        from headrace.data.formats.frames import CUT, FINE, walk

        left = self._size_bytes - start
        places: NDArray[np.int64] = np.empty(len(piece) // _LEAST_BYTES + 1, np.int64)
        at, num, fault = walk(piece, left, places)
        self._offsets.append(start + places[:num])
        self._num_records += num
        if fault == FINE and 0 < left - at < _LEAST_BYTES:
            fault = CUT
        if fault == CUT:
            raise self._cut(start + at, piece[at:])
        if fault != FINE:
            raise self._damaged(start + at, piece[at:])
        return start + at, num

    def table(self) -> Table:
        """Frames whole, so that whoever reads one can check it."""
        offsets = np.concatenate(self._offsets)
        return Table(offsets, np.diff(offsets, append=self._size_bytes))

    def _cut(self, offset: int, rest: NDArray[np.uint8]) -> DataError:
        if len(rest) < 8:
            expected = f"at least {offset + _LEAST_BYTES}"
        else:
            length = int.from_bytes(rest[:8].tobytes(), "little")
            expected = f"{offset + _LEAST_BYTES + length}"
        return DataError(
            "the file is truncated",
            got=f"{self._size_bytes} bytes",
            expected=f"{expected} for record {self._num_records}, which begins at byte {offset}",
            where=self._path,
            remedy=f"copy or write it again; the {self._num_records} records before are whole",
        )

    def _damaged(self, offset: int, rest: NDArray[np.uint8]) -> DataError:
        head = rest[:12].tobytes()
        if self._num_records == 0:
            is_zlib = head[:2] in _ZLIB
            return DataError(
                "not a TFRecord file, or one whose first length is damaged",
                got=f"the first bytes {head.hex(' ')}",
                expected="a length and its checksum",
                where=self._path,
                remedy="it seems to be ZLIB-compressed: unpack it" if is_zlib else None,
            )
        return DataError(
            f"the length of record {self._num_records} is damaged: its checksum is wrong",
            got=f"{head.hex(' ')} at byte {offset}",
            where=self._path,
            remedy=f"copy or write it again; the {self._num_records} records before can be read",
        )
