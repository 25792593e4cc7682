"""An ordinary module as a chain of units, each of which takes what the one before hands on."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from operator import getitem
from typing import Any, final

from torch import Tensor, fx, nn

from headrace.errors import ModelError
from headrace.pipeline.steps import Steps, attribute, cannot_follow, steps_of

__all__ = ["units_of"]


def units_of(
    model: nn.Module, arguments: Sequence[str] | None = None, example: Any = None
) -> list[tuple[str, nn.Module]]:
    """A module's forward, cut wherever a computation with parameters begins.

    A unit takes the values that the rest of the forward needs, relayed ones too, and returns those
    that the units after it need; the first one takes the model's inputs: a tensor, a tuple by
    position or a dict by name. The units hold the model's own parameters under their own names. In
    evaluation mode each does what the forward does there in that mode.

    Args:
        model: whose forward it is.
        arguments: those of the forward that will be given, the others having their defaults; None
            is those without a default, or the first one where all have one.
        example: inputs of at least two records, for models that torch.fx cannot follow; see
            steps.steps_of.

    Returns:
        (name, unit) in order; names are those of the modules that units begin with.

    Raises:
        ModelError: the forward cannot be followed, or its layers come in another order in
            evaluation.
    """
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks:
        raise cannot_follow(model, "it has hooks of its own", "hooks on the whole model")
    if type(model).forward is nn.Module.forward:
        raise cannot_follow(model, "it has no forward", f"a {type(model).__name__}")
    if "forward" in model.__dict__:
        raise cannot_follow(model, "its forward is not its class's", "a forward that was set")
    names = _arguments(model, arguments)
    given = None if example is None else _arguments_of(example, names)
    training, evaluation = (_cut(model, names, steps) for steps in steps_of(model, names, given))
    if list(evaluation) != [name for name in training if name in evaluation]:
        raise cannot_follow(
            model, "its layers come in another order in evaluation", ", ".join(evaluation)
        )
    chain = [(name, _Unit(model, part, evaluation.get(name))) for name, part in training.items()]
    _keep_unused(model, chain[0][1], {key for _, unit in chain for key in unit.state_dict()})
    return list(chain)


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


@dataclass(frozen=True)
class _Part:
    """The steps of a unit in one mode.

    Args:
        run: (module, value) -> what is handed on.
        things: what the steps name, by name: modules, parameters, buffers, constants.
    """

    run: Callable[[nn.Module, Any], Any]
    things: Mapping[str, Any]


@final
class _Unit(nn.Module):
    """Some steps of a forward, with the modules, parameters and buffers that they name.

    Args:
        model: whose forward it is.
        training: the steps in training mode.
        evaluation: those in evaluation mode; None hands on what came.
    """

    def __init__(self, model: nn.Module, training: _Part, evaluation: _Part | None) -> None:
        super().__init__()
        self._parts = evaluation, training
        for part in (training, evaluation):
            for target, thing in part.things.items() if part else ():
                _place(self, model, target, thing)

    def forward(self, value: Any) -> Any:
        """What the units after this one need, or the model's output."""
        part = self._parts[self.training]
        return value if part is None else part.run(self, value)


def _place(unit: nn.Module, model: nn.Module, target: str, thing: Any) -> None:
    """Gives a unit what the model has under a name, or a constant. What the model does not save of
    it the unit does not save."""
    owner, _, name = target.rpartition(".")
    holder = unit
    for step in owner.split(".") if owner else ():
        if holder._modules.get(step) is None:
            holder._modules[step] = nn.Module()
        holder = holder.get_submodule(step)
    if isinstance(thing, nn.Module):
        holder._modules[name] = thing
    elif isinstance(thing, nn.Parameter):
        holder._parameters[name] = thing
    elif isinstance(thing, Tensor):
        is_saved = target in model.state_dict()
        holder.register_buffer(name, thing, persistent=is_saved)
    else:
        holder.__dict__[name] = thing


def _keep_unused(model: nn.Module, unit: nn.Module, known: set[str]) -> None:
    """What no unit names of a model's state goes with one of them."""
    for key in model.state_dict():
        if key not in known:
            _place(unit, model, key, attribute(model, key))


def _cut(model: nn.Module, arguments: tuple[str, ...], steps: Steps) -> dict[str, _Part]:
    """The parts of a forward in one mode, by the names of what they begin with."""

    def thing(target: str) -> Any:
        return steps.extras[target] if target in steps.extras else attribute(model, target)

    nodes = list(steps.graph.nodes)
    output = nodes[-1]
    unit: dict[fx.Node, int] = {}
    names: list[str] = []
    for node in nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        name = _begins(node, thing)
        if name is not None:
            names.append(name)
        unit[node] = max(0, len(names) - 1)
    num_units = max(1, len(names))
    unit |= {node: 0 for node in nodes if node.op == "placeholder"}
    unit[output] = num_units - 1
    last_use = {node: max((unit[user] for user in node.users), default=-1) for node in unit}
    parts = {}
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
        named = (node for node in graph.nodes if node.op in ("call_module", "get_attr"))
        things = {str(node.target): thing(str(node.target)) for node in named}
        # Of the module that torch.fx makes only the code is wanted: it prints what an error passes.
        made = fx.GraphModule(things, graph, type(model).__name__)
        parts[name] = _Part(type(made).forward, things)
    return parts


def _begins(node: fx.Node, thing: Callable[[str], Any]) -> str | None:
    """The name of the module whose parameters a step reads, or of the model's own parameter; None
    if it reads none."""
    if node.op == "call_module":
        module = thing(str(node.target))
        return str(node.target) if any(True for _ in module.parameters()) else None
    for source in node.all_input_nodes:
        if source.op == "get_attr" and isinstance(thing(str(source.target)), nn.Parameter):
            owner, _, parameter = str(source.target).rpartition(".")
            return owner or parameter
    return None


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
