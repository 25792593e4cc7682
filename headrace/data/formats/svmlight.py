"""Values of LIBSVM text, and words for what is wrong with it."""

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.sparse import SparseRows

# What is compiled is imported where it is used: numba takes a while to load.

__all__ = ["labels_of", "numbers_of", "query_of", "rows_of"]

_MOST_SHOWN = 40  # characters of a word
_MOST_DIGITS = 18


def numbers_of(
    text: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Labels: one number each.

    Args:
        text: uint8[any].
        begins: int64[R], where in it each begins.
        lengths: int64[R], its bytes.

    Returns:
        float64[R].

    Raises:
        ValueError: one is no finite number; says what it is.
    """
    from headrace.data.formats.svmlight_parse import NO_FAULT, parse_numbers

    values: NDArray[np.float64] = np.empty(len(begins))
    fault, num_hard = parse_numbers(text, begins, lengths, values)
    if fault[0] != NO_FAULT:
        begin, length = int(begins[fault[1]]), int(lengths[fault[1]])
        word = text[begin : begin + length].tobytes()
        if not word:
            raise ValueError("the line has no label")
        if b"," in word:
            raise ValueError(f"several labels, {_shown(word)}: multilabel=True reads such")
        raise ValueError(f"the label {_shown(word)} is no finite number")
    for row in np.flatnonzero(np.isnan(values)).tolist() if num_hard else ():
        begin, length = int(begins[row]), int(lengths[row])
        values[row] = _exact(text[begin : begin + length].tobytes())
    return values


def labels_of(record: NDArray[np.uint8]) -> tuple[float, ...]:
    """Labels of one record: numbers with commas between, or none; ascending.

    Raises:
        ValueError: one is no finite number.
    """
    if not len(record):
        return ()
    commas = np.flatnonzero(record == ord(","))
    begins = np.concatenate([np.zeros(1, np.int64), commas + 1])
    values = numbers_of(record, begins, np.append(commas, len(record)) - begins)
    return tuple(np.sort(values).tolist())


def query_of(record: NDArray[np.uint8]) -> int:
    """What stands after "qid:".

    Raises:
        ValueError: it is no whole number, or has more than 18 digits.
    """
    word = record.tobytes()
    if not word.isdigit() or len(word.lstrip(b"0")) > _MOST_DIGITS:
        raise ValueError(f"qid {_shown(word)} is no whole number of at most {_MOST_DIGITS} digits")
    return int(word)


def rows_of(
    text: NDArray[np.uint8],
    begins: NDArray[np.int64],
    lengths: NDArray[np.int64],
    base: int,
    num_features: int,
    *,
    sorts: bool,
) -> SparseRows:
    """Features of so many lines.

    Args:
        text: uint8[any].
        begins: int64[R], where in it the features of each line begin.
        lengths: int64[R], their bytes.
        base: the least index, which becomes column 0.
        num_features: the number of columns.
        sorts: whether indexes may be out of order.

    Raises:
        ValueError: the first fault, and how many bytes after its line's features begin it is.
    """
    from headrace.data.formats.svmlight_parse import NO_FAULT, Found, parse_features

    room = int(lengths.sum() + len(lengths)) // 4  # "1:1 " is the shortest
    values, indptr = np.empty(room), np.empty(len(begins) + 1, np.int64)
    found = Found(np.empty(room, np.int64), values, np.empty(room, np.int64), indptr)
    fault, num, num_hard = parse_features(text, begins, lengths, base, num_features, sorts, found)
    kind, row, place = fault
    if kind != NO_FAULT:
        begin, end = int(begins[row]), int(begins[row] + lengths[row])
        word = text[place:end].tobytes().split(None, 1)[:1] or [b""]
        what = _what(kind, _shown(word[0]), base, num_features)
        raise ValueError(f"{what}, {place - begin} bytes into the features")
    for item in np.flatnonzero(np.isnan(values[:num])).tolist() if num_hard else ():
        row, place = int(np.searchsorted(indptr, item, side="right")) - 1, int(found.places[item])
        end = int(begins[row] + lengths[row])
        values[item] = _exact(text[place:end].tobytes().split(None, 1)[0])
    shape = (len(begins), num_features)
    return SparseRows(values[:num].copy(), found.indices[:num].copy(), indptr, shape)


def _what(kind: int, word: str, base: int, num_features: int) -> str:
    from headrace.data.formats import svmlight_parse as parse

    if kind == parse.NO_PAIR:
        is_query = word.startswith("'qid:")
        remedy = ": qid stands right after the label" if is_query else ""
        return f"{word} is no index:value{remedy}"
    if kind == parse.BIG_INDEX:
        return f"the index of {word} is not in {base} to {base + num_features - 1}"
    if kind == parse.OUT_OF_ORDER:
        return f"the index of {word} is less than the one before; sort=True brings them into order"
    if kind == parse.TWICE:
        return f"the index of {word} is there twice"
    return f"the value {word} is no finite number"


def _exact(word: bytes) -> float:
    """The number that compiled code did not round, by Python's own reader."""
    value = float(word)
    if not np.isfinite(value):
        raise ValueError(f"the value {_shown(word)} is too large for float64")
    return value


def _shown(word: bytes) -> str:
    text = word.decode(errors="backslashreplace")
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}...")
