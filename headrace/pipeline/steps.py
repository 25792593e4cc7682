"""A module's forward as a graph of steps, by torch.fx or, from example inputs, by torch.export."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree

from headrace.errors import ModelError
from headrace.pipeline.values import mapped

__all__ = ["Steps", "attribute", "cannot_follow", "steps_of"]

_MAKERS = "arange empty eye full linspace ones rand randint randn randperm tensor zeros".split()
_CONSTANT = re.compile(r"_\w+_constant_?\d+$")  # what torch.fx calls those that it finds


@dataclass(frozen=True)
class Steps:
    """A forward in one mode.

    Args:
        graph: placeholders for what is given, then the steps, which name modules, parameters and
            buffers of the model.
        extras: what they name that the model does not have: constants.
    """

    graph: fx.Graph
    extras: Mapping[str, Any]


def steps_of(
    model: nn.Module, names: tuple[str, ...], example: tuple[Any, ...] | None
) -> tuple[Steps, Steps]:
    """The steps of a module's forward in training and in evaluation mode.

    torch.fx follows it with symbolic values; modules that it cannot follow stay one step. Where
    there are such, and example inputs, torch.export follows the whole with these, for any number of
    records, and for any other size that the model takes.

    Args:
        model: left as it was.
        names: of the arguments of its forward that are given.
        example: these arguments, of at least two records, or None.

    Raises:
        ModelError: neither can follow it.
    """
    found: tuple[Steps, Steps] | None = None
    try:
        training, evaluation, opaque = _symbolic(model, names)
        found = training, evaluation
        if example is None or not any(_has_parts(model.get_submodule(name)) for name in opaque):
            return found
    except ModelError:
        if example is None:
            raise
    try:
        return _exported(model, names, example, True), _exported(model, names, example, False)
    except ModelError:
        if found is None:
            raise
        return found


def cannot_follow(model: nn.Module, why: str, got: str, remedy: str = "") -> ModelError:
    """The error of a model that is no chain and cannot be made one."""
    layers = "give its layers: nn.Sequential(first, second, ...); each may be any module"
    return ModelError(
        f"this model cannot be cut into stages: {why}",
        got=got,
        where=type(model).__qualname__,
        remedy=f"{remedy}{layers}",
    )


def _has_parts(module: nn.Module) -> bool:
    """Whether there may be something to cut in it."""
    return sum(any(True for _ in child.parameters()) for child in module.children()) > 1


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _named_by_mode(graph: fx.Graph, extras: Mapping[str, Any], *, is_training: bool) -> Steps:
    """Steps whose constants have other names than those of the other mode."""
    prefix = "_in_training_" if is_training else "_in_evaluation_"
    names = {name: prefix + name.replace(".", "_") for name in extras}
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr") and node.target in names:
            node.target = names[str(node.target)]
    return Steps(graph, {names[name]: value for name, value in extras.items()})


# By torch.export


def _exported(
    model: nn.Module, names: tuple[str, ...], example: tuple[Any, ...], is_training: bool
) -> Steps:
    """The steps in a mode, as torch's own operators."""
    given = dict(zip(names, example, strict=True))
    with _left_as_found(model):
        model.train(is_training)
        try:
            program = torch.export.export(
                model, (), given, dynamic_shapes=mapped(given, _sizes), strict=False
            )
        except Exception as error:
            raise cannot_follow(
                model, "neither torch.fx nor torch.export can follow it", _first_line(error)
            ) from error
    made: Any = program.module()
    graph: fx.Graph = made.graph
    extras: dict[str, Any] = {"_output": _Rebuilt(program.call_spec.out_spec)}
    *_, output = graph.nodes
    first = next(node for node in graph.nodes if node.op == "placeholder")
    for node in list(graph.nodes):
        if node.op == "call_module":  # checks of the inputs' sizes
            graph.erase_node(node)
        elif node.op == "get_attr" and not _has(model, str(node.target)):
            extras[str(node.target)] = attribute(made, str(node.target))
        elif node.op == "call_function" and "device" in node.kwargs:
            with graph.inserting_before(node):
                device = graph.call_function(getattr, (first, "device"))
            node.kwargs = {**node.kwargs, "device": device}
    with graph.inserting_before(output):
        output.args = (graph.create_node("call_module", "_output", tuple(output.args[0])),)
    return _named_by_mode(graph, extras, is_training=is_training)


def _sizes(tensor: Tensor) -> Any:
    """Any number of records, and any other sizes that go."""
    records, others = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    return {axis: others if axis else records for axis in range(tensor.ndim)}


@final
class _Rebuilt(nn.Module):
    """The output of a model, of its tensors."""

    def __init__(self, spec: _pytree.TreeSpec) -> None:
        super().__init__()
        self._spec = spec

    def forward(self, *parts: Any) -> Any:
        """As the model's forward returns it."""
        return _pytree.tree_unflatten(parts, self._spec)


def _has(model: nn.Module, target: str) -> bool:
    try:
        attribute(model, target)
    except AttributeError:
        return False
    return True


def attribute(module: Any, target: str) -> Any:
    """What a module has under a dotted name."""
    for part in target.split("."):
        module = getattr(module, part)
    return module


# By torch.fx


def _symbolic(model: nn.Module, names: tuple[str, ...]) -> tuple[Steps, Steps, set[str]]:
    """The steps in both modes, and the names of the modules that are one step."""
    opaque: set[str] = set()
    while True:
        before = set(opaque)
        training = _in_mode(model, names, opaque, is_training=True)
        evaluation = _in_mode(model, names, opaque, is_training=False)
        if opaque == before:
            break
    pairs = zip(training.extras.values(), evaluation.extras.values(), strict=False)
    if len(training.extras) == len(evaluation.extras) and not all(_equal(*pair) for pair in pairs):
        raise cannot_follow(
            model, "its forward makes a constant that is another each time", "random numbers"
        )
    return training, evaluation, opaque


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other)


@final
class _Tracer(fx.Tracer):
    """Follows modules as far as that goes; what raises is a step of its own.

    Args:
        names: of the forward's arguments that are given.
        opaque: names of modules that are not to be followed.
    """

    def __init__(self, names: tuple[str, ...], opaque: set[str]) -> None:
        super().__init__()
        self._names = names
        self._opaque = opaque

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """The forward as a function of what is given."""
        proxies = [self.create_proxy("placeholder", name, (), {}) for name in self._names]

        def forward(root: nn.Module, *values: Any) -> Any:
            return root_fn(root, **dict(zip(self._names, values, strict=True)))

        return forward, [self.root, *proxies]

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """torch's own layers, what has hooks, and what cannot be followed."""
        has_hooks = m._forward_hooks or m._forward_pre_hooks or m._backward_hooks
        is_opaque = bool(has_hooks) or module_qualified_name in self._opaque
        return is_opaque or super().is_leaf_module(m, module_qualified_name)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """A node each time: one that was kept might be among those taken back below."""
        return super().getattr(attr, attr_val, {})

    def call_module(
        self,
        m: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Follows a module, or takes back what was followed of it and makes it one step."""
        before = len(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            for node in reversed(list(self.graph.nodes)[before:]):
                self.graph.erase_node(node)
            name = self.path_of_module(m)
            self._opaque.add(name)
            return self.create_proxy("call_module", name, args, kwargs)


@contextmanager
def _making(tracer: fx.Tracer) -> Iterator[None]:
    """Tensors that a forward makes anew, random ones too, are steps, and not constants."""
    makers = {name: getattr(torch, name) for name in _MAKERS}

    def make(maker: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Any:
        return tracer.create_proxy("call_function", maker, args, kwargs)

    try:
        for name, maker in makers.items():
            setattr(torch, name, partial(make, maker))
        yield
    finally:
        for name, maker in makers.items():
            setattr(torch, name, maker)


def _in_mode(
    model: nn.Module, names: tuple[str, ...], opaque: set[str], *, is_training: bool
) -> Steps:
    """The steps of a forward in a mode; the model is left as it was.

    Args:
        model: whose forward it is.
        names: of the arguments that are given.
        opaque: names of modules that are one step; others that must be are added.
        is_training: the mode.
    """
    while True:
        with _left_as_found(model) as found:
            model.train(is_training)
            tracer = _Tracer(names, opaque)
            try:
                with _making(tracer):
                    graph = tracer.trace(model)
            except Exception as error:
                raise cannot_follow(
                    model,
                    "torch.fx cannot follow its forward",
                    _first_line(error),
                ) from error
        if not found.changed:
            return _named_by_mode(graph, found.constants, is_training=is_training)
        if found.changed & (opaque | {""}):
            changed = ", ".join(
                repr(name or type(model).__name__) for name in sorted(found.changed)
            )
            raise cannot_follow(model, "its forward sets attributes", changed)
        opaque |= found.changed


@dataclass
class _Found:
    """What following a forward did to the model."""

    changed: set[str] = field(default_factory=set)
    """Names of the modules that had other attributes afterwards."""
    constants: dict[str, Any] = field(default_factory=dict)
    """What torch.fx put on the model."""


@contextmanager
def _left_as_found(model: nn.Module) -> Iterator[_Found]:
    """Attributes and modes afterwards are those of before; says what was changed."""
    found = _Found()
    before = {
        name: (module, [dict(part) for part in _parts(module)])
        for name, module in model.named_modules()
    }
    try:
        yield found
    finally:
        for name, (module, parts) in before.items():
            for part, old in zip(_parts(module), parts, strict=True):
                for key in [key for key in part if key not in old]:
                    made = part.pop(key)
                    if module is model and _CONSTANT.match(key):
                        found.constants[key] = made
                    else:
                        found.changed.add(name)
                if any(part.get(key) is not old[key] for key in old if key != "training"):
                    found.changed.add(name)
                part.update(old)


def _parts(module: nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module keeps what it has."""
    return module.__dict__, module._parameters, module._buffers, module._modules
