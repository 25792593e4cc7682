"""What layers hand on: any nesting of tensors and plain values, taken apart and put together."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.errors import ModelError

__all__ = ["TENSOR", "mapped", "put_together", "taken_apart", "tensors_in"]

TENSOR = "0"
"""The form of a value that is one tensor."""

_PLAIN = (bool, int, float, str, type(None))


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a value, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The value with its tensors changed and all else as it is."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple | list):
        parts = [mapped(part, change) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return type(value)((key, mapped(part, change)) for key, part in value.items())
    return value


def taken_apart(value: Any) -> tuple[tuple[Tensor, ...], str]:
    """The tensors of a value, each once, and its form: JSON that says how they are put together.

    A tensor that stands in two places is one tensor in two places again afterwards.

    Raises:
        ModelError: it holds something that cannot go to another process as it is: neither a tensor
            nor a tuple, list or dict of such, nor a number, text, None, dtype or device.
    """
    if isinstance(value, Tensor):
        return (value,), TENSOR
    tensors: dict[int, Tensor] = {}
    form = _form(value, tensors)
    return tuple(tensors.values()), json.dumps(form, separators=(",", ":"))


def put_together(tensors: Sequence[Tensor], form: str, device: torch.device | None = None) -> Any:
    """The value of which these are tensors and form.

    Args:
        tensors: in the order in which ``taken_apart`` gave them.
        form: as it gave it.
        device: what stands for any device in the value; None leaves those that were.
    """
    return tensors[0] if form == TENSOR else _value(json.loads(form), tensors, device)


def _form(value: Any, tensors: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.setdefault(id(value), value)
        return list(tensors).index(id(value))
    kind = type(value)
    if kind in (tuple, list, torch.Size):
        return [kind.__name__, *(_form(part, tensors) for part in value)]
    if kind is dict and all(isinstance(key, str) for key in value):
        return ["dict", *([key, _form(part, tensors)] for key, part in value.items())]
    if kind in _PLAIN:
        return ["plain", value]
    if kind is slice:
        return ["slice", *(_form(one, tensors) for one in (value.start, value.stop, value.step))]
    if kind is torch.dtype or kind is torch.device:
        return [kind.__name__, str(value)]
    raise ModelError(
        "only tensors, and tuples, lists and dicts of tensors and plain values, can cross a cut",
        got=f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."),
    )


def _value(form: Any, tensors: Sequence[Tensor], device: torch.device | None) -> Any:
    if isinstance(form, int):
        return tensors[form]
    kind, *parts = form
    if kind == "plain":
        return parts[0]
    if kind == "dtype":
        return getattr(torch, parts[0].removeprefix("torch."))
    if kind == "device":
        return torch.device(parts[0]) if device is None else device
    if kind == "dict":
        return {key: _value(part, tensors, device) for key, part in parts}
    values = [_value(part, tensors, device) for part in parts]
    if kind == "slice":
        return slice(*values)
    return {"tuple": tuple, "list": list, "Size": torch.Size}[kind](values)
