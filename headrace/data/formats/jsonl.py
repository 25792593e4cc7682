"""JSON lines: a JSON value a line."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Format, Table
from headrace.data.formats.lines import rows_in
from headrace.data.formats.text import PIECE_BYTES
from headrace.progress import Progress

__all__ = ["JSONLines"]


@final
@dataclass(frozen=True)
class JSONLines(Format):
    """Field "json": what json.loads makes of a line. Blank lines are no records.

    Source: jsonlines.org, ndjson.org.
    """

    name: ClassVar[str] = "jsonl"

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name."""
        return path.suffix.lower() in (".jsonl", ".ndjson")

    def scan(
        self, path: Path, progress: Progress, piece_bytes: int = PIECE_BYTES
    ) -> Mapping[str, Table]:
        """By its line feeds, which JSON has nowhere within a string.

        Raises:
            DataError: the text is UTF-16.
        """
        return {"json": rows_in(path, progress, blanks=b" \t\r", piece_bytes=piece_bytes)}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """A dict, a list, text, a number, a bool or None.

        Raises:
            ValueError: the line is not one JSON value in UTF-8; says where.
        """
        text = record.tobytes().decode()
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"no JSON: {error.msg} at character {error.pos}") from error
        except RecursionError as error:
            raise ValueError("no JSON that can be read: it is nested too deeply") from error
