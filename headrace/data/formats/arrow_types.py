"""Which columns of an Arrow schema a network can be fed: numbers, bytes, text, lists of numbers."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import ANY_LENGTH, BYTE, Refused
from headrace.errors import DataError

__all__ = ["Leaf", "decode_value", "leaves_of", "need_pyarrow"]


@dataclass(frozen=True)
class Leaf:
    """A column, or a member of a column of structs.

    Args:
        path: the column's name, then those of the members; joined by dots it is the field's name.
        dtype: of the numbers; of records of ANY_LENGTH those in the list, or bytes.
        shape: of one record.
        kind: "numbers", or of records of ANY_LENGTH "bytes", "text" or "list".
    """

    path: tuple[str, ...]
    dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    kind: str

    @property
    def record_shape(self) -> tuple[int, ...]:
        """The shape of records of numbers."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def about(self) -> dict[str, str]:
        """What decode_value must know."""
        return {} if self.kind == "numbers" else {"kind": self.kind, "dtype": self.dtype.str}


def need_pyarrow() -> Any:
    """The package, which is an extra.

    Raises:
        DataError: it is not installed.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DataError(
            "Arrow and Parquet files need the package pyarrow",
            remedy="pip install headrace[arrow]",
        ) from error
    return pyarrow


def leaves_of(schema: Any, where: object, *, is_decoded: bool) -> dict[str, Leaf | Refused]:
    """The columns of a schema as fields, those of structs member by member.

    Args:
        schema: pyarrow.Schema.
        where: the file, for messages.
        is_decoded: whether pyarrow makes the values, so that packed and encoded ones will do too.

    Raises:
        DataError: two of them have one name.
    """
    found: dict[str, Leaf | Refused] = {}
    for field in schema:
        for path, type in _members((field.name,), field.type):
            name = ".".join(path)
            if name in found:
                raise DataError(
                    "two columns have one name",
                    got=repr(name),
                    where=where,
                    remedy="rename one of them",
                )
            found[name] = _leaf(path, type, is_decoded)
    return found


def decode_value(record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
    """The value of a record of ANY_LENGTH: bytes, a str, or an array of numbers.

    Raises:
        ValueError: text that is no UTF-8.
    """
    if about["kind"] == "text":
        return record.tobytes().decode()
    if about["kind"] == "bytes":
        return record.tobytes()
    return record.copy().view(about["dtype"])


def _members(path: tuple[str, ...], type: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    types = need_pyarrow().types
    if types.is_struct(type) and type.num_fields:
        for index in range(type.num_fields):
            member = type.field(index)
            yield from _members((*path, member.name), member.type)
    else:
        yield path, type


def _leaf(path: tuple[str, ...], type: Any, is_decoded: bool) -> Leaf | Refused:
    types = need_pyarrow().types
    if is_decoded and types.is_dictionary(type):
        type = type.value_type
    numbers = _numbers(type, is_decoded)
    if numbers is not None:
        return Leaf(path, *numbers, "numbers")
    if types.is_binary(type) or types.is_large_binary(type):
        return Leaf(path, BYTE, ANY_LENGTH, "bytes")
    if types.is_string(type) or types.is_large_string(type):
        return Leaf(path, BYTE, ANY_LENGTH, "text")
    if types.is_list(type) or types.is_large_list(type):
        item = _numbers(type.value_type, is_decoded=False)
        if item is not None and item[1] == ():
            return Leaf(path, item[0], ANY_LENGTH, "list")
        return Refused("it is nested", str(type), "store its numbers as a list of numbers")
    if types.is_dictionary(type):
        return Refused(
            "it is dictionary-encoded",
            str(type),
            "decode it (dictionary_decode) and write it again",
        )
    if types.is_temporal(type):
        return Refused("it holds times", str(type), "cast it to int64 and write it again")
    if types.is_boolean(type):
        return Refused("it is packed, eight values a byte", "bool", "cast it to uint8")
    return Refused("it holds neither numbers nor text nor bytes", str(type), "convert it")


def _numbers(type: Any, is_decoded: bool) -> tuple[np.dtype[Any], tuple[int, ...]] | None:
    """Dtype and shape of a record of numbers, if they are all of one shape."""
    pyarrow = need_pyarrow()
    types = pyarrow.types
    if types.is_integer(type) or types.is_floating(type):
        return np.dtype(type.to_pandas_dtype()), ()
    if types.is_boolean(type) and is_decoded:
        return np.dtype(bool), ()
    if types.is_fixed_size_binary(type):
        return BYTE, (type.byte_width,)
    if types.is_fixed_size_list(type):
        inner = _numbers(type.value_type, is_decoded)
        return None if inner is None else (inner[0], (type.list_size, *inner[1]))
    if isinstance(type, pyarrow.FixedShapeTensorType):
        inner = _numbers(type.value_type, is_decoded)
        # Of a permuted tensor the axes in memory are not those of its shape.
        if inner is not None and type.permutation in (None, sorted(type.permutation or ())):
            return inner[0], (*type.shape, *inner[1])
    return None
