"""The permutations of headrace.data.permutation, in plain Python."""

import math
from hashlib import blake2b

WORD = 2**64 - 1


def philox(key, num_numbers, start=1):
    """Philox4x64-10 as in Salmon and others (2011), in plain Python; numpy's starts at 1."""
    numbers = []
    for counter in range(start, start + -(-num_numbers // 4)):
        a, b, c, d = counter, 0, 0, 0
        k0, k1 = key
        for _ in range(10):
            p, q = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = (q >> 64) ^ b ^ k0, q & WORD, (p >> 64) ^ d ^ k1, p & WORD
            k0, k1 = (k0 + 0x9E3779B97F4A7C15) & WORD, (k1 + 0xBB67AE8584CAA73B) & WORD
        numbers += [a, b, c, d]
    return numbers[:num_numbers]


def splitmix(start):
    """The output function of SplitMix64, in plain Python."""
    z = ((start ^ (start >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def feistel(number, num_records, keys):
    """One position through the network, walking until it is a record, in plain Python."""
    a = math.isqrt(num_records)
    a += a * a < num_records
    b = (num_records + a - 1) // a
    while True:
        x, y = number // b, number % b
        for i in range(0, len(keys), 2):
            x = (x + splitmix((y * 0x9E3779B97F4A7C15 + keys[i]) & WORD)) % a
            y = (y + splitmix((x * 0x9E3779B97F4A7C15 + keys[i + 1]) & WORD)) % b
        number = x * b + y
        if number < num_records:
            return number


def keys_of_text(text):
    """Eight keys, from hashlib alone."""
    digest = blake2b(text.encode(), digest_size=64).digest()
    return [int.from_bytes(digest[i : i + 8], "little") for i in range(0, 64, 8)]


def plain_permutation(positions, size, keys):
    """Up to 65536 numbers sorted by random numbers; above, the network."""
    if size > 65536:
        return [feistel(position, size, keys) for position in positions]
    numbers = philox(keys[:2], size)
    order = sorted(range(size), key=numbers.__getitem__)
    return [order[position] for position in positions]
