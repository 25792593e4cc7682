"""Plain text, a record a line; and how any format of lines finds them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Format, Table
from headrace.progress import Progress

__all__ = ["Lines", "chunks_of", "lines_in"]

_CHUNK_BYTES = 8 << 20


@final
@dataclass(frozen=True)
class Lines(Format):
    """Field "line": text without the end of its line, LF or CRLF. Blank lines are records too."""

    name: ClassVar[str] = "lines"

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name."""
        return path.suffix in (".txt", ".text")

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Table]:
        """By its line feeds. A last line needs none."""
        return {"line": lines_in(path, progress)}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> str:
        """UTF-8, without the carriage return of a CRLF."""
        text = record.tobytes()
        return (text[:-1] if text.endswith(b"\r") else text).decode()


def lines_in(path: Path, progress: Progress) -> Table:
    """The lines of a file, without their line feeds."""
    feeds = []
    size_bytes = 0
    for start, chunk in chunks_of(path, progress):
        feeds.append(start + np.flatnonzero(chunk == ord("\n")))
        size_bytes = start + len(chunk)
    ends = np.concatenate([np.empty(0, np.int64), *feeds])
    if size_bytes and (not len(ends) or ends[-1] != size_bytes - 1):
        ends = np.append(ends, size_bytes)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return Table(starts, ends - starts)


def chunks_of(
    path: Path, progress: Progress, chunk_bytes: int = _CHUNK_BYTES
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """A file from its first byte to its last, in pieces, each with where it begins.

    The memory of a piece is used again for the next. What is appended meanwhile is left alone.
    """
    buffer: NDArray[np.uint8] = np.empty(chunk_bytes, np.uint8)
    start = 0
    with path.open("rb", buffering=0) as file:
        end = file.seek(0, 2)
        file.seek(0)
        while size := file.readinto(buffer[: end - start].data):
            yield start, buffer[:size]
            start += size
            progress.update({"bytes": start})
