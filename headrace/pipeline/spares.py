"""Memory for tensors like some others, lent and taken back: fresh memory costs page faults."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

__all__ = ["Spares"]


@final
class Spares:
    """Sets of tensors like the given ones; the content of what is taken is left over.

    Args:
        like: their shapes, dtypes, devices and strides.
    """

    def __init__(self, like: Sequence[Tensor]) -> None:
        self._like = like
        self._sets: list[tuple[Tensor, ...]] = []

    def take(self) -> tuple[Tensor, ...]:
        """A set that nobody uses: one given back, or a new one."""
        if self._sets:
            return self._sets.pop()
        return tuple(torch.empty_like(tensor, requires_grad=False) for tensor in self._like)

    def give(self, tensors: Sequence[Tensor]) -> None:
        """Takes a set back: no graph may need it any more. (Autograd raises should one do.)"""
        self._sets.append(tuple(tensor.detach() for tensor in tensors))

    def clear(self) -> None:
        """Gives the memory back to the system."""
        self._sets.clear()
