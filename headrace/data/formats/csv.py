"""CSV and TSV: rows of cells, which may be quoted and then have line feeds of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Format, Table
from headrace.data.formats.lines import rows_in
from headrace.data.formats.text import PIECE_BYTES
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["CSV", "cells_of"]


@final
@dataclass(frozen=True)
class CSV(Format):
    """Field "row": a dict of the columns' names to text, or without a header a list of text.

    Blank rows are no records. Rows end with LF or CRLF; what stands in quotes may have either.
    Quotes begin a cell or are characters like others, as Python's csv module has it.

    Args:
        delimiter: one ASCII character; None is a tab for files named .tsv, else a comma.
        quote: one ASCII character, within quotes doubled; "" for a file without quotes.
        header: whether the first row has the columns' names; all files must have the same.

    Raises:
        DataError: a delimiter or quote that is wrong.

    Source: RFC 4180.
    """

    delimiter: str | None = None
    quote: str = '"'
    header: bool = True

    name: ClassVar[str] = "csv"

    def __post_init__(self) -> None:
        delimiter = "," if self.delimiter is None else self.delimiter
        for name, value, least in (("delimiter", delimiter, 1), ("quote", self.quote, 0)):
            is_one = isinstance(value, str) and least <= len(value) <= 1 and value.isascii()
            if not is_one or value in ("\r", "\n"):
                raise DataError(
                    f"the {name} is wrong", got=repr(value), expected="one ASCII character"
                )
        if delimiter == self.quote:
            raise DataError("delimiter and quote are the same", got=repr(delimiter))

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name."""
        return path.suffix.lower() in (".csv", ".tsv")

    def scan(
        self, path: Path, progress: Progress, piece_bytes: int = PIECE_BYTES
    ) -> Mapping[str, Table]:
        """By the line feeds that are not in quotes.

        Raises:
            DataError: quotes that are never closed, a header that is damaged or names two columns
                alike, text in UTF-16.
        """
        is_tsv = path.suffix.lower() == ".tsv"
        delimiter = ("\t" if is_tsv else ",") if self.delimiter is None else self.delimiter
        table = rows_in(
            path,
            progress,
            blanks=b"\r",
            quote=ord(self.quote or "\n"),
            delimiter=ord(delimiter),
            piece_bytes=piece_bytes,
        )
        if table.num_records == 0:
            return {"row": table}
        first = self._first_row(path, table, delimiter)
        about = {"delimiter": delimiter, "num_cells": len(first)}
        if not self.header:
            return {"row": Table(table.offsets, table.lengths, about=about)}
        return {"row": Table(table.offsets[1:], table.lengths[1:], about=about | {"names": first})}

    def join(self, abouts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The header of all files that are not empty.

        Raises:
            ValueError: two files differ in header, delimiter or number of cells.
        """
        filled = [about for about in abouts if about]
        for about in filled:
            if about != filled[0]:
                raise ValueError(f"{_shown(about)} and {_shown(filled[0])}")
        return filled[0] if filled else {}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """A dict, or a list where there is no header.

        Raises:
            ValueError: the row has too few or too many cells, or is not in UTF-8.
        """
        cells = cells_of(record.tobytes().decode(), about["delimiter"], self.quote)
        names = about.get("names")
        if len(cells) != about["num_cells"]:
            whose = "header" if names else "first row"
            raise ValueError(f"{len(cells)} cells, and the {whose} has {about['num_cells']}")
        return dict(zip(names, cells, strict=True)) if names else cells

    def _first_row(self, path: Path, table: Table, delimiter: str) -> list[str]:
        with path.open("rb") as file:
            file.seek(int(table.offsets[0]))
            content = file.read(int(table.lengths[0]))
        try:
            cells = cells_of(content.decode(), delimiter, self.quote)
        except ValueError as error:
            raise DataError(
                "the first row is damaged",
                got=error,
                where=path,
                remedy="if the text is not in UTF-8, convert it: iconv -t UTF-8",
            ) from error
        twice = [name for name in dict.fromkeys(cells) if cells.count(name) > 1]
        if self.header and twice:
            raise DataError(
                "columns have the same name",
                got=", ".join(map(repr, twice)),
                where=path,
                remedy="if there is no header, say so: header=False",
            )
        return cells


def cells_of(text: str, delimiter: str, quote: str) -> list[str]:
    """The cells of one row, without their quotes.

    Args:
        text: the row, with or without the end of its line.
        delimiter: a character.
        quote: a character, or "" if there are no quotes.

    Raises:
        ValueError: quotes are not closed, or a line ends outside of them.
    """
    text = text.removesuffix("\n").removesuffix("\r")
    if not quote or quote not in text:
        _refuse_ends(text, 0)
        return text.split(delimiter)
    cells, at = [], 0
    while True:
        quoted, at = _quoted(text, at, quote)
        end = text.find(delimiter, at)
        rest = text[at:] if end < 0 else text[at:end]
        _refuse_ends(rest, at)
        cells.append(quoted + rest)
        if end < 0:
            return cells
        at = end + 1


def _quoted(text: str, begin: int, quote: str) -> tuple[str, int]:
    """What stands in the quotes that begin there, if they do; and where they have ended."""
    parts, at = [], begin
    while text.startswith(quote, at):  # the second time they were doubled
        end = text.find(quote, at + 1)
        if end < 0:
            raise ValueError(f"the quotes of character {begin} are not closed")
        parts.append(text[at + 1 : end])
        at = end + 1
    return quote.join(parts), at


def _refuse_ends(text: str, begin: int) -> None:
    """No line ends outside of quotes, but at the end of the row."""
    for end in "\r\n":
        if end in text:
            where = f"character {begin + text.index(end)}"
            raise ValueError(f"a line ends at {where}, by {end!r} without quotes")


def _shown(about: Mapping[str, Any]) -> str:
    cells = about.get("names") or f"{about['num_cells']} cells"
    return f"{cells} with the delimiter {about['delimiter']!r}"
