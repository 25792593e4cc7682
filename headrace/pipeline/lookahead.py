"""Where an optimizer is heading, as pure functions: neither it nor its parameters are touched.

Three assumptions about the steps to come, each under its own name:

* given gradients (`predicted`, `displacement`): the steps that the optimizer itself would take on
  gradients that the caller gives, from its present state and hyper-parameters;
* zero gradients: the same functions with zeros given, so that momentum decays;
* `constant_velocity`: every step repeats the last applied update (SpecTrain, arXiv 1809.02839).

Closed forms exist for `torch.optim`'s SGD, Adam and AdamW; of any other optimizer a copy is
stepped, which costs a copy of its state each time. Learning rates are taken as they stand now: what
a learning rate scheduler will do between two steps is not known here.
"""

import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from headrace.errors import StrategyError

__all__ = [
    "can_forecast",
    "constant_velocity",
    "displacement",
    "keeps_last_update",
    "last_update",
    "predicted",
    "repeated",
    "require_steps",
]


Blend = Sequence[tuple[float, Tensor]]
"""A sum of coefficient x tensor, which is not carried out before it is needed."""

Gradient = Tensor | Blend | None


def can_forecast(optimizer: Optimizer) -> bool:
    """Whether the steps of this optimizer have a closed form here, which keeps no gradient.

    True for exactly SGD, Adam and AdamW of `torch.optim`: a subclass may step differently.
    """
    return type(optimizer) in (SGD, Adam, AdamW)


def require_steps(optimizer: Optimizer) -> None:
    """Raises StrategyError, naming the class, for an optimizer that must call the model to step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        found = type(optimizer)
        raise StrategyError(
            "an optimizer whose step calls the model again cannot step one stage of it",
            got=f"{found.__module__}.{found.__qualname__}",
            expected="an optimizer whose step() needs no closure",
        )


@torch.no_grad()
def predicted(
    optimizer: Optimizer,
    gradients: Sequence[Sequence[Gradient]],
    out: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """The parameters as they will be after the optimizer has stepped on the given gradients.

    Args:
        optimizer: any, before or after its first step.
        gradients: one sequence for each future step, with one gradient for each parameter in the
            order of the optimizer's groups; None leaves the parameter alone in that step, as torch
            does. Giving one tensor object in several places costs SGD no more than in one.
        out: tensors to write the result to, like the parameters and apart from them; fresh memory
            can cost more than the arithmetic.

    Returns:
        `out` or new tensors, one a parameter, of its shape, dtype, device and strides. They agree
        with the real steps to a few units in the last place of the parameter.

    Raises:
        StrategyError: a step has too few gradients.
    """
    _require_one_each(optimizer, gradients)
    if not can_forecast(optimizer):
        return _stepped(optimizer, gradients, out)
    rule = _after_sgd if type(optimizer) is SGD else _after_adam
    futures = []
    for index, (group, parameter) in enumerate(_parameters(optimizer)):
        future = torch.empty_like(parameter, requires_grad=False) if out is None else out[index]
        given = [step[index] for step in gradients]
        known = [_blend(gradient) for gradient in given if gradient is not None]
        if known:
            rule(future, parameter.detach(), known, optimizer.state.get(parameter, {}), group)
        else:
            future.copy_(parameter)
        futures.append(future)
    return futures


@torch.no_grad()
def displacement(
    optimizer: Optimizer, gradients: Sequence[Sequence[Gradient]]
) -> list[Tensor | None]:
    """The whole move of each parameter over the steps that `predicted` takes.

    It is the difference of two tensors of weights, rounded as the real steps round: a move below
    the last place of a parameter is no move.

    Returns:
        New tensors, one for each parameter; None for a parameter that is given no gradient.
    """
    futures = predicted(optimizer, gradients)
    moves: list[Tensor | None] = []
    for index, (_, parameter) in enumerate(_parameters(optimizer)):
        is_moved = any(step[index] is not None for step in gradients)
        moves.append(futures[index].sub_(parameter) if is_moved else None)
    return moves


@torch.no_grad()
def constant_velocity(
    parameters: Sequence[Tensor],
    last_updates: Sequence[Tensor | None],
    steps: int,
    out: Sequence[Tensor] | None = None,
) -> list[Tensor]:
    """The parameters after `steps` repetitions of the last applied update: W + steps x update.

    Args:
        parameters: the weights W now.
        last_updates: what the last step added to each; None where nothing was added yet.
        steps: how many updates to look ahead, at least 0.
        out: tensors to write the result to, as for `predicted`.

    Returns:
        `out` or new tensors, of the shapes, dtypes and devices of the parameters.

    Source: SpecTrain, arXiv 1809.02839, where the update is -learning rate x smoothed gradient.
    """
    moves = [None if update is None else (update, 1.0) for update in last_updates]
    return _moved(parameters, moves, steps, out)


@torch.no_grad()
def repeated(optimizer: Optimizer, steps: int, out: Sequence[Tensor] | None = None) -> list[Tensor]:
    """`constant_velocity` of an optimizer that `keeps_last_update`, read off its state.

    Args:
        optimizer: before or after its first step; before, nothing moves.
        steps: how many updates to look ahead, at least 0.
        out: tensors to write the result to, as for `predicted`.
    """
    pairs = list(_parameters(optimizer))
    moves = [_last_move(optimizer, parameter, group) for group, parameter in pairs]
    return _moved([parameter for _, parameter in pairs], moves, steps, out)


def _moved(
    parameters: Sequence[Tensor],
    moves: "Sequence[_Move | None]",
    steps: int,
    out: Sequence[Tensor] | None,
) -> list[Tensor]:
    """The parameters moved so many times."""
    futures = []
    for index, (parameter, move) in enumerate(zip(parameters, moves, strict=True)):
        future = torch.empty_like(parameter, requires_grad=False) if out is None else out[index]
        if move is None or steps == 0:
            future.copy_(parameter)
        else:
            torch.add(parameter, move[0], alpha=steps * move[1], out=future)
        futures.append(future)
    return futures


def keeps_last_update(optimizer: Optimizer) -> bool:
    """Whether the optimizer's state tells its last update, so that nobody need record it."""
    return can_forecast(optimizer) and all(map(_keeps_update, optimizer.param_groups))


@torch.no_grad()
def last_update(optimizer: Optimizer) -> list[Tensor | None] | None:
    """What the last step added to each parameter, read off the optimizer's state; None if it is
    not written there and must be recorded by whoever steps.

    It is there for Adam, AdamW and SGD with momentum, but not for SGD without momentum (which keeps
    nothing) or with Nesterov's (whose update also needs the gradient), and for no other optimizer.
    The learning rate must still be that of the step, and each parameter must have had a gradient.

    Returns:
        New tensors, one for each parameter in the order of the optimizer's groups; None for a
        parameter that has never been stepped.
    """
    if not keeps_last_update(optimizer):
        return None
    moves = [_last_move(optimizer, parameter, group) for group, parameter in _parameters(optimizer)]
    return [None if move is None else move[0] * move[1] for move in moves]


_Move = tuple[Tensor, float]
"""A direction and how often to go it."""


def _last_move(optimizer: Optimizer, parameter: Tensor, group: Mapping[str, Any]) -> _Move | None:
    """What the last step added to a parameter; None before the first."""
    state = optimizer.state.get(parameter)
    rule = _last_sgd if type(optimizer) is SGD else _last_adam
    return rule(parameter.detach(), state, group) if state else None


def _parameters(optimizer: Optimizer) -> Iterator[tuple[Mapping[str, Any], Tensor]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield group, parameter


def _require_one_each(optimizer: Optimizer, gradients: Sequence[Sequence[Gradient]]) -> None:
    num_parameters = sum(len(group["params"]) for group in optimizer.param_groups)
    for number, step in enumerate(gradients):
        if len(step) != num_parameters:
            raise StrategyError(
                "a forecast needs one gradient for each parameter",
                got=len(step),
                expected=num_parameters,
                where=f"step {number} of {len(gradients)}",
                remedy="give None for a parameter that has no gradient",
            )


def _blend(gradient: Tensor | Blend) -> Blend:
    return [(1.0, gradient)] if isinstance(gradient, Tensor) else gradient


def _sum(blend: Blend) -> Tensor:
    (scale, tensor), *others = blend
    total = tensor if scale == 1.0 else tensor * scale
    for scale, tensor in others:
        total = torch.add(total, tensor, alpha=scale)
    return total


def _stepped(
    optimizer: Optimizer, gradients: Sequence[Sequence[Gradient]], out: Sequence[Tensor] | None
) -> list[Tensor]:
    """The parameters after a copy of the optimizer has stepped on the gradients.

    The copy has the state and the hyper-parameters, and no hooks; whole, since a step may use all
    its groups at once.
    """
    parameters = [parameter for _, parameter in _parameters(optimizer)]
    futures = [torch.empty_like(p, requires_grad=False) for p in parameters] if out is None else out
    twins = [
        nn.Parameter(future.copy_(parameter))
        for future, parameter in zip(futures, parameters, strict=True)
    ]
    copied = _copy_of(optimizer, dict(zip(parameters, twins, strict=True)))
    for step in gradients:
        for twin, gradient in zip(twins, step, strict=True):
            twin.grad = None if gradient is None else _sum(_blend(gradient)).clone()
        copied.step()
    return list(futures)


def _copy_of(optimizer: Optimizer, twins: Mapping[Tensor, Tensor]) -> Optimizer:
    """An optimizer in the same state, for other parameters."""
    copied = copy.copy(optimizer)
    # a learning rate scheduler replaces the step of the very object by one that counts
    copied.__dict__.pop("step", None)
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        copied.__dict__[name] = OrderedDict()
    copied.param_groups = [
        copy.deepcopy({key: value for key, value in group.items() if key != "params"})
        | {"params": [twins[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    copied.state = defaultdict(dict)
    for parameter, twin in twins.items():
        if parameter in optimizer.state:
            copied.state[twin] = copy.deepcopy(optimizer.state[parameter])
    return copied


def _after_sgd(
    result: Tensor,
    weights: Tensor,
    gradients: Sequence[Blend],
    state: Mapping[str, Any],
    group: Mapping[str, Any],
) -> None:
    """SGD is linear: its future weights are a combination of the weights, the momentum buffer and
    the gradients. So only the coefficients are stepped, and each tensor is read once.
    """
    learning_rate, momentum = float(group["lr"]), float(group["momentum"])
    keep, decay = 1.0 - float(group["dampening"]), float(group["weight_decay"])
    sign = -1.0 if group["maximize"] else 1.0
    buffer = state.get("momentum_buffer") if momentum else None
    terms = [weights] if buffer is None else [weights, buffer]
    places = {}  # a gradient that is given in several places is one term
    for blend in gradients:
        for _, gradient in blend:
            if id(gradient) not in places:
                places[id(gradient)] = len(terms)
                terms.append(gradient)
    future = [1.0] + [0.0] * (len(terms) - 1)
    velocity = None if buffer is None else [float(place == 1) for place in range(len(terms))]
    for blend in gradients:
        slope = [decay * weight for weight in future]
        for scale, gradient in blend:
            slope[places[id(gradient)]] += sign * scale
        move = slope
        if momentum:
            # The first buffer is the gradient itself, not dampened: torch's rule.
            velocity = (
                [momentum * v + keep * s for v, s in zip(velocity, slope, strict=True)]
                if velocity
                else slope
            )
            move = velocity
            if group["nesterov"]:
                move = [s + momentum * v for v, s in zip(velocity, slope, strict=True)]
        future = [f - learning_rate * m for f, m in zip(future, move, strict=True)]
    _combine(result, future, terms)


def _combine(result: Tensor, coefficients: Sequence[float], terms: Sequence[Tensor]) -> None:
    """The sum of coefficient x term, in as few passes over memory as torch has operations for."""
    if coefficients[0] == 1.0:
        torch.add(terms[0], terms[1], alpha=coefficients[1], out=result)
    else:
        torch.mul(terms[0], coefficients[0], out=result).add_(terms[1], alpha=coefficients[1])
    for coefficient, term in zip(coefficients[2:], terms[2:], strict=True):
        result.add_(term, alpha=coefficient)


def _after_adam(
    result: Tensor,
    weights: Tensor,
    gradients: Sequence[Blend],
    state: Mapping[str, Any],
    group: Mapping[str, Any],
) -> None:
    result, weights = _real(result), _real(weights)
    beta1, beta2 = (float(beta) for beta in group["betas"])
    learning_rate, decay = float(group["lr"]), float(group["weight_decay"])
    step = float(state["step"]) if state else 0.0
    kept = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if group["amsgrad"] else ())
    mean, square, *largest = (
        _real(state[name]) if state else torch.zeros_like(weights) for name in kept
    )
    # The weights move on in the result, and the last squares become their own roots: memory that
    # is new to the process can cost more than the arithmetic.
    for number, gradient in enumerate(map(_sum, gradients), start=1):
        step += 1
        gradient = _real(gradient)
        gradient = -gradient if group["maximize"] else gradient
        if decay and group["decoupled_weight_decay"]:
            weights = torch.mul(weights, 1.0 - learning_rate * decay, out=result)
        elif decay:
            gradient = torch.add(gradient, weights, alpha=decay)
        mean = torch.lerp(mean, gradient, 1.0 - beta1)
        square = torch.mul(square, beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        largest = [torch.maximum(before, square) for before in largest]
        is_last = number == len(gradients)
        scale, divisor = _adam_step(largest[0] if largest else square, step, group, is_last)
        weights = torch.addcdiv(weights, mean, divisor, value=-scale, out=result)


def _adam_step(
    square: Tensor, step: float, group: Mapping[str, Any], in_place: bool = False
) -> tuple[float, Tensor]:
    """The scale and the divisor of Adam's step number `step`: it is -scale x mean / divisor.

    The correction c of the squares' bias is moved out of the root, sqrt(square / c) + eps being
    (sqrt(square) + eps sqrt(c)) / sqrt(c), which saves a pass over memory.
    """
    beta1, beta2 = (float(beta) for beta in group["betas"])
    root = (1.0 - beta2**step) ** 0.5
    scale = float(group["lr"]) * root / (1.0 - beta1**step)
    divisor = torch.sqrt(square, out=square if in_place else None)
    return scale, divisor.add_(float(group["eps"]) * root)


def _real(tensor: Tensor) -> Tensor:
    """A complex number is two real ones to Adam."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _keeps_update(group: Mapping[str, Any]) -> bool:
    """Whether a group's state and weights still tell its last update."""
    if "momentum" in group:
        return bool(group["momentum"]) and not group["nesterov"]
    # A decay of everything at once forgets the weights that it was taken from.
    return float(group["lr"]) * float(group["weight_decay"]) != 1.0


def _last_sgd(weights: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> _Move | None:
    buffer = state.get("momentum_buffer")
    return None if buffer is None else (buffer, -float(group["lr"]))


def _last_adam(weights: Tensor, state: Mapping[str, Any], group: Mapping[str, Any]) -> _Move:
    square = state["max_exp_avg_sq"] if group["amsgrad"] else state["exp_avg_sq"]
    scale, divisor = _adam_step(_real(square), float(state["step"]), group)
    update = torch.div(_real(state["exp_avg"]), divisor).mul_(-scale)
    shrink = float(group["lr"]) * float(group["weight_decay"])
    if shrink and group["decoupled_weight_decay"]:
        # The weights now are W(1 - shrink) + update; the move is asked for, and W is not kept.
        update = update.add_(_real(weights), alpha=-shrink).div_(1.0 - shrink)
    return (torch.view_as_complex(update) if weights.is_complex() else update), 1.0
