"""Headers of tar archives, compiled: walks over the ordinary members, up to the first other one."""

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_BYTES", "Members", "identify", "make_members", "walk"]

BLOCK_BYTES = 512
"""Headers and data begin at multiples of this."""

_FNV_BASIS, _FNV_PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_MOST_NAME_BYTES = 4096  # longer ones must be looked at with more care
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


# Places go with the array below, where slices would be simpler but cost more than all the rest.


@_compiled
def identify(name: NDArray[np.uint8], size: int) -> tuple[np.uint64, np.uint64, int]:
    """Which record and field a member's name stands for.

    A record's name goes up to the first dot after the last slash, a field's from there on; capital
    letters are small ones in it.

    Args:
        name: in its first bytes.
        size: how many.

    Returns:
        Hash of the record's name, hash of the field's, and where the dot is: -1 if the member is
        none of a record, since there is no dot, or nothing before it, or the name begins with a
        word in double underscores such as "__meta__".

    Source: webdataset/tariterators.py, base_plus_ext and tar_file_iterator; hashes: Fowler, Noll,
    Vo, FNV-1a.
    """
    key = part = _FNV_BASIS
    base, dot = 0, -1
    for place in range(size):
        byte = name[place]
        if byte == 47:  # /
            base, dot = place + 1, -1
        elif byte == 46 and dot < 0:  # .
            dot = place
    if dot <= base or _is_about_the_archive(name, size):
        return key, part, -1
    for place in range(dot):
        key = (key ^ np.uint64(name[place])) * _FNV_PRIME
    for place in range(dot + 1, size):
        byte = name[place]
        if 65 <= byte <= 90:
            byte += np.uint8(32)
        part = (part ^ np.uint64(byte)) * _FNV_PRIME
    return key, part, dot


@_compiled
def _is_about_the_archive(name: NDArray[np.uint8], size: int) -> bool:
    """Whether its first part begins and ends with two underscores, which may not be the same."""
    end = 0
    while end < size and name[end] != 47:
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
    most an extended header that changes no more than the name, and a field that is known.

    Args:
        piece: bytes of the file; begins with a header.
        left: how many the file has from the piece's first byte to its end.
        known: uint64[F]: hashes of the fields' names.
        found: with room for len(piece) // 512; gets the members; places in the piece.

    Returns:
        Where the next header begins, maybe after the piece; how many members were found, and how
        many headers passed; whether that header is such that it must be looked at with more care.
    """
    name = np.empty(_MOST_NAME_BYTES, np.uint8)
    at, num, num_headers = 0, 0, 0
    while at + BLOCK_BYTES <= len(piece):
        header, name_bytes = at, 0
        if piece[at + 156] == 120:  # x: an extended header before the member's own
            size = _octal(piece, at + 124, at + 136)
            if not _has_right_checksum(piece, at) or size < 0 or size > left:
                return at, num, num_headers, True
            header = at + BLOCK_BYTES + _padded(size)
            if header + BLOCK_BYTES > len(piece):
                break
            name_bytes = _extended(piece, at + BLOCK_BYTES, at + BLOCK_BYTES + size, name)
        size = _octal(piece, header + 124, header + 136)
        if name_bytes < 0 or size < 0 or not _has_right_checksum(piece, header):
            return at, num, num_headers, True
        kind, data = piece[header + 156], header + BLOCK_BYTES
        if kind == 53:  # 5: a folder
            at, num_headers = data, num_headers + 1
            continue
        if name_bytes == 0:
            name_bytes = _own_name(piece, header, name)
        is_folder = name_bytes > 0 and name[name_bytes - 1] == 47
        if (kind != 48 and kind != 0) or is_folder or size > left - data:
            return at, num, num_headers, True
        key, part, dot = identify(name, name_bytes)
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
def _octal(data: NDArray[np.uint8], place: int, end: int) -> int:
    """A number of octal digits up to a blank or zero byte; -1 if it is anything else."""
    while place < end and data[place] == 32:
        place += 1
    value, begin = 0, place
    while place < end and 48 <= data[place] <= 55:
        value = value * 8 + int(data[place]) - 48
        place += 1
    is_number = place > begin and (place == end or data[place] == 32 or data[place] == 0)
    return value if is_number else -1


@_compiled
def _has_right_checksum(data: NDArray[np.uint8], begin: int) -> bool:
    """The sum of a header's bytes, its own eight taken for blanks."""
    block = data[begin : begin + BLOCK_BYTES]  # so that many are added at a time
    total = np.uint32(8 * 32)
    for place in range(BLOCK_BYTES):
        total += np.uint32(block[place])
    for place in range(148, 156):
        total -= np.uint32(data[begin + place])
    return bool(_octal(data, begin + 148, begin + 156) == total)


@_compiled
def _own_name(data: NDArray[np.uint8], begin: int, name: NDArray[np.uint8]) -> int:
    """Writes a header's name, with the prefix that POSIX puts elsewhere; returns its bytes."""
    num = 0
    if _stands_at(_USTAR, data, begin + 257):  # GNU's has a blank there, and no prefix
        while num < 155 and data[begin + 345 + num] != 0:
            name[num] = data[begin + 345 + num]
            num += 1
        if num:
            name[num] = 47
            num += 1
    place = 0
    while place < 100 and data[begin + place] != 0:
        name[num] = data[begin + place]
        num, place = num + 1, place + 1
    return num


@_compiled
def _extended(data: NDArray[np.uint8], at: int, end: int, name: NDArray[np.uint8]) -> int:
    """Writes the name that an extended header tells, if it does; returns its bytes.

    -1 if it tells a size, or how sparse data lie, or is damaged, or the name is too long.
    """
    name_bytes = 0
    while at < end:
        length, place = 0, at
        while place < end and place < at + 12 and 48 <= data[place] <= 57:
            length = length * 10 + int(data[place]) - 48
            place += 1
        last = at + length - 1
        if last >= end or place >= last or data[place] != 32 or data[last] != 10:
            return -1
        place += 1
        if _stands_at(_SIZE, data, place) or _stands_at(_GNU, data, place):
            return -1
        if _stands_at(_PATH, data, place):
            begin = place + len(_PATH)
            name_bytes = last - begin
            if name_bytes <= 0 or name_bytes > len(name):
                return -1
            for i in range(name_bytes):
                name[i] = data[begin + i]
        at = last + 1
    return name_bytes


@_compiled
def _stands_at(word: NDArray[np.uint8], data: NDArray[np.uint8], begin: int) -> bool:
    """Whether the bytes from there on are the word; a header follows, so that they are there."""
    for place in range(len(word)):
        if data[begin + place] != word[place]:
            return False
    return True
