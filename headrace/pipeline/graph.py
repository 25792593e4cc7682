"""A model as a chain of layers, in the order in which a record passes through them."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from headrace.errors import ModelError

__all__ = ["Layer", "layers", "require_untied"]

_CHAIN = "an nn.Sequential that runs its children in order and holds nothing else"


@dataclass(frozen=True)
class Layer:
    """One step of the chain: a module that takes what the layer before returned.

    Attributes:
        name: the module's dotted name in the whole model, as `model.named_modules()` gives it.
        module: the module itself, not a copy.
    """

    name: str
    module: nn.Module


def layers(model: nn.Module) -> list[Layer]:
    """The layers of a model, nested `nn.Sequential`s flattened.

    A nested Sequential stays one layer if it is more than its children in order: if it has its own
    forward, hooks, parameters or buffers. A module that stands in two places is listed twice.

    Raises:
        ModelError: the model is no such chain, or has no layers.
    """
    if not _is_chain(model):
        raise ModelError(
            "this model cannot be cut into stages",
            got=_description(model),
            expected=_CHAIN,
            remedy="write its forward as nn.Sequential(first, second, ...); each may be any module",
        )
    found = list(_flattened(model, ""))
    if not found:
        raise ModelError(
            "this model has no layers",
            got=_description(model),
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


def _is_chain(module: nn.Module) -> bool:
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
    if not _is_chain(module):
        yield Layer(name, module)
        return
    for key, child in module._modules.items():
        if child is not None:
            yield from _flattened(child, f"{name}.{key}" if name else key)


def _tensors(layer: Layer) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers with their names in the whole model."""
    yield from layer.module.named_parameters(prefix=layer.name)
    yield from layer.module.named_buffers(prefix=layer.name)


def _identity(tensor: Tensor) -> int:
    """Where the tensor lies: two parameters over the same memory are tied, whatever their objects.

    A tensor without memory (empty, or on the meta device) is known by its object alone.
    """
    return tensor.data_ptr() or id(tensor)


def _description(model: nn.Module) -> str:
    name = type(model).__qualname__
    if not isinstance(model, nn.Sequential):
        return name
    if len(model) == 0:
        return f"{name} without children"
    if _has_hooks(model):
        return f"{name} with hooks of its own"
    if _holds_tensors(model):
        return f"{name} with parameters or buffers of its own"
    return f"{name} with a forward of its own" if not _is_chain(model) else f"empty {name}"
