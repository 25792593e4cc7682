"""Headers of tar archives, compiled: walks over the ordinary members, up to the first other one."""

from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "Members", "identify", "make_members", "walk"]

BLOCK_BYTES = 512
"""Headers and data begin at multiples of this."""

_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_PATH, _SIZE, _GNU = (np.frombuffer(word, np.uint8) for word in (b"path=", b"size=", b"GNU."))
_USTAR = np.frombuffer(b"ustar\0", np.uint8)
_compiled = numba.njit(nogil=True, cache=True)


class Members(NamedTuple):
    """Members that belong to records, one a row."""

    keys: NDArray[np.uint64]  # hash of the record's name
    fields: NDArray[np.int64]  # place of the field in the list of those known
    headers: NDArray[np.int64]  # where the member's first header begins
    offsets: NDArray[np.int64]  # where its data begins
    sizes: NDArray[np.int64]  # of its data in bytes


def make_members(num: int) -> Members:
    """Room for so many."""
    rows = [np.empty(num, np.int64) for _ in range(4)]
    return Members(np.empty(num, np.uint64), *rows)


@_compiled
def identify(name: NDArray[np.uint8]) -> tuple[np.uint64, np.uint64, int]:
    """Which record and field a member's name stands for.

    A record's name goes up to the first dot after the last slash, a field's from there on; capital
    letters are small ones in it.

    Returns:
        Hash of the record's name, hash of the field's, and where the dot is: -1 if the member is
        none of a record, since there is no dot, or nothing before it, or the name begins with a
        word in double underscores such as "__meta__".

    Source: webdataset/tariterators.py, base_plus_ext and tar_file_iterator; hashes: Fowler, Noll,
    Vo, FNV-1a.
    """
    key = part = _FNV_BASIS
    base, dot = 0, -1
    for place in range(len(name)):
        byte = name[place]
        if byte == 47:  # /
            base, dot = place + 1, -1
        elif byte == 46 and dot < 0:  # .
            dot = place
    if dot <= base or _is_about_the_archive(name):
        return key, part, -1
    for place in range(dot):
        key = (key ^ np.uint64(name[place])) * _FNV_PRIME
    for place in range(dot + 1, len(name)):
        byte = name[place]
        if 65 <= byte <= 90:
            byte += np.uint8(32)
        part = (part ^ np.uint64(byte)) * _FNV_PRIME
    return key, part, dot


@_compiled
def _is_about_the_archive(name: NDArray[np.uint8]) -> bool:
    """Whether its first part begins and ends with two underscores, which may not be the same."""
    end = 0
    while end < len(name) and name[end] != 47:
        end += 1
    return bool(
        end >= 4 and name[0] == 95 and name[1] == 95 and name[end - 2] == 95 and name[end - 1] == 95
    )


@_compiled
def walk(
    piece: NDArray[np.uint8], left: int, known: NDArray[np.uint64], found: Members
) -> tuple[int, int, int, bool]:
    """Finds the members that have all their headers in a piece of a file.

    It stops at whatever is not an ordinary file or folder with a right checksum, a plain size, at
    most an extended header that changes neither size nor name, or a field that is known.

    Args:
        piece: bytes of the file; begins with a header.
        left: how many the file has from the piece's first byte to its end.
        known: uint64[F]: hashes of the fields' names.
        found: with room for len(piece) // 512; gets the members; places in the piece.

    Returns:
        Where the next header begins, maybe after the piece; how many members were found, and how
        many headers passed; whether that header is such that it must be looked at with more care.
    """
    scratch = np.empty(2 * BLOCK_BYTES, np.uint8)
    at, num, num_headers = 0, 0, 0
    while at + BLOCK_BYTES <= len(piece):
        header, name = at, scratch[:0]
        if piece[at + 156] == 120:  # x: an extended header before the member's own
            size = _octal(piece[at + 124 : at + 136])
            begin = at + BLOCK_BYTES
            if not _has_right_checksum(piece[at:begin]) or size < 0 or size > left:
                return at, num, num_headers, True
            header = begin + _padded(size)
            if header + BLOCK_BYTES > len(piece):
                break
            is_plain, name = _extended(piece[begin : begin + size])
            if not is_plain:
                return at, num, num_headers, True
        block = piece[header : header + BLOCK_BYTES]
        size = _octal(block[124:136])
        kind = block[156]
        if not _has_right_checksum(block) or size < 0:
            return at, num, num_headers, True
        if kind == 53:  # 5: a folder
            at, num_headers = header + BLOCK_BYTES, num_headers + 1
            continue
        data = header + BLOCK_BYTES
        if len(name) == 0:
            name = _name(block, scratch)
        is_file = kind == 48 or kind == 0
        if not is_file or size > left - data or (len(name) and name[len(name) - 1] == 47):
            return at, num, num_headers, True
        key, part, dot = identify(name)
        if dot >= 0:
            field = 0
            while field < len(known) and known[field] != part:
                field += 1
            if field == len(known):
                return at, num, num_headers, True
            found.keys[num], found.fields[num] = key, field
            found.headers[num], found.offsets[num], found.sizes[num] = at, data, size
            num += 1
        at, num_headers = data + _padded(size), num_headers + 1
    return at, num, num_headers, False


@_compiled
def _padded(size: int) -> int:
    return (size + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


@_compiled
def _octal(text: NDArray[np.uint8]) -> int:
    """A number of octal digits up to a blank or zero byte; -1 if it is anything else."""
    value, place = 0, 0
    while place < len(text) and text[place] == 32:
        place += 1
    begin = place
    while place < len(text) and 48 <= text[place] <= 55:
        value = value * 8 + int(text[place]) - 48
        place += 1
    is_number = place > begin and (place == len(text) or text[place] == 32 or text[place] == 0)
    return value if is_number else -1


@_compiled
def _has_right_checksum(block: NDArray[np.uint8]) -> bool:
    """The sum of a header's bytes, its own eight taken for blanks."""
    total = np.uint32(8 * 32)
    for place in range(BLOCK_BYTES):
        total += np.uint32(block[place])
    for place in range(148, 156):
        total -= np.uint32(block[place])
    return bool(_octal(block[148:156]) == total)


@_compiled
def _name(block: NDArray[np.uint8], scratch: NDArray[np.uint8]) -> Any:
    """A member's name, with the prefix that POSIX puts elsewhere."""
    num = 0
    if _begins_with(block[257:], _USTAR):  # GNU's has a blank there, and no prefix
        while num < 155 and block[345 + num] != 0:
            scratch[num] = block[345 + num]
            num += 1
        if num:
            scratch[num] = 47
            num += 1
    place = 0
    while place < 100 and block[place] != 0:
        scratch[num] = block[place]
        num, place = num + 1, place + 1
    return scratch[:num]


@_compiled
def _extended(text: NDArray[np.uint8]) -> tuple[bool, NDArray[np.uint8]]:
    """Whether an extended header tells nothing but maybe a name; and that, or nothing."""
    name = text[:0]
    at = 0
    while at < len(text):
        length, place = 0, at
        while place < len(text) and place < at + 12 and 48 <= text[place] <= 57:
            length = length * 10 + int(text[place]) - 48
            place += 1
        end = at + length - 1
        if end >= len(text) or place >= end or text[place] != 32 or text[end] != 10:
            return False, name
        place += 1
        if _begins_with(text[place:end], _PATH):
            name = text[place + 5 : end]
            if len(name) == 0:
                return False, name
        elif _begins_with(text[place:end], _SIZE) or _begins_with(text[place:end], _GNU):
            return False, name
        at = end + 1
    return True, name


@_compiled
def _begins_with(text: NDArray[np.uint8], word: NDArray[np.uint8]) -> bool:
    if len(text) < len(word):
        return False
    for place in range(len(word)):
        if text[place] != word[place]:
            return False
    return True
