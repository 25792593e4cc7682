"""Where the records of LIBSVM text lie, and which indexes they have; compiled."""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.decimals import read_whole
from headrace.data.formats.finding import find

__all__ = [
    "FEATURES",
    "FEATURES_BYTES",
    "LABEL",
    "LABEL_BYTES",
    "NO_INDEX",
    "QID",
    "QID_BYTES",
    "Line",
    "find_records",
    "is_space",
]

LABEL, LABEL_BYTES, FEATURES, FEATURES_BYTES, QID, QID_BYTES = range(6)
"""What is found of a record: where in the text each part begins, and how many bytes it has."""

NO_INDEX = -1
_NO_LEAST = (1 << 63) - 1
_START, _LABEL, _AFTER_LABEL, _FIRST_WORD, _QID, _FEATURES, _LATER, _COMMENT = range(8)
"""Parts of a line; features are _LATER ones after the first, where only the last still counts."""
_LF, _COLON, _HASH = ord("\n"), ord(":"), ord("#")
_WORD = np.frombuffer(b"qid", np.uint8)
_FEW_DIGITS = 18  # surely fit in 64 bits
_MOST_DIGITS = 40  # with leading zeros; longer indexes are refused when they are decoded
_MOST_BYTES = 80  # of the last value, with what blanks follow it

_compiled = numba.njit(nogil=True, cache=True)


class Line(NamedTuple):
    """The line under way where a piece of the text ended.

    Args:
        state: in which part of it.
        least: the least index so far, or more than any where there is none.
        most: the greatest index so far, or NO_INDEX.
        is_sure: whether every last index has been found; else look at all of them.
    """

    state: int = _START
    least: int = _NO_LEAST
    most: int = NO_INDEX
    is_sure: bool = True


@_compiled
def is_space(byte: int) -> bool:
    """A blank, tab, carriage return, form feed or vertical tab; a line feed is none."""
    return byte == 32 or (9 <= byte <= 13 and byte != _LF)


@_compiled
def find_records(
    text: NDArray[np.uint8],
    first: int,
    end: int,
    offset: int,
    line: Line,
    is_sorted: bool,
    num: int,
    records: NDArray[np.int64],
) -> tuple[int, Line]:
    """Finds the records that have their label in a piece of a text, and the ends of those before.

    The label is the first word of a line, unless it has a colon: then the label is empty. "qid:"
    counts only right after it. The rest up to a comment or line feed is the features.

    Args:
        text: uint8[at least end + ROOM_BYTES]; before the piece 128 bytes of the text, or zeros.
        first: where in it the piece begins.
        end: where the piece ends.
        offset: where text[0] lies in the whole.
        line: the line under way where the piece begins.
        is_sorted: whether the first and the last index of a line are its least and greatest, so
            that no others need be looked at, which is several times faster.
        num: how many records were found so far; of the last one the end may be missing.
        records: int64[6, at least num + 1 + (end - first + 1) // 2]; gets their places.

    Returns:
        How many records were found so far; the line under way where the piece ends.
    """
    state, least, most, is_sure = line
    at = first
    while at < end:
        if state == _FEATURES:
            at = find(text, at, end, _COLON, _HASH, _LF)
            if at < end and text[at] == _COLON:
                index = _index_before(text, at)
                if index != NO_INDEX:
                    least, most = min(least, index), max(most, index)
                state = _LATER if is_sorted else _FEATURES
                at += 1
                continue
        elif state == _LATER:
            at = find(text, at, end, _HASH, _LF, _LF)
            if at < end:
                colon = _colon_before(text, at)
                is_sure = is_sure and colon >= 0
                most = max(most, _index_before(text, colon) if colon >= 0 else NO_INDEX)
        elif state == _COMMENT:
            at = find(text, at, end, _LF, _LF, _LF)
        else:
            is_gap = state == _START or state == _AFTER_LABEL
            while at < end and is_space(text[at]) == is_gap and not _is_mark(text[at]):
                at += 1
        if at == end:
            break
        byte, place = text[at], offset + at
        if byte == _LF or byte == _HASH:
            if state != _START and state != _COMMENT:
                _end(records, num - 1, state, place)
            state = _START if byte == _LF else _COMMENT
            at += 1
        elif state == _START:
            records[LABEL, num], records[QID, num], records[QID_BYTES, num] = place, place, -1
            num += 1
            state = _LABEL
        elif state == _AFTER_LABEL:
            records[FEATURES, num - 1] = place
            state = _FIRST_WORD if records[QID_BYTES, num - 1] < 0 else _FEATURES
        elif state == _LABEL and byte == _COLON:  # so there is no label
            records[LABEL_BYTES, num - 1] = 0
            records[FEATURES, num - 1] = records[LABEL, num - 1]
            state = _FEATURES
        elif state == _LABEL:
            records[LABEL_BYTES, num - 1] = place - records[LABEL, num - 1]
            state = _AFTER_LABEL
        elif state == _FIRST_WORD:
            is_qid = place - records[FEATURES, num - 1] == len(_WORD) and _is_qid(text, at)
            if is_qid and byte == _COLON:
                records[QID, num - 1] = place + 1
                at += 1
            state = _QID if is_qid and byte == _COLON else _FEATURES
        elif byte == _COLON:  # one too many in a qid, as decoding will say
            at += 1
        else:
            records[QID_BYTES, num - 1] = place - records[QID, num - 1]
            state = _AFTER_LABEL
    return num, Line(state, least, most, is_sure)


@_compiled
def _is_mark(byte: int) -> bool:
    return byte == _LF or byte == _HASH or byte == _COLON


@_compiled
def _end(records: NDArray[np.int64], row: int, state: int, place: int) -> None:
    """The line of a record has ended."""
    if state == _FEATURES or state == _LATER or state == _FIRST_WORD:
        records[FEATURES_BYTES, row] = place - records[FEATURES, row]
        return
    records[FEATURES, row], records[FEATURES_BYTES, row] = place, 0
    if state == _LABEL:
        records[LABEL_BYTES, row] = place - records[LABEL, row]
    elif state == _QID:
        records[QID_BYTES, row] = place - records[QID, row]


@_compiled
def _is_qid(text: NDArray[np.uint8], colon: int) -> bool:
    for place in range(len(_WORD)):
        if text[colon - len(_WORD) + place] != _WORD[place]:
            return False
    return True


@_compiled
def _colon_before(text: NDArray[np.uint8], end: int) -> int:
    """The last colon before the end of a line's features, -1 if it is far away."""
    for place in range(end - 1, end - 1 - _MOST_BYTES, -1):
        if text[place] == _COLON:
            return place
    return -1


@_compiled
def _index_before(text: NDArray[np.uint8], colon: int) -> int:
    """The whole number that ends at a colon, or NO_INDEX."""
    at, value, scale = colon - 1, 0, 1
    while at > colon - _MOST_DIGITS:
        digit: Any = np.int64(text[at]) - 48
        if not 0 <= digit <= 9:
            break
        value += digit * scale
        scale *= 10
        at -= 1
    before = text[at]
    if not (is_space(before) or before == _LF or before == 0):  # the text may begin after it
        return NO_INDEX
    if colon - at <= _FEW_DIGITS:
        return value if at < colon - 1 else NO_INDEX
    return read_whole(text, at + 1, colon)[0]
