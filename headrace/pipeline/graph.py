"""A model as a chain of layers, in the order in which a record passes through them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headrace.errors import ModelError
from headrace.pipeline.units import units_of

__all__ = ["Layer", "is_chain", "layers", "require_untied"]


@dataclass(frozen=True)
class Layer:
    """One step of the chain: a module that takes what the layer before returned.

    Attributes:
        name: the dotted name in the whole model, as `model.named_modules()` gives it, of the module
            or, of a unit of several, of the one that it begins with.
        module: the module itself, not a copy; or a unit of such modules.
        is_unit: whether the module's tensors have their names in the whole model already.
    """

    name: str
    module: nn.Module
    is_unit: bool = False

    def full_name(self, name: str) -> str:
        """The name in the whole model of one of the module's tensors."""
        return name if self.is_unit else f"{self.name}.{name}"


def layers(
    model: nn.Module, arguments: Sequence[str] | None = None, example: Any = None
) -> list[Layer]:
    """The layers of a model: those of an `nn.Sequential`, or the units of any other module.

    Nested Sequentials are flattened, unless they are more than their children in order: have their
    own forward, hooks, parameters or buffers. A module that stands in two places is listed twice.
    Of any other module the forward is followed by torch.fx or torch.export; see units.units_of.

    Args:
        model: a chain or any module.
        arguments: of its forward, those that a batch's inputs give; see units.units_of.
        example: inputs of at least two records; likewise.

    Raises:
        ModelError: it is no module, its forward cannot be followed, or there are no layers.
    """
    if not isinstance(model, nn.Module):
        raise ModelError("this is no model", got=type(model).__name__, expected="an nn.Module")
    if is_chain(model):
        found = list(_flattened(model, ""))
    else:
        found = [
            Layer(name, unit, is_unit=True) for name, unit in units_of(model, arguments, example)
        ]
    if not found:
        raise ModelError(
            "this model has no layers",
            got=f"{type(model).__qualname__} without children",
            remedy="give nn.Sequential at least one layer for each stage",
        )
    return found


def require_untied(layers: Sequence[Layer], cuts: Sequence[int]) -> None:
    """Raises ModelError if a parameter or buffer is used in two stages.

    Each stage would train its own copy of it. Within one stage such tied weights are fine, and so
    is a module without parameters and buffers (an activation) wherever it stands.

    Args:
        layers: the whole chain.
        cuts: the first layer of each stage but the first.

    Raises:
        ModelError: naming both uses of each tensor that is shared, all of them at once.
    """
    first_uses: dict[int, tuple[str, int]] = {}
    faults = []
    for index, layer in enumerate(layers):
        stage = bisect_right(cuts, index)
        for name, tensor in _tensors(layer):
            first_name, first_stage = first_uses.setdefault(_identity(tensor), (name, stage))
            if first_stage != stage:
                faults.append(f"{first_name!r} of stage {first_stage} is {name!r} of stage {stage}")
    if faults:
        raise ModelError(
            "one tensor is used in two stages (tied weights, or one module in two places)",
            got="; ".join(faults),
            remedy="cut so that both uses lie in one stage, or give each its own tensor (a copy)",
        )


def is_chain(module: nn.Module) -> bool:
    """Whether it is an nn.Sequential that runs its children in order and holds nothing else."""
    if not isinstance(module, nn.Sequential):
        return False
    has_own_forward = (
        type(module).forward is not nn.Sequential.forward or "forward" in module.__dict__
    )
    return not (has_own_forward or _has_hooks(module) or _holds_tensors(module))


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _holds_tensors(module: nn.Module) -> bool:
    own = [*module._parameters.values(), *module._buffers.values()]
    return any(tensor is not None for tensor in own)


def _flattened(module: nn.Module, name: str) -> Iterator[Layer]:
    # Not named_modules(), which would skip the second place of a module.
    if not is_chain(module):
        yield Layer(name, module)
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from _flattened(child, f"{name}.{key}" if name else key)


def _tensors(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers with their names in the whole model."""
    for name, tensor in (*layer.module.named_parameters(), *layer.module.named_buffers()):
        yield layer.full_name(name), tensor


def _identity(tensor: Tensor) -> int:
    """Where the tensor lies: two parameters over the same memory are tied, whatever their objects.

    A tensor without memory (empty, or on the meta device) is known by its object alone.
    """
    return tensor.data_ptr() or id(tensor)
