"""Numbers in decimal digits to float64, correctly rounded, and to int64; compiled."""

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

__all__ = ["FINE", "HARD", "NONE", "read_float", "read_whole"]

FINE, HARD, NONE = range(3)
"""What became of a number: it was read; it needs more care than is taken here, and Python's float
reads it; it is none."""

_LEAST_POWER, _MOST_POWER = -342, 308  # of ten, beyond which there is zero or no float64
_MOST_DIGITS = 19  # fit in 64 bits
_ZERO, _PLUS, _MINUS, _POINT, _SMALL_E, _LARGE_E = (ord(character) for character in "0+-.eE")
_FRACTION_BITS, _BIAS, _SPECIAL = 52, 1023, 2047  # of float64

uint8, uint64 = np.uint8, np.uint64
int64: Any = np.int64  # numba leaves int() of a uint64 unsigned
_compiled = numba.njit(nogil=True, cache=True)


def _make_powers() -> NDArray[np.uint64]:
    """uint64[powers, 2]: the first 128 bits of each power of ten, high and low half."""
    rows = []
    for power in range(_LEAST_POWER, _MOST_POWER + 1):
        ten = 10 ** abs(power)
        if power < 0:
            bits = (1 << (ten.bit_length() + 127)) // ten
        else:
            bits = ten << 128 >> ten.bit_length()
        rows.append((bits >> 64, bits & (1 << 64) - 1))
    return np.array(rows, np.uint64)


_POWERS = _make_powers()
_EXACT = np.array([float(10**power) for power in range(23)])
"""Powers of ten that are float64 themselves."""


@_compiled
def read_whole(text: NDArray[np.uint8], at: int, end: int) -> tuple[int, int]:
    """A number of digits alone.

    Args:
        text: uint8[any].
        at: where it begins.
        end: where it cannot go on.

    Returns:
        The number, -1 if there is none or it has more than 18 digits without leading zeros; and the
        place after its last digit.
    """
    value, stop = _digits(text, at, end, uint64(0))
    if stop - at >= _MOST_DIGITS:
        while at < stop - 1 and text[at] == _ZERO:
            at += 1
    whole: Any = int64(value)
    return (whole if 0 < stop - at < _MOST_DIGITS else -1), stop


@_compiled
def read_float(text: NDArray[np.uint8], at: int, end: int) -> tuple[float, int, int]:
    """A number such as -12, .5, 3. or +1.25e-7; no words such as nan.

    Args:
        text: uint8[any].
        at: where it begins.
        end: where it cannot go on.

    Returns:
        The number, which means nothing unless it is FINE; the place after its last character; and
        what became of it.
    """
    is_negative = at < end and text[at] == _MINUS
    if at < end and (text[at] == _MINUS or text[at] == _PLUS):
        at += 1
    digits, stop = _digits(text, at, end, uint64(0))
    num_digits, power = stop - at, 0
    at = stop
    if at < end and text[at] == _POINT:
        digits, stop = _digits(text, at + 1, end, digits)
        power = at + 1 - stop
        num_digits -= power
        at = stop
    if num_digits == 0:
        return 0.0, at, NONE
    if at < end and (text[at] == _SMALL_E or text[at] == _LARGE_E):
        at += 1
        sign = -1 if at < end and text[at] == _MINUS else 1
        if at < end and (text[at] == _MINUS or text[at] == _PLUS):
            at += 1
        exponent, stop = _digits(text, at, end, uint64(0))
        if stop == at:
            return 0.0, at, NONE
        if stop - at >= _MOST_DIGITS:
            return 0.0, stop, HARD
        whole: Any = int64(exponent)
        power += sign * whole
        at = stop
    if num_digits > _MOST_DIGITS:
        return 0.0, at, HARD
    value, is_read = _rounded(digits, power)
    return (-value if is_negative else value), at, FINE if is_read else HARD


@_compiled
def _digits(text: NDArray[np.uint8], at: int, end: int, value: Any) -> tuple[Any, int]:
    """Appends digits to a number, modulo 2^64; and the place after the last one."""
    while at < end:
        digit = uint8(text[at] - uint8(_ZERO))
        if digit > 9:
            break
        value = value * uint64(10) + uint64(digit)
        at += 1
    return value, at


@_compiled
def _rounded(digits: Any, power: int) -> tuple[float, bool]:
    """digits * 10^power, and whether that could be decided.

    Source: Clinger (1990), "How to read floating point numbers accurately", where digits and power
    are float64 themselves; else Lemire (2021), "Number parsing at a gigabyte per second", with the
    128-bit product where 64 bits do not decide.
    """
    if digits >> uint64(_FRACTION_BITS + 1) == 0 and abs(power) < len(_EXACT):
        if power < 0:
            return float(digits) / _EXACT[-power], True
        return float(digits) * _EXACT[power], True
    if digits == 0:
        return 0.0, True
    if not _LEAST_POWER <= power <= _MOST_POWER:
        return 0.0, False
    high_power, low_power = _POWERS[power - _LEAST_POWER]
    zeros = uint64(0)
    while digits >> uint64(63) == 0:
        digits <<= uint64(1)
        zeros += uint64(1)
    # 217706 / 2^16 is the binary logarithm of ten, near enough.
    exponent = (217706 * power >> 16) + 64 + _BIAS - int64(zeros)
    high, low = _product(digits, high_power)
    mask = uint64(0x1FF)
    if high & mask == mask and low + digits < digits:
        more_high, more_low = _product(digits, low_power)
        merged = low + more_high
        if merged < low:
            high += uint64(1)
        low = merged
        if high & mask == mask and low + uint64(1) == 0 and more_low + digits < digits:
            return 0.0, False
    top = high >> uint64(63)
    fraction = high >> (top + uint64(9))
    exponent -= 1 - int64(top)
    if low == 0 and high & mask == 0 and fraction & uint64(3) == 1:
        return 0.0, False  # maybe half-way between two
    fraction = (fraction + (fraction & uint64(1))) >> uint64(1)
    if fraction >> uint64(_FRACTION_BITS + 1) != 0:
        fraction >>= uint64(1)
        exponent += 1
    if not 0 < exponent < _SPECIAL:
        return 0.0, False
    fraction &= (uint64(1) << uint64(_FRACTION_BITS)) - uint64(1)
    bits = uint64(exponent) << uint64(_FRACTION_BITS) | fraction
    return float(np.uint64(bits).view(np.float64)), True


@_compiled
def _product(one: Any, two: Any) -> tuple[Any, Any]:
    """The 128 bits of a product of two uint64, high and low half."""
    mask, half = uint64(0xFFFFFFFF), uint64(32)
    one_high, one_low, two_high, two_low = one >> half, one & mask, two >> half, two & mask
    cross = one_high * two_low + (one_low * two_low >> half)
    other = one_low * two_high + (cross & mask)
    return one_high * two_high + (cross >> half) + (other >> half), one * two
