"""Finds bytes in memory, 64 at a time, compiled."""

from typing import Any

import numba
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["ROOM_BYTES", "find"]

ROOM_BYTES = 64
"""Whoever looks for bytes in an array leaves so many unused ones at its end."""

_types: Any = numba.types
int64, uint8 = _types.int64, _types.uint8

_compiled = numba.njit(nogil=True, cache=True)


def _write_first(typing_context: Any, text: Any, place: Any, one: Any, two: Any, three: Any) -> Any:
    """numba has no such step for processors, so this writes it in LLVM's terms."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        item_pointer: Any = cgutils.get_item_pointer
        address = item_pointer(context, builder, kind, array, [arguments[1]])
        lanes = ir.VectorType(ir.IntType(8), ROOM_BYTES)
        block = builder.load(builder.bitcast(address, lanes.as_pointer()), align=1)
        found = None
        for byte in arguments[2:]:
            single = builder.insert_element(lanes(ir.Undefined), byte, ir.IntType(32)(0))
            pattern = ir.VectorType(ir.IntType(32), ROOM_BYTES)(None)
            every = builder.shuffle_vector(single, lanes(ir.Undefined), pattern)
            equal = builder.icmp_unsigned("==", block, every)
            found = equal if found is None else builder.or_(found, equal)
        bits = builder.bitcast(found, ir.IntType(ROOM_BYTES))
        return builder.cttz(bits, ir.IntType(1)(0))

    return int64(text, int64, uint8, uint8, uint8), generate


_first: Any = intrinsic(_write_first)
"""_first(text, place, one, two, three): how many of the 64 bytes from a place on come before the
first that is one of three; 64 if none is. On a processor whose lowest bit is a vector's first."""


@_compiled
def find(text: Any, place: int, end: int, one: int, two: int, three: int) -> int:
    """The first place, from this one on, of any of three bytes; `end` if there is none before it.

    Args:
        text: uint8[at least end + ROOM_BYTES].
        place: where to begin.
        end: where to stop.
        one: a byte.
        two: a byte, which may be the same.
        three: a byte, which may be the same.

    Source: Langdale and Lemire (2019), "Parsing gigabytes of JSON per second", section 3.1.
    """
    while place < end:
        ahead: int = _first(text, place, uint8(one), uint8(two), uint8(three))
        if ahead < ROOM_BYTES:
            return min(place + ahead, end)
        place += ROOM_BYTES
    return end
