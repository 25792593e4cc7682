"""Values of LIBSVM text: rows of index:value and numbers, a batch at a time, compiled."""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.decimals import FINE, HARD, NONE, read_float, read_whole
from headrace.data.formats.svmlight_scan import is_space

__all__ = [
    "BIG_INDEX",
    "NO_FAULT",
    "NO_NUMBER",
    "NO_PAIR",
    "OUT_OF_ORDER",
    "TWICE",
    "Fault",
    "Found",
    "parse_features",
    "parse_numbers",
]

NO_FAULT, NO_PAIR, BIG_INDEX, OUT_OF_ORDER, TWICE, NO_NUMBER = range(6)
"""What may be wrong: no index and colon; an index out of range; one less than the one before; one
that is there already; no number where a value should be."""

_COLON = ord(":")

_compiled = numba.njit(nogil=True, cache=True)


class Fault(NamedTuple):
    """What is wrong: the kind, the record's row, and the place in the text."""

    kind: int
    row: int
    place: int


class Found(NamedTuple):
    """Arrays that get what is found: an item a feature, or a number.

    Args:
        indices: int64[F].
        values: float64[F]; NaN where Python's float must read it.
        places: int64[F], where the value stands in the text.
        indptr: int64[R + 1], where each row begins.
    """

    indices: NDArray[np.int64]
    values: NDArray[np.float64]
    places: NDArray[np.int64]
    indptr: NDArray[np.int64]


@_compiled
def parse_features(
    text: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    base: int,
    num_features: int,
    sorts: bool,
    found: Found,
) -> tuple[Fault, int, int]:
    """Reads rows of index:value.

    Args:
        text: uint8[any].
        begins: int64[R], where each row begins.
        lengths: int64[R], its bytes.
        base: the least index that there may be, which becomes 0.
        num_features: how many indexes there may be.
        sorts: whether indexes may be out of order, and are brought into it.
        found: with room for (bytes + R) // 4 features and R rows.

    Returns:
        The first fault; how many features were found; how many values are NaN.
    """
    indices, values, places, indptr = found
    num, num_hard = 0, 0
    for row in range(len(begins)):
        indptr[row] = num
        at, end, last, is_sorted = begins[row], begins[row] + lengths[row], -1, True
        while True:
            while at < end and is_space(text[at]):
                at += 1
            if at == end:
                break
            word = at
            index, at = read_whole(text, at, end)
            if at == word or at == end or text[at] != _COLON:
                return Fault(NO_PAIR, row, word), num, num_hard
            index = index - base if index >= 0 else num_features
            if not 0 <= index < num_features:
                return Fault(BIG_INDEX, row, word), num, num_hard
            if index <= last:
                if index == last or not sorts:
                    return Fault(TWICE if index == last else OUT_OF_ORDER, row, word), num, num_hard
                is_sorted = False
            place = at + 1
            value, at, state = read_float(text, place, end)
            if state == NONE or (at < end and not is_space(text[at])):
                return Fault(NO_NUMBER, row, place), num, num_hard
            num_hard += state == HARD
            indices[num], places[num] = index, place
            values[num] = value if state == FINE else np.nan
            last = index
            num += 1
        if not is_sorted:
            place = _sort(found, indptr[row], num)
            if place >= 0:
                while place > begins[row] and not is_space(text[place - 1]):
                    place -= 1
                return Fault(TWICE, row, place), num, num_hard
    indptr[len(begins)] = num
    return Fault(NO_FAULT, 0, 0), num, num_hard


@_compiled
def _sort(found: Found, begin: int, end: int) -> int:
    """Sorts one row by index; returns where the value stands whose index is there twice, or -1."""
    order = begin + np.argsort(found.indices[begin:end], kind="mergesort")
    found.indices[begin:end] = found.indices[order]
    found.values[begin:end] = found.values[order]
    found.places[begin:end] = found.places[order]
    for at in range(begin + 1, end):
        if found.indices[at] == found.indices[at - 1]:
            return int(found.places[at])
    return -1


@_compiled
def parse_numbers(
    text: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    values: NDArray[np.float64],
) -> tuple[Fault, int]:
    """Reads one number a row, which is all there is in it; values[r] is NaN as in Found.

    Returns:
        The first fault; how many values are NaN.
    """
    num_hard = 0
    for row in range(len(begins)):
        begin, end = begins[row], begins[row] + lengths[row]
        value, at, state = read_float(text, begin, end)
        if state == NONE or at < end:
            return Fault(NO_NUMBER, row, begin), num_hard
        num_hard += state == HARD
        values[row] = value if state == FINE else np.nan
    return Fault(NO_FAULT, 0, 0), num_hard
