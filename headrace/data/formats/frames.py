"""TFRecord's frames, compiled: walks from one to the next, and checks one."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from headrace.data.checksums import crc32c, crc32c_of_eight

__all__ = [
    "CUT",
    "DATA",
    "FINE",
    "HEAD_BYTES",
    "LENGTH",
    "SIZE",
    "TAIL_BYTES",
    "all_fine",
    "fault_of",
    "masked",
    "walk",
]

HEAD_BYTES = 12
"""Before the data: its length, 8 bytes, and the masked checksum of these."""

TAIL_BYTES = 4
"""After the data: its masked checksum."""

FINE, LENGTH, CUT, SIZE, DATA = range(5)
"""What is wrong: nothing, the length's checksum, more data than the file has left, another length
than the index has, the data's checksum."""

_compiled = numba.njit(nogil=True, cache=True)


@_compiled
def _number(data: NDArray[np.uint8], at: int, num_bytes: int) -> Any:
    """The uint64 that so many bytes are, the lowest first."""
    value = np.uint64(0)
    for place in range(num_bytes):
        value |= np.uint64(data[at + place]) << np.uint64(8 * place)
    return value


@_compiled
def masked(crc: Any) -> Any:
    """A checksum as the file has it, so that checksums of checksums stay good ones.

    Source: tensorflow/core/lib/hash/crc32c.h.
    """
    crc = np.uint64(crc)
    rotated = crc >> np.uint64(15) | crc << np.uint64(17)
    return rotated + np.uint64(0xA282EAD8) & np.uint64(0xFFFFFFFF)


@_compiled
def walk(piece: NDArray[np.uint8], left: int, places: NDArray[np.int64]) -> tuple[int, int, int]:
    """Finds the frames that have their head in a piece of a file, which begins with a frame.

    Args:
        piece: bytes of the file.
        left: how many the file has from the piece's first byte to its end.
        places: int64[len(piece) // 16 + 1]; gets where the frames begin.

    Returns:
        Where the next frame begins, maybe after the piece; how many were found; FINE, or what is
        wrong with the head at that place: LENGTH or CUT.
    """
    at, num = 0, 0
    while at + HEAD_BYTES <= len(piece):
        word = _number(piece, at, 8)
        if _number(piece, at + 8, 4) != masked(crc32c_of_eight(word)):
            return at, num, LENGTH
        length = int(np.int64(word))
        room = left - at - HEAD_BYTES - TAIL_BYTES
        if length < 0 or length > room:
            return at, num, CUT
        places[num] = at
        num += 1
        at += HEAD_BYTES + length + TAIL_BYTES
    return at, num, FINE


@_compiled
def fault_of(frame: NDArray[np.uint8]) -> int:
    """What is wrong with a frame, of 16 bytes or more: FINE, LENGTH, SIZE or DATA."""
    end = len(frame) - TAIL_BYTES
    word = _number(frame, 0, 8)
    if _number(frame, 8, 4) != masked(crc32c_of_eight(word)):
        return LENGTH
    if word != np.uint64(end - HEAD_BYTES):
        return SIZE
    if _number(frame, end, 4) != masked(crc32c(frame[HEAD_BYTES:end])):
        return DATA
    return FINE


@_compiled
def all_fine(
    memory: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> bool:
    """Whether frames, of 16 bytes or more each, have nothing wrong with them."""
    for row in range(len(begins)):
        if fault_of(memory[begins[row] : begins[row] + lengths[row]]) != FINE:
            return False
    return True
