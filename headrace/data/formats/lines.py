"""Plain text, a record a line; and how any format of rows finds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Format, Table
from headrace.data.formats.text import BEFORE_BYTES, PIECE_BYTES, scan_text, with_room
from headrace.errors import DataError
from headrace.progress import Progress

# What is compiled is imported where it is used: numba takes a while to load.

__all__ = ["Lines", "lines_in", "rows_in"]

_LF = ord("\n")


@final
@dataclass(frozen=True)
class Lines(Format):
    """Field "line": text without the end of its line, LF or CRLF. Blank lines are records too."""

    name: ClassVar[str] = "lines"
    version: ClassVar[int] = 2

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name."""
        return path.suffix.lower() in (".txt", ".text")

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Table]:
        """By its line feeds. A last line needs none; a byte order mark belongs to no line.

        Raises:
            DataError: the text is UTF-16.
        """
        return {"line": lines_in(path, progress)}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> str:
        """UTF-8, without the carriage return of a CRLF.

        Raises:
            ValueError: it is not UTF-8; says where.
        """
        return record.tobytes().removesuffix(b"\r").decode()


def lines_in(path: Path, progress: Progress, piece_bytes: int = PIECE_BYTES) -> Table:
    """The lines of a file, without their line feeds; as rows_in."""
    return rows_in(path, progress, blanks=b"", keeps_blank=True, piece_bytes=piece_bytes)


def rows_in(
    path: Path,
    progress: Progress,
    *,
    blanks: bytes,
    keeps_blank: bool = False,
    quote: int = _LF,
    delimiter: int = _LF,
    piece_bytes: int = PIECE_BYTES,
) -> Table:
    """The rows of a file, without their line feeds.

    Args:
        path: the file.
        progress: hears of the bytes behind.
        blanks: the bytes of which blank rows consist.
        keeps_blank: as of rows.Rules; so the next two.
        quote: a line feed for none.
        delimiter: a line feed for none.
        piece_bytes: how much of the file is looked at at a time.

    Raises:
        DataError: the text is UTF-16; quotes are open where it ends.
    """
    from headrace.data.formats.rows import Rules

    is_blank: NDArray[np.bool_] = np.zeros(256, bool)
    is_blank[list(blanks)] = True
    search = _Search(Rules(quote, delimiter, is_blank, keeps_blank))
    scan_text(path, search.step, progress, piece_bytes)
    return search.table(path)


@final
class _Search:
    """The rows of a file, as far as it has been looked at."""

    def __init__(self, rules: Any) -> None:
        from headrace.data.formats.rows import Under

        self._rules = rules
        self._under = Under(0)
        self._end = 0
        self._rows: NDArray[np.int64] = np.empty((2, 0), np.int64)
        self._num_rows = 0

    def step(self, text: NDArray[np.uint8], size: int, start: int) -> None:
        """The rows that end in a piece; see text.Step."""
        from headrace.data.formats.rows import Under, find_rows

        if self._end == 0:
            self._under = Under(start)
        self._rows = with_room(self._rows, self._num_rows, size + 1)
        rows = self._rows[:, self._num_rows :]
        first, offset = BEFORE_BYTES, start - BEFORE_BYTES
        num, under = find_rows(text, first, first + size, offset, self._rules, self._under, rows)
        self._under = Under(*under)
        self._num_rows += num
        self._end = start + size

    def table(self, path: Path) -> Table:
        """What was found; a row that no line feed ends is one too."""
        begin, is_blank, opened, _ = self._under
        if opened >= 0:
            raise DataError(
                "quotes are never closed",
                got=f"the end of the file at byte {self._end}",
                expected=f"the end of the quotes of byte {opened}, in the row of byte {begin}",
                where=path,
                remedy='double the quotes that are meant as such, or give quote=, "" for none',
            )
        if begin < self._end and (self._rules.keeps_blank or not is_blank):
            self._rows = with_room(self._rows, self._num_rows, 1)
            self._rows[:, self._num_rows] = begin, self._end - begin
            self._num_rows += 1
        offsets, lengths = self._rows[:, : self._num_rows]
        return Table(offsets, lengths)
