"""Numbers from decimal digits against Python's own float and int."""

import math
import random
import struct

import numpy as np
import pytest

from headrace.data.formats.decimals import FINE, HARD, NONE, read_float, read_whole


def read(text, function=read_float):
    """Of a text that other digits follow."""
    array = np.frombuffer(b"7" + text.encode() + b"7", np.uint8)
    value, at, *state = function(array, 1, len(array) - 1)
    return value, at - 1, *state


def drawn(draw):
    """Numbers as programs write them, and any bits of a float64."""
    value = draw.gauss(0, 1) * 10.0 ** draw.randint(-9, 9)
    any_value = struct.unpack("<d", draw.randbytes(8))[0]
    return draw.choice(
        [
            repr(any_value if math.isfinite(any_value) else 1.0),
            f"{value:.16g}",
            f"{value:.17g}",
            f"{value:+.6g}",
            f"{value:.3f}",
            f"{draw.randrange(10**9)}.{draw.randrange(10**9)}E{draw.randint(-330, 330)}",
            str(draw.randrange(2**53, 2**63)),
            f"{2 ** draw.randint(53, 62) + 2 ** draw.randint(0, 9)}",  # often half-way
        ]
    )


@pytest.mark.parametrize("seed", range(8))
def test_correctly_rounded(seed):
    """To the last bit; what is left to float is rare."""
    draw = random.Random(seed)
    num_hard, num = 0, 3000
    for _ in range(num):
        text = drawn(draw)
        value, length, state = read(text)
        assert length == len(text), text
        if state == HARD:
            num_hard += 1
        else:
            assert (state, struct.pack("<d", value)) == (FINE, struct.pack("<d", float(text))), text
    assert num_hard < num / 20


@pytest.mark.parametrize(
    "text, value",
    [
        ("0", 0.0),
        ("-0", -0.0),
        ("0e999", 0.0),
        ("+.5", 0.5),
        ("3.", 3.0),
        ("1e22", 1e22),
        ("1e23", 1e23),
        ("9007199254740993", 9007199254740992.0),  # half-way between two, if not HARD
        ("2.2250738585072014e-308", 2.2250738585072014e-308),
        ("1.7976931348623157e308", 1.7976931348623157e308),
    ],
)
def test_corners(text, value):
    """Zeros with their sign, ends of the range."""
    found, length, state = read(text)

    assert length == len(text)
    assert state == HARD or struct.pack("<d", found) == struct.pack("<d", value)


@pytest.mark.parametrize(
    "text", ["1e400", "1.8e308", "5e-324", "1" * 20, "0." + "0" * 20 + "1", "1e9999999999999999999"]
)
def test_left_to_python(text):
    """Too large, too small, too long."""
    assert read(text)[1:] == (len(text), HARD)


@pytest.mark.parametrize("text", ["", "+", "-", ".", "e5", "nan", "inf", "1e", "1e+", "--1", "x"])
def test_none(text):
    """Neither words nor parts of numbers."""
    assert read(text)[2] == NONE


def test_where_a_number_ends():
    """At the first character that is not of it."""
    for text, length in (
        ("1.5.2", 3),
        ("1,2", 1),
        ("1e5e", 3),
        ("12_3", 2),
        ("0x1", 1),
        ("1 2", 1),
    ):
        assert read(text)[1:] == (length, FINE)


def test_whole_numbers():
    """Of at most 18 digits, any number of zeros before them."""
    for value in (0, 7, 10, 2**32 + 1, 10**18 - 1):
        for zeros in (0, 1, 40):
            text = "0" * zeros + str(value)
            assert read(text, read_whole) == (value, len(text))
    for text in ("", "-1", "+1", "x"):
        assert read(text, read_whole) == (-1, 0)
    assert read("1" * 19, read_whole) == (-1, 19)
    assert read("0" * 30, read_whole) == (0, 30)
