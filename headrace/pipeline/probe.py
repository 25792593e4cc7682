"""Finds weights that reach a graph as copies: their newest values could not be looked up there."""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["Origins"]

_INPUTS = 1  # the lowest bit; the weights have the others, in their order


@final
class Origins(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, follows what each tensor is computed from, storage by storage.

    It holds on to all that it saw, since the address of freed memory says nothing.

    Args:
        weights: their places are told.
        inputs: all else that the computation is given.
    """

    def __init__(self, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bits: dict[int, int] = {}
        self._seen: list[Tensor] = []
        for tensor in inputs:
            self._note(tensor, _INPUTS)
        for place, tensor in enumerate(weights):
            self._note(tensor, 2 << place)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        bits = 0
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, Tensor):
                bits |= self._bits_of(given)
        for made in tree_leaves(result):
            if isinstance(made, Tensor):
                self._note(made, bits)
        return result

    def weights_alone(self, tensor: Tensor) -> list[int]:
        """The places of the weights that the tensor is computed from, if from nothing else."""
        bits = self._bits_of(tensor)
        if bits & _INPUTS:
            return []
        return [place for place in range(bits.bit_length()) if bits & (2 << place)]

    def _bits_of(self, tensor: Tensor) -> int:
        return self._bits.get(_address(tensor), 0)

    def _note(self, tensor: Tensor, bits: int) -> None:
        self._seen.append(tensor)
        self._bits[_address(tensor)] = self._bits_of(tensor) | bits


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided else id(tensor)
