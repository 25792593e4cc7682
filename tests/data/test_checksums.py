"""CRC32C against the standard's own examples, a division done bit by bit, and Google's package."""

import numpy as np
import pytest

from headrace.data import checksums
from headrace.data.checksums import crc32c, crc32c_of_eight


def bytes_of(content):
    return np.frombuffer(content, np.uint8)


def by_division(content):
    """The remainder, a bit at a time: RFC 3720, 12.1."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_examples_of_the_standard(content, expected):
    """RFC 3720, appendix B.4 (its bytes are in the order of the wire)."""
    assert crc32c(bytes_of(content)) == expected == by_division(content)


@pytest.mark.parametrize("size", [*range(40), 1000, 8191])
def test_any_size_at_any_address(size):
    """Words that do not begin at a multiple of eight, and what is left of them."""
    content = np.random.default_rng(size).bytes(size + 7)
    expected = [by_division(content[start : start + size]) for start in range(8)]
    memory = bytes_of(content)
    writable = memory.copy()

    assert [crc32c(memory[start : start + size]) for start in range(8)] == expected
    assert [crc32c(writable[start : start + size]) for start in range(8)] == expected


def test_large_data():
    """As another implementation has it."""
    package = pytest.importorskip("crc32c")
    content = np.random.default_rng(0).bytes((1 << 22) + 5)
    assert crc32c(bytes_of(content)) == package.crc32c(content)


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32, 2**63 - 1])
def test_eight_bytes(word):
    """A length, as it stands in a TFRecord."""
    assert crc32c_of_eight(word) == by_division(word.to_bytes(8, "little"))


def test_tables_do_as_the_instruction():
    """Processors without it get the same checksums."""
    words = np.random.default_rng(0).integers(0, 2**64, 100, np.uint64, endpoint=False)
    by_tables = np.uint64(0xFFFFFFFF)
    for word in words:
        by_tables = np.uint64(checksums._by_tables(by_tables, word))
    assert int(by_tables) ^ 0xFFFFFFFF == crc32c(words.view(np.uint8))
