"""LIBSVM or SVMlight text: a line a record, a label and sparse features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.format import Format, Table, of_decoding
from headrace.data.formats.sparse import SparseRows
from headrace.data.formats.svmlight import labels_of, numbers_of, query_of, rows_of
from headrace.data.formats.text import BEFORE_BYTES, PIECE_BYTES, scan_text, with_room
from headrace.errors import DataError
from headrace.progress import Progress

# What is compiled is imported where it is used: numba takes a while to load.

__all__ = ["LibSVM"]


@final
@dataclass(frozen=True)
class LibSVM(Format):
    """Fields "label", float64, and "features", of which a batch holds SparseRows; maybe "qid".

    A line is "label index:value index:value ...". Each field is the bytes of its part of the line,
    so that whoever needs labels alone reads only them. Blank lines are no records; # begins a
    comment. "qid:n" right after the label is the field "qid", int64, if any line of a file has it.

    Args:
        zero_based: whether the least index is 0, or 1, which becomes column 0; "auto": 1 unless a
            0 stands anywhere in any of the files.
        num_features: the number of columns; None is as many as the greatest index of all files
            asks for.
        multilabel: labels are several numbers a line, such as 1,2, or none; a batch holds a list of
            tuples, ascending.
        sort: whether indexes may be out of order in a line, and are brought into it; else such a
            line is damaged. An index that a line has twice is damage in any case, as are values
            that are not finite.

    Raises:
        DataError: an option that is wrong.

    Source: sklearn.datasets.load_svmlight_file, whose rules these are, but that its "auto" takes a
    file without features for zero-based; svmlight.joachims.org.
    """

    zero_based: bool | Literal["auto"] = of_decoding("auto")
    num_features: int | None = of_decoding(None)
    multilabel: bool = of_decoding(False)
    sort: bool = False

    name: ClassVar[str] = "libsvm"

    def __post_init__(self) -> None:
        if self.zero_based not in (True, False, "auto"):
            raise DataError(
                "zero_based is wrong", got=repr(self.zero_based), expected='True, False or "auto"'
            )
        num = self.num_features
        if num is not None and (type(num) is not int or num < 1):
            raise DataError("num_features is wrong", got=repr(num), expected="at least 1, or None")

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name."""
        return path.suffix.lower() in (".libsvm", ".svm", ".svmlight")

    def scan(
        self, path: Path, progress: Progress, piece_bytes: int = PIECE_BYTES
    ) -> Mapping[str, Table]:
        """By words and line feeds; finds the least and the greatest index, but reads no values.

        Where indexes ascend as they should, the first and the last of a line tell; all are looked
        at if they need not (``sort``), or if a line ends in a word of more than 80 characters.

        Raises:
            DataError: the text is UTF-16.
        """
        search = _Search(is_sorted=not self.sort)
        _, end = scan_text(path, search.step, progress, piece_bytes)
        search.end(end)
        if not search.is_sure:
            search = _Search(is_sorted=False)
            scan_text(path, search.step, progress, piece_bytes)
            search.end(end)
        return search.tables()

    def join(self, abouts: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """The one base and number of columns of all files.

        Raises:
            ValueError: an index that the options leave no place for.
        """
        least = min((about["least"] for about in abouts if about["least"] is not None), default=1)
        most = max((about["most"] for about in abouts if about["most"] is not None), default=-1)
        base = int(least > 0) if self.zero_based == "auto" else int(not self.zero_based)
        if least < base:
            raise ValueError(f"index {least}, which zero_based=False leaves no place for")
        needed = max(0, most + 1 - base)
        if self.num_features is not None and needed > self.num_features:
            raise ValueError(
                f"index {most}, where indexes begin at {base} and num_features={self.num_features}"
            )
        width = needed if self.num_features is None else self.num_features
        return {"base": base, "num_features": width}

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """A float, or tuple of them; one row of SparseRows; a whole number.

        Raises:
            ValueError: that is not what the bytes are; says where.
        """
        if field == "qid":
            return query_of(record)
        if field == "label" and self.multilabel:
            return labels_of(record)
        values = self._parsed(field, record, np.zeros(1, np.int64), np.array([len(record)]), about)
        return float(values[0]) if field == "label" else values

    def collate(self, field: str, values: list[Any], about: Mapping[str, Any]) -> Any:
        """float64[R] or a list of tuples; SparseRows; int64[R]."""
        if field == "features":
            return SparseRows.stacked(values, about["num_features"])
        if field == "label" and self.multilabel:
            return values
        return np.array(values, np.int64 if field == "qid" else np.float64)

    def decode_batch(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> Any:
        """As decode and collate of each, but by compiled code."""
        if field == "qid" or (field == "label" and self.multilabel):
            return None
        try:
            return self._parsed(field, memory, begins, lengths, about)
        except ValueError:
            return None

    def _parsed(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> Any:
        """What a batch holds of labels, one a record, or features."""
        if field == "label":
            return numbers_of(memory, begins, lengths)
        base, num_features = about["base"], about["num_features"]
        return rows_of(memory, begins, lengths, base, num_features, sorts=self.sort)


@final
class _Search:
    """The records of a file, as far as it has been looked at."""

    def __init__(self, *, is_sorted: bool) -> None:
        from headrace.data.formats.svmlight_scan import Line

        self._is_sorted = is_sorted
        self._line = Line()
        self._tail: NDArray[np.uint8] = np.zeros(BEFORE_BYTES, np.uint8)
        self._records: NDArray[np.int64] = np.empty((6, 0), np.int64)
        self._num_records = 0

    @property
    def is_sure(self) -> bool:
        """Whether the greatest index is known."""
        return self._line.is_sure

    def step(self, text: NDArray[np.uint8], size: int, start: int) -> None:
        """The records of a piece; see text.Step."""
        from headrace.data.formats.svmlight_scan import Line, find_records

        self._records = with_room(self._records, self._num_records, size // 2 + 2)
        first, offset = BEFORE_BYTES, start - BEFORE_BYTES
        self._num_records, line = find_records(
            text,
            first,
            first + size,
            offset,
            self._line,
            self._is_sorted,
            self._num_records,
            self._records,
        )
        self._line = Line(*line)
        self._tail = text[size : size + BEFORE_BYTES].copy()

    def end(self, place: int) -> None:
        """The text ends there, and with it the last line."""
        feeds: NDArray[np.uint8] = np.full(BEFORE_BYTES + 1, ord("\n"), np.uint8)
        self.step(np.concatenate([self._tail, feeds]), 1, place)

    def tables(self) -> dict[str, Table]:
        """What was found."""
        from headrace.data.formats import svmlight_scan as parts

        _, least, most, _ = self._line
        has_index = most != parts.NO_INDEX
        about = {"least": least if has_index else None, "most": most if has_index else None}
        found = self._records[:, : self._num_records]
        tables = {
            "label": Table(found[parts.LABEL], found[parts.LABEL_BYTES], about=about),
            "features": Table(found[parts.FEATURES], found[parts.FEATURES_BYTES], about=about),
        }
        if (found[parts.QID_BYTES] >= 0).any():
            tables["qid"] = Table(found[parts.QID], found[parts.QID_BYTES], about=about)
        return tables
