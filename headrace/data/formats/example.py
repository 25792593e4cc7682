"""Reads tf.train.Example messages from Protocol Buffers' wire format, without that library."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["parse_example"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LONGEST_VARINT = 10  # bytes


def parse_example(message: bytes) -> dict[str, Any]:
    """The features of an Example.

    Args:
        message: as tf.train.Example.SerializeToString writes it.

    Returns:
        name -> int64[n], float32[n] or a list of n bytes, as the feature is an Int64List, a
        FloatList or a BytesList; of one that is none of these an empty list.

    Raises:
        ValueError: the bytes are no such message.

    Source: tensorflow/core/example/example.proto and feature.proto;
    protobuf.dev/programming-guides/encoding.
    """
    features: dict[str, Any] = {}
    for number, value in _fields(message):
        if number == 1:
            for inner, entry in _fields(_as_bytes(value)):
                if inner == 1:
                    name, feature = _entry(_as_bytes(entry))
                    features[name] = feature
    return features


def _entry(message: bytes) -> tuple[str, Any]:
    """An entry of the map from names to features."""
    name, feature = b"", b""
    for number, value in _fields(message):
        if number == 1:
            name = _as_bytes(value)
        elif number == 2:
            feature += _as_bytes(value)  # parts of one message are merged
    return name.decode(), _feature(feature)


def _feature(message: bytes) -> Any:
    kind, parts = 0, b""
    for number, value in _fields(message):
        if number in (1, 2, 3):
            parts = (parts if number == kind else b"") + _as_bytes(value)  # the last kind counts
            kind = number
    if kind == 2:
        return _numbers(parts, np.dtype("<f4"))
    if kind == 3:
        return _numbers(parts, np.dtype("<i8"))
    return [_as_bytes(value) for number, value in _fields(parts) if number == 1]


def _numbers(message: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A FloatList or Int64List: numbers one by one, or many packed into bytes, or both."""
    parts: list[NDArray[Any]] = [np.empty(0, dtype)]
    for number, value in _fields(message):
        if number != 1:
            continue
        if isinstance(value, int):
            if dtype.kind == "f":
                raise ValueError("a whole number in a list of floats")
            parts.append(np.array([value], np.uint64).view(dtype))
        elif dtype.kind == "f":
            parts.append(np.frombuffer(value, dtype))
        else:
            parts.append(_varints(value).view(dtype))
    return np.concatenate(parts).astype(dtype.newbyteorder("="), copy=False)


def _varints(packed: bytes) -> NDArray[np.uint64]:
    """Numbers of seven bits a byte, the lowest first; the last byte of each is below 128."""
    content = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(content < 128)
    if not len(content):
        return np.empty(0, np.uint64)
    starts = np.concatenate([[0], ends[:-1] + 1])
    if not len(ends) or ends[-1] != len(content) - 1 or (ends - starts).max() >= _LONGEST_VARINT:
        raise ValueError("a number without an end")
    places = np.arange(len(content)) - np.repeat(starts, ends - starts + 1)
    bits = (content & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts)


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The numbers and values of a message's fields; numbers of fixed size as their bytes."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, position = _varint(message, position)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, position = _varint(message, position)
        elif wire_type in (_FIXED32, _FIXED64):
            size = 4 if wire_type == _FIXED32 else 8
        else:
            raise ValueError(f"no tf.train.Example: wire type {wire_type} at byte {position}")
        if position + size > len(message):
            raise ValueError("no tf.train.Example, or one that is cut")
        yield number, message[position : position + size]
        position += size


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = 0
    for place in range(_LONGEST_VARINT):
        if position + place >= len(message):
            break
        byte = message[position + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value & 0xFFFFFFFFFFFFFFFF, position + place + 1
    raise ValueError("no tf.train.Example: a number without an end")


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("no tf.train.Example: a number where a message should be")
    return value
