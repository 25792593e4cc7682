"""An ordinary module as a chain of units, each of which takes what the one before hands on."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import signature
from operator import getitem
from typing import Any, final

import torch
from torch import Tensor, fx, nn

from headrace.errors import ModelError

__all__ = ["units_of"]

_MAKERS = "arange empty eye full linspace ones rand randint randn randperm tensor zeros".split()

_CONSTANT = re.compile(r"_\w+_constant_?\d+$")  # what torch.fx calls those that it finds


def units_of(
    model: nn.Module, arguments: Sequence[str] | None = None
) -> list[tuple[str, nn.Module]]:
    """A module's forward, cut wherever a computation with parameters begins.

    torch.fx follows it with symbolic values, in training and in evaluation mode. What it cannot
    follow inside, such as a module whose way depends on values, stays one step. A unit takes the
    values that the rest of the forward needs, relayed ones too, and returns those that the units
    after it need; the first one takes the model's inputs: a tensor, a tuple by position or a dict
    by name. The units hold the model's own modules and parameters, under their own names.

    Args:
        model: whose forward it is.
        arguments: those of the forward that will be given, the others having their defaults; None
            is those without a default, or the first one where all have one.

    Returns:
        (name, unit) in order; names are those of the modules that units begin with.

    Raises:
        ModelError: torch.fx cannot follow the forward of the module itself, or it goes another way
            in evaluation, or sets attributes.
    """
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks:
        raise _cannot_follow(model, "it has hooks of its own", "hooks on the whole model")
    if type(model).forward is nn.Module.forward:
        raise _cannot_follow(model, "it has no forward", f"a {type(model).__name__}")
    if "forward" in model.__dict__:
        raise _cannot_follow(model, "its forward is not its class's", "a forward that was set")
    names = _arguments(model, arguments)
    return _cut(model, names, _followed(model, names))


def _arguments(model: nn.Module, wanted: Sequence[str] | None) -> tuple[str, ...]:
    """The names of the arguments that the forward is given.

    Raises:
        ModelError: it has none of such a name, or needs others.
    """
    parameters = list(signature(type(model).forward).parameters.values())[1:]
    named = [one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    required = [one.name for one in named if one.default is one.empty]
    found = tuple(required or [one.name for one in named[:1]]) if wanted is None else tuple(wanted)
    wrong = [name for name in found if name not in {one.name for one in named}]
    missing = [name for name in required if name not in found]
    if wrong or missing or not found:
        raise ModelError(
            "the arguments of the model's forward",
            got=", ".join(found) or "none",
            expected=f"some of {', '.join(one.name for one in named)}"
            + (f"; {', '.join(required)} must be among them" if missing else ""),
            where=type(model).__qualname__,
            remedy="name what a batch's inputs give: arguments=(...)",
        )
    return found


# Following


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


@dataclass
class _Followed:
    """The steps of a forward, and what they need beside the model."""

    graph: fx.Graph
    extras: dict[str, Any]


def _followed(model: nn.Module, names: tuple[str, ...]) -> _Followed:
    """The steps of a forward that does the same in both modes, but for constants."""
    opaque: set[str] = set()
    while True:
        before = set(opaque)
        training, evaluation = (
            _in_mode(model, names, opaque, is_training=mode) for mode in (True, False)
        )
        if opaque == before:
            return _merged(model, training, evaluation)


def _in_mode(
    model: nn.Module, names: tuple[str, ...], opaque: set[str], *, is_training: bool
) -> _Followed:
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
                raise _cannot_follow(
                    model,
                    "torch.fx cannot follow its forward",
                    f"{type(error).__name__}: {error}".partition("\n")[0],
                ) from error
        if not found.changed:
            return _Followed(graph, found.constants)
        if found.changed & (opaque | {""}):
            changed = ", ".join(
                repr(name or type(model).__name__) for name in sorted(found.changed)
            )
            raise _cannot_follow(model, "its forward sets attributes", changed)
        opaque |= found.changed


def _cannot_follow(model: nn.Module, why: str, got: str) -> ModelError:
    return ModelError(
        f"this model cannot be cut into stages: {why}",
        got=got,
        where=type(model).__qualname__,
        remedy="give its layers: nn.Sequential(first, second, ...); each may be any module",
    )


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


# Two modes in one


@final
class _ByMode(nn.Module):
    """A constant of a forward that depends on whether the module is in training mode."""

    def __init__(self, in_training: Any, in_evaluation: Any) -> None:
        super().__init__()
        self._values = in_evaluation, in_training

    def forward(self) -> Any:
        """The one that goes with the mode."""
        return self._values[self.training]


def _merged(model: nn.Module, training: _Followed, evaluation: _Followed) -> _Followed:
    """The steps of training; constants that evaluation has otherwise depend on the mode.

    Raises:
        ModelError: the steps differ.
    """
    graph, extras = training.graph, dict(training.extras)
    ours, theirs = list(graph.nodes), list(evaluation.graph.nodes)
    place = {node: number for number, node in enumerate(theirs)}
    different = _cannot_follow(
        model, "its forward goes another way in evaluation mode", "other steps than in training"
    )
    if [(n.op, n.target) for n in ours] != [(n.op, n.target) for n in theirs]:
        raise different
    constants = training.extras.items()
    if any(not _equal(value, evaluation.extras.get(name)) for name, value in constants):
        raise _cannot_follow(
            model, "its forward makes a constant that is another one each time", "random numbers"
        )

    def merge(node: fx.Node, one: Any, other: Any) -> Any:
        if isinstance(one, fx.Node) or isinstance(other, fx.Node):
            if not (isinstance(one, fx.Node) and isinstance(other, fx.Node)):
                raise different
            if ours[place[other]] is not one:
                raise different
            return one
        if isinstance(one, tuple | list) and isinstance(other, tuple | list):
            if len(one) == len(other):
                return type(one)(merge(node, *pair) for pair in zip(one, other, strict=True))
        elif isinstance(one, slice) and isinstance(other, slice):
            ends = ((part.start, part.stop, part.step) for part in (one, other))
            return slice(*merge(node, *ends))
        elif isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
            return {key: merge(node, one[key], other[key]) for key in one}
        elif type(one) is type(other) and one == other:
            return one
        name = f"_by_mode_{len(extras)}"
        extras[name] = _ByMode(one, other)
        with graph.inserting_before(node):
            return graph.call_module(name)

    for one, other in zip(ours, theirs, strict=True):
        one.args = merge(one, tuple(one.args), tuple(other.args))
        one.kwargs = merge(one, dict(one.kwargs), dict(other.kwargs))
    return _Followed(graph, extras)


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


# Cutting


@final
class _Unit(nn.Module):
    """Some steps of a forward, with the modules, parameters and buffers that they read.

    Args:
        steps: the module that torch.fx makes of them; itself it would print what an error passes.
    """

    def __init__(self, steps: fx.GraphModule) -> None:
        super().__init__()
        self._modules = steps._modules
        self._parameters = steps._parameters
        self._buffers = steps._buffers
        self._non_persistent_buffers_set = steps._non_persistent_buffers_set
        self._steps = type(steps).forward

    def forward(self, value: Any) -> Any:
        """The values that the units after this one need, or the model's output."""
        return self._steps(self, value)


def _cut(
    model: nn.Module, arguments: tuple[str, ...], followed: _Followed
) -> list[tuple[str, nn.Module]]:
    """The units."""
    nodes = list(followed.graph.nodes)
    output = nodes[-1]
    found = _Things(model, followed.extras)
    unit: dict[fx.Node, int] = {}
    names: list[str] = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        name = found.reads(node)
        if name is not None:
            names.append(name)
        unit[node] = max(0, len(names) - 1)
    num_units = max(1, len(names))
    unit |= {node: 0 for node in nodes if node.op == "placeholder"}
    unit[output] = num_units - 1
    last_use = {node: max((unit[user] for user in node.users), default=-1) for node in unit}
    chain = []
    for number, name in enumerate(_unique(names or ["all"])):
        graph = fx.Graph()
        copies = _entered(graph, number, arguments, nodes, unit, last_use)
        copied = partial(_copied, graph, copies)
        for node in nodes:
            if unit.get(node) == number and node.op not in ("placeholder", "output"):
                copies[node] = graph.node_copy(node, copied)
        if number == num_units - 1:
            graph.output(fx.map_arg(output.args[0], copied))
        else:
            left = [copies[node] for node in _live(number, nodes, unit, last_use)]
            graph.output(left[0] if len(left) == 1 else tuple(left))
        chain.append((name, found.module_of(graph, type(model).__name__)))
    _keep_unused(model, [unit for _, unit in chain])
    return chain


def _keep_unused(model: nn.Module, chain: Sequence[nn.Module]) -> None:
    """What the forward does not read of a model's state goes with the first unit."""
    known = {key for unit in chain for key in unit.state_dict()}
    for key in model.state_dict().keys() - known:
        owner, _, name = key.rpartition(".")
        holder = chain[0]
        for part in owner.split(".") if owner else ():
            holder._modules.setdefault(part, nn.Module())
            holder = holder.get_submodule(part)
        original = model.get_submodule(owner)
        for one, other in zip(_parts(original)[1:3], _parts(holder)[1:3], strict=True):
            if name in one:
                other[name] = one[name]


def _copied(graph: fx.Graph, copies: dict[fx.Node, fx.Node], node: fx.Node) -> fx.Node:
    """What stands for a node of the whole in a unit; of a parameter or constant a node is made."""
    if node not in copies:
        copies[node] = graph.node_copy(node)
    return copies[node]


def _live(
    number: int, nodes: Sequence[fx.Node], unit: Mapping[fx.Node, int], last: Mapping[fx.Node, int]
) -> list[fx.Node]:
    """What the units up to this one have made and those after it need."""
    return [node for node in nodes if node in unit and unit[node] <= number < last[node]]


def _entered(
    graph: fx.Graph,
    number: int,
    arguments: tuple[str, ...],
    nodes: Sequence[fx.Node],
    unit: Mapping[fx.Node, int],
    last: Mapping[fx.Node, int],
) -> dict[fx.Node, fx.Node]:
    """What a unit is given, by the node of the whole that it stands for."""
    value = graph.placeholder("value")
    if number:
        given = _live(number - 1, nodes, unit, last)
        if len(given) == 1:
            return {given[0]: value}
    else:
        given = [node for node in nodes if node.op == "placeholder"]
        value = graph.call_function(_arguments_of, (value, arguments))
    return {node: graph.call_function(getitem, (value, i)) for i, node in enumerate(given)}


def _arguments_of(value: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    """The arguments of a model's forward, from what a batch holds.

    Args:
        value: a tensor; several by position in a tuple; or by name in a dict.
        names: of the arguments, in order.

    Raises:
        ModelError: they are others.
    """
    if isinstance(value, dict):
        given = value
    elif len(names) == 1:
        return (value,)
    else:
        values = value if isinstance(value, tuple) else (value,)
        given = dict(zip(names, values, strict=False)) if len(values) == len(names) else {}
    if given.keys() != set(names):
        raise ModelError(
            "a batch's inputs are not what the model's forward is given",
            got=", ".join(value) if isinstance(value, dict) else f"{len(values)} by position",
            expected=", ".join(names),
            remedy="name those that a batch gives: arguments=(...)",
        )
    return tuple(given[name] for name in names)


def _unique(names: Sequence[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}@{seen[name]}"


@final
class _Things:
    """What the steps refer to by name: modules, parameters, buffers, constants."""

    def __init__(self, model: nn.Module, extras: Mapping[str, Any]) -> None:
        self._model = model
        self._extras = extras

    def reads(self, node: fx.Node) -> str | None:
        """The name of the module whose parameters a step reads; None if it reads none."""
        if node.op == "call_module":
            module = self._of(str(node.target))
            has_any = any(True for _ in module.parameters())
            return str(node.target) if has_any else None
        for source in node.all_input_nodes:
            if source.op == "get_attr" and isinstance(self._of(str(source.target)), nn.Parameter):
                return str(source.target)
        return None

    def module_of(self, graph: fx.Graph, class_name: str) -> nn.Module:
        """Steps as a module that has what they refer to, by the same names."""
        targets = [
            str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")
        ]
        made = fx.GraphModule({target: self._of(target) for target in targets}, graph, class_name)
        for target in targets:
            self._keep_persistence(made, target)
        return _Unit(made)

    def _of(self, target: str) -> Any:
        if target in self._extras:
            return self._extras[target]
        value: Any = self._model
        for part in target.split("."):
            value = getattr(value, part)
        return value

    def _keep_persistence(self, made: nn.Module, target: str) -> None:
        """A tensor that the model does not save is not saved here."""
        owner, _, name = target.rpartition(".")
        copy = made.get_submodule(owner)
        if name not in copy._buffers:
            return
        original = None if target in self._extras else self._model.get_submodule(owner)
        is_saved = (
            original is not None
            and name in original._buffers
            and name not in original._non_persistent_buffers_set
        )
        if not is_saved:
            copy._non_persistent_buffers_set.add(name)
