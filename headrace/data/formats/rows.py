"""Where the rows of a text begin and end, compiled; line feeds in quotes end none."""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.finding import find

__all__ = ["Rules", "Under", "find_rows"]

_LF = 10

_compiled = numba.njit(nogil=True, cache=True)


class Rules(NamedTuple):
    """What a row is.

    Args:
        quote: the byte that begins and ends quotes, or that of a line feed where there are none.
        delimiter: the byte that quotes may follow.
        blanks: bool[256], the bytes that do not make a row; all False where an empty one is a row.
        keeps_blank: whether rows of such bytes alone are rows too.
    """

    quote: int
    delimiter: int
    blanks: NDArray[np.bool_]
    keeps_blank: bool


class Under(NamedTuple):
    """What is under way where a piece of the text ended.

    Args:
        begin: where in the text the row begins.
        is_blank: whether it has been blank so far.
        opened: where the quotes that are open began, or -1.
        closed: where quotes ended last.
    """

    begin: int
    is_blank: bool = True
    opened: int = -1
    closed: int = -2


@_compiled
def find_rows(
    text: NDArray[np.uint8],
    first: int,
    end: int,
    offset: int,
    rules: Rules,
    under: Under,
    rows: NDArray[np.int64],
) -> tuple[int, Under]:
    """Finds the rows that end in a piece of a text.

    Quotes begin where a row or a cell does, and end with the next quote that is not doubled;
    elsewhere a quote is a character like others. So has it Python's csv module.

    Args:
        text: uint8[at least end + ROOM_BYTES]; text[first - 1] is the byte before the piece.
        first: where in it the piece begins.
        end: where the piece ends.
        offset: where text[0] lies in the whole.
        rules: what a row is.
        under: the row under way where the piece begins.
        rows: int64[2, at least end - first]; gets where each begins in the whole, and how many
            bytes it has without its line feed.

    Returns:
        How many rows were found; the row under way where the piece ends.
    """
    quote, delimiter, blanks, keeps_blank = rules
    begin, is_blank, opened, closed = under
    begin, opened, closed = begin - offset, opened - offset, closed - offset
    is_quoted = under.opened >= 0
    at, num = first, 0
    while at < end:
        if is_quoted:
            at = find(text, at, end, quote, quote, quote)
            if at < end:
                is_quoted, closed = False, at
            at += 1
            continue
        if is_blank:
            while at < end and blanks[text[at]]:
                at += 1
            if at == end:
                break
            is_blank = text[at] == _LF
        at = find(text, at, end, _LF, quote, quote)
        if at == end:
            break
        if text[at] == _LF:
            if keeps_blank or not is_blank:
                rows[0, num], rows[1, num] = begin + offset, at - begin
                num += 1
            begin, is_blank = at + 1, True
        elif at == begin or text[at - 1] == delimiter or closed == at - 1:
            is_quoted = True  # in the last case quotes that go on after a doubled one
            opened = at
        at += 1
    opened = opened + offset if is_quoted else -1
    return num, Under(begin + offset, is_blank, opened, closed + offset)
