"""CRC32C, the checksum of TFRecord's frames, compiled."""

from typing import Any

import numba
import numpy as np
from llvmlite import binding, ir  # type: ignore[import-untyped]
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["crc32c", "crc32c_of_eight"]

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, its bits reversed
_WORD_BYTES = 8

uint8, uint32, uint64 = np.uint8, np.uint32, np.uint64
_ONES = uint64(0xFFFFFFFF)
_compiled = numba.njit(nogil=True, cache=True)


def _make_tables() -> NDArray[np.uint64]:
    """uint64[8, 256]: what a byte adds to the checksum if so many more bytes follow in its word."""
    row = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        row = np.where(row & uint64(1), row >> uint64(1) ^ uint64(_POLYNOMIAL), row >> uint64(1))
    tables = [row]
    for _ in range(1, _WORD_BYTES):
        tables.append(tables[-1] >> uint64(8) ^ row[tables[-1] & uint64(0xFF)])
    return np.stack(tables)


_TABLES = _make_tables()


@_compiled
def _by_tables(crc: Any, word: Any) -> Any:
    """Takes eight bytes into a checksum on any processor.

    Source: Kounavis and Berry (2005), "A systematic approach to building high performance
    software-based CRC generators": a look-up a byte, none of which waits for another.
    """
    word ^= crc
    taken = uint64(0)
    for lane in range(_WORD_BYTES):
        taken ^= _TABLES[_WORD_BYTES - 1 - lane, word >> uint64(8 * lane) & uint64(0xFF)]
    return taken


def _write_instruction(typing_context: Any, crc: Any, word: Any) -> Any:
    """numba has no such step for processors, so this writes it in LLVM's terms."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(64)
        name = "llvm.x86.sse42.crc32.64.64"
        step = builder.module.declare_intrinsic(name, (), ir.FunctionType(kind, [kind, kind]))
        return builder.call(step, arguments)

    kind: Any = numba.types.uint64
    return kind(kind, kind), generate


def _has_instruction() -> bool:
    """Whether the processor has it, and numba was not told to compile for another processor."""
    settings: Any = numba.config
    if settings.CPU_NAME is not None or settings.CPU_FEATURES is not None:
        return False
    return bool(binding.get_host_cpu_features().get("sse4.2", False))


_eight: Any = intrinsic(_write_instruction) if _has_instruction() else _by_tables
"""_eight(crc, word) takes eight bytes into a checksum."""


@_compiled
def crc32c(data: NDArray[np.uint8]) -> Any:
    """The CRC32C of bytes, from 0 to 2^32 - 1; of none 0.

    Source: RFC 3720, 12.1 and appendix B.4.
    """
    crc = _ONES
    words = data[: len(data) // _WORD_BYTES * _WORD_BYTES].view(uint64)
    for place in range(len(words)):
        crc = _eight(crc, words[place])
    for place in range(len(words) * _WORD_BYTES, len(data)):
        crc = _TABLES[0, (crc ^ uint64(data[place])) & uint64(0xFF)] ^ crc >> uint64(8)
    return crc ^ _ONES


@_compiled
def crc32c_of_eight(word: Any) -> Any:
    """The CRC32C of a uint64's eight bytes, the lowest first."""
    return _eight(_ONES, uint64(word)) ^ _ONES
