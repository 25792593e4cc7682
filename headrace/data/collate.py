"""From the bytes of records, scattered in a read's buffer, to one dense array or tensor."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from headrace.data.formats.sparse import SparseRows
from headrace.errors import DataError

if TYPE_CHECKING:
    from headrace.data.reader import Pieces

__all__ = ["dense", "to_tensors"]

_LONGEST_ITEM = (1 << 31) - 1  # bytes of one item of an array, for numpy


def dense(pieces: "Pieces", dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """The records as rows of one array that is theirs alone, writable, in native byte order.

    Where the bytes came in order and side by side, the array is the memory that they came into.

    Args:
        pieces: where the bytes of R records are.
        dtype: of the elements in the file, with their byte order.
        shape: of a record.

    Returns:
        dtype[R, *shape].

    Raises:
        DataError: the pieces of a record are not as many bytes as its shape takes.
    """
    num_records, record_bytes = len(pieces.starts) - 1, dtype.itemsize * math.prod(shape)
    num_pieces = len(pieces.lengths)
    length = int(pieces.lengths[0]) if num_pieces else 0
    are_equal = bool((pieces.lengths == length).all())
    if not are_equal or num_pieces != num_records or length != record_bytes:
        _check_sizes(pieces, record_bytes)
    if num_records == 0 or record_bytes == 0:
        return np.empty((num_records, *shape), dtype.newbyteorder("="))
    if _is_whole(pieces, num_records * record_bytes):
        joined = pieces.buffer
    elif are_equal and length <= _LONGEST_ITEM:
        joined = _equal_pieces(pieces, length)
    else:
        joined = _any_pieces(pieces, num_records * record_bytes)
    array = joined.view(dtype).reshape(num_records, *shape)
    if not dtype.isnative:
        array = array.byteswap(inplace=True).view(dtype.newbyteorder("="))
    return array


def _check_sizes(pieces: "Pieces", record_bytes: int) -> None:
    ends = np.concatenate([[0], np.cumsum(pieces.lengths)])
    sizes = np.diff(ends[pieces.starts])
    wrong = np.flatnonzero(sizes != record_bytes)
    if len(wrong):
        raise DataError(
            f"the pieces of record {wrong[0]} of the batch have the wrong size",
            got=f"{sizes[wrong[0]]} bytes",
            expected=record_bytes,
        )


def _is_whole(pieces: "Pieces", num_bytes: int) -> bool:
    """Whether the pieces are the buffer, one after another."""
    if len(pieces.buffer) != num_bytes or pieces.positions[0]:
        return False
    return bool((pieces.positions[1:] == pieces.positions[:-1] + pieces.lengths[:-1]).all())


def _equal_pieces(pieces: "Pieces", length: int) -> NDArray[np.uint8]:
    """All bytes of all pieces, in order; one copy of `length` bytes a piece, none in Python."""
    # Items of `length` bytes that begin at every byte of the buffer: a view, so indexing copies.
    item = np.dtype((np.void, length))
    starts = len(pieces.buffer) - length + 1
    items = as_strided(pieces.buffer[:length].view(item), (starts,), (1,), writeable=False)
    return items[pieces.positions].view(np.uint8)


def _any_pieces(pieces: "Pieces", num_bytes: int) -> NDArray[np.uint8]:
    joined, end = np.empty(num_bytes, np.uint8), 0
    for start, length in zip(pieces.positions.tolist(), pieces.lengths.tolist(), strict=True):
        joined[end : end + length] = pieces.buffer[start : start + length]
        end += length
    return joined


def to_tensors(batch: Mapping[str, Any], *, pin_memory: bool = False) -> dict[str, Any]:
    """The arrays as tensors that share their memory, or as copies in pinned memory.

    SparseRows become sparse CSR tensors. What is neither, such as a list of decoded values, stays
    what it is.

    Pinned memory makes the copy to a CUDA device asynchronous. No GPU has run this yet.

    Raises:
        DataError: a dtype that torch does not have, or memory to pin where there is no device.
    """
    import torch

    if pin_memory and not torch.accelerator.is_available():
        raise DataError(
            "memory cannot be pinned", got="no device to copy to", remedy="leave out pin_memory"
        )
    tensors = {}
    for name, array in batch.items():
        if isinstance(array, SparseRows):
            indptr, columns, values = map(
                torch.from_numpy, (array.indptr, array.indices, array.data)
            )
            tensors[name] = torch.sparse_csr_tensor(indptr, columns, values, size=array.shape)
            continue
        if not isinstance(array, np.ndarray):
            tensors[name] = array
            continue
        try:
            tensors[name] = torch.from_numpy(
                array.astype(array.dtype.newbyteorder("="), copy=False)
            )
        except TypeError as error:
            raise DataError(
                "a dtype that torch does not have",
                got=array.dtype,
                where=f"field {name!r}",
                remedy="take the arrays as they are (tensors=False) and convert them",
            ) from error
    if pin_memory:
        tensors = {
            name: value.pin_memory() if isinstance(value, torch.Tensor) else value
            for name, value in tensors.items()
        }
    return tensors
