"""Owns the weight tensors of one stage: which a pass reads, which stay alive, how they step."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from headrace.errors import StrategyError
from headrace.pipeline import lookahead
from headrace.pipeline.probe import Origins
from headrace.pipeline.spares import Spares
from headrace.pipeline.strategy import (
    Assumption,
    Delayed,
    Key,
    Latest,
    Strategy,
    outlives,
    serves_a_batch,
    weights_key,
)

__all__ = ["Versions", "Weights"]


@dataclass(frozen=True)
class Weights:
    """One set of weight tensors, leaves of the graphs that are built with it.

    Args:
        key: equal keys, equal weights.
        tensors: one for each trained parameter of the stage, in order.
    """

    key: Key
    tensors: tuple[Tensor, ...]


@final
class Versions:
    """The weights of one stage.

    The parameters are the masters: the optimizer steps them, gradients are added up for them.
    A forward pass runs with their slots in the modules pointing at the tensors that it reads.

    - Backward reads ``Pinned()``: the graph of a forward pass holds the very tensors that it read.
      The newest weights are read through an alias of the masters' storage; the masters move to new
      storage at the first update that such a forward pass outlives, and only then.
    - Backward reads ``Latest(...)``: the graph holds names of weights instead of weights, and the
      backward pass looks them up in what is newest, or ahead, when it runs.

    Args:
        modules: the layers of the stage.
        make_optimizer: from trained parameters to a torch optimizer; not called if there are none.
        strategy: what the passes read.
        is_stale: whether an update can come between a forward pass and its backward pass.
        looks_ahead: whether any pass of this stage looks ahead.
        num_kept: versions before the newest that a forward pass may still ask for.
        make_scheduler: from the optimizer to a learning rate scheduler, stepped after each update.

    Raises:
        StrategyError: the optimizer's steps call the model, or it steps parameters of others.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        make_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer],
        strategy: Strategy,
        *,
        is_stale: bool,
        looks_ahead: bool,
        num_kept: int = 0,
        make_scheduler: Callable[[Optimizer], LRScheduler] | None = None,
    ) -> None:
        found = {
            p: f"{type(module).__name__}.{name}"
            for module in modules
            for name, p in module.named_parameters()
            if p.requires_grad
        }
        self.optimizer = make_optimizer(tuple(found)) if found else None
        self._scheduler = (
            make_scheduler(self.optimizer) if make_scheduler and self.optimizer else None
        )
        self.parameters = _stepped_by(self.optimizer, found)
        """The trained parameters, in the order of the optimizer's groups."""
        self.applied = 0
        """Updates since the last drain."""
        self._names = [found[p] for p in self.parameters]
        self._slots = list(_slots(modules, {id(p): k for k, p in enumerate(self.parameters)}))
        self._forward = strategy.forward
        self._backward = strategy.backward
        self._is_late = isinstance(strategy.backward, Latest) and (is_stale or looks_ahead)
        self._num_kept = num_kept
        self._is_probed = False
        assuming = strategy.forward.assuming if isinstance(strategy.forward, Latest) else None
        if not (looks_ahead and self.optimizer):
            assuming = None
        self._forecasts = assuming is Assumption.GIVEN_GRADIENT
        self._records_updates = (
            assuming is Assumption.CONSTANT_VELOCITY
            and self.optimizer is not None
            and not lookahead.keeps_last_update(self.optimizer)
        )
        self._keeps_no_gradient = self.optimizer is None or lookahead.can_forecast(self.optimizer)
        self._live = self._alias()
        self._readable: dict[Key, tuple[Tensor, ...]] = {}  # beside the newest
        self._spares = Spares(self.parameters)
        self._looked_up: Sequence[Tensor] = ()
        self._pins: Counter[Key] = Counter()
        self._gradients: list[Tensor | None] = [None] * len(self.parameters)
        self._sums: tuple[Tensor, ...] | None = None  # what the gradients are added up in
        self._share = 0.0
        self._previous_sums: tuple[Tensor, ...] | None = None
        self._previous: Sequence[Tensor | None] | None = None
        self._last_updates: Sequence[Tensor | None] = [None] * len(self.parameters)

    def _alias(self) -> tuple[Tensor, ...]:
        """Leaves that share the masters' storage but not their version counters."""
        return tuple(p.data.requires_grad_() for p in self.parameters)

    @property
    def num_live(self) -> int:
        """Sets of weight tensors held now, the newest included."""
        pinned = [key for key, count in self._pins.items() if count]
        return len({*self._readable, *pinned, ("version", self.applied)})

    # Reading

    @contextmanager
    def forward(
        self, batch: int, steps: int, micro_batch: int = 0, inputs: Sequence[Tensor] = ()
    ) -> Iterator[Weights]:
        """The modules read the weights that the strategy says, ``steps`` updates ahead.

        Raises:
            StrategyError: the backward pass is to look weights up, and the graph has copies of
                some. Found in the first pass on any inputs.
        """
        weights = self._read(self._forward, batch, micro_batch, steps)
        if self._is_late:
            with self._moved(weights.tensors), self._named_weights(weights.tensors, inputs):
                yield Weights(weights.key, self._live)
            return
        self._pins[weights.key] += 1
        with self._installed(weights.tensors):
            yield weights

    @contextmanager
    def backward(self, batch: int, steps: int, weights: Weights) -> Iterator[None]:
        """The graph of a forward pass reads the weights that the strategy says; it is then over."""
        if self._is_late:
            assert isinstance(self._backward, Latest)
            self._looked_up = self._read(self._backward, batch, 0, steps).tensors
            yield
            self._looked_up = ()
            return
        yield
        self._pins[weights.key] -= 1
        self._let_go(weights.key, weights.tensors)

    def _let_go(self, key: Key, tensors: Sequence[Tensor]) -> None:
        """Uses the memory of a set of weights again if no pass can read the set any more."""
        is_newest = key == ("version", self.applied)
        if not (is_newest or key in self._readable or self._pins[key]):
            self._spares.give(tensors)

    def _read(self, read: Latest | Delayed, batch: int, micro_batch: int, steps: int) -> Weights:
        key = weights_key(read, batch, micro_batch, self.applied, steps)
        if key == ("version", self.applied) or not self.parameters:
            return Weights(key, self._live)
        if key not in self._readable:
            assert isinstance(read, Latest), "a delayed read finds what was kept"
            self._forget(lambda other: other[0] != "version" and not serves_a_batch(other))
            if read.assuming is Assumption.GIVEN_GRADIENT:
                ahead = self._forecast(steps, self._spares.take())
            else:
                ahead = self._repeated(steps, self._spares.take())
            self._readable[key] = tuple(tensor.requires_grad_() for tensor in ahead)
        return Weights(key, self._readable[key])

    def _forecast(self, steps: int, out: Sequence[Tensor]) -> list[Tensor]:
        """The optimizer's own steps: the first on the gradients already in, the missing share made
        up by the mean gradient of the batch before; each further step on that mean gradient.

        Of the first batch after a drain there is none before: the gradients in stand for all.
        """
        assert self.optimizer is not None
        first: list[lookahead.Gradient]
        further: Sequence[lookahead.Gradient]
        if self._previous is None:
            scale = 1 / self._share if self._share else 0.0
            further = first = [None if g is None else [(scale, g)] for g in self._gradients]
        else:
            further, missing = self._previous, 1 - self._share
            first = [
                [(scale, g) for scale, g in ((1.0, gradient), (missing, previous)) if g is not None]
                or None
                for gradient, previous in zip(self._gradients, self._previous, strict=True)
            ]
        return lookahead.predicted(self.optimizer, [first, *[further] * (steps - 1)], out)

    def _repeated(self, steps: int, out: Sequence[Tensor]) -> list[Tensor]:
        """The last applied update, as often as there are steps."""
        if self._records_updates:
            return lookahead.constant_velocity(self.parameters, self._last_updates, steps, out)
        assert self.optimizer is not None
        return lookahead.repeated(self.optimizer, steps, out)

    @contextmanager
    def _installed(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """The slots of the modules point at the tensors."""
        for holder, key, place in self._slots:
            holder[key] = tensors[place]
        try:
            yield
        finally:
            for holder, key, place in self._slots:
                holder[key] = self.parameters[place]

    @contextmanager
    def _moved(self, tensors: Sequence[Tensor]) -> Iterator[None]:
        """The live leaves hold the tensors' values: what a graph without weights is built from."""
        if tensors is not self._live:
            for leaf, tensor in zip(self._live, tensors, strict=True):
                leaf.data = tensor.data
        try:
            with self._installed(self._live):
                yield
        finally:
            for leaf, master in zip(self._live, self.parameters, strict=True):
                leaf.data = master.data

    @contextmanager
    def _named_weights(self, tensors: Sequence[Tensor], inputs: Sequence[Tensor]) -> Iterator[None]:
        """Saves a weight, or a view of one, as its place, size, stride and offset."""
        places = {t.untyped_storage().data_ptr(): place for place, t in enumerate(tensors)}
        origins = None if self._is_probed or not inputs else Origins(tensors, inputs)

        def pack(tensor: Tensor) -> Any:
            place = places.get(tensor.untyped_storage().data_ptr())
            if place is not None:
                return place, tensor.size(), tensor.stride(), tensor.storage_offset()
            copied = origins.weights_alone(tensor) if origins else []
            if copied:
                names = " and ".join(self._names[place] for place in copied)
                raise StrategyError(
                    "the backward pass is to read the newest weights, but of some the graph keeps "
                    "what was made of them",
                    got=f"a tensor that {names} alone gives, such as a cast or a parametrization",
                    remedy="take a strategy whose backward pass reads what its forward pass read: "
                    "FORECAST, PREDICT, STASH or DOUBLE_BUFFER",
                )
            return tensor

        def unpack(saved: Any) -> Tensor:
            if isinstance(saved, Tensor):
                return saved
            place, size, stride, offset = saved
            weight: Tensor = self._looked_up[place].detach().as_strided(size, stride, offset)
            return weight

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack), origins or nullcontext():
            yield
        self._is_probed = self._is_probed or origins is not None

    # Stepping

    @torch.no_grad()
    def add(self, gradients: Sequence[Tensor | None], weight: float) -> None:
        """Adds up the gradients of one micro-batch, which weighs so much in its batch.

        The first sum is a new tensor: a gradient may be the very tensor of another gradient.
        """
        self._share += weight
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            total = self._gradients[place]
            if total is None:
                self._gradients[place] = gradient
            elif self._sums is not None and total is self._sums[place]:
                total.add_(gradient)
            else:
                if self._sums is None:
                    self._sums = self._spares.take()
                self._gradients[place] = torch.add(total, gradient, out=self._sums[place])

    @torch.no_grad()
    def update(self, batch: int) -> None:
        """The optimizer steps the masters with the gradients added up since the last update.

        A batch without any, since it has no valid record, is an update that changes nothing; look
        ahead then goes on with what the one before left.
        """
        before: Sequence[Tensor] | None = None
        newest = "version", self.applied
        if self._pins[newest] > 0 or self._num_kept:
            before = [p.data for p in self.parameters]  # graphs in flight keep this storage
            if self._num_kept:
                self._readable[newest] = self._live
            for parameter, spare in zip(self.parameters, self._spares.take(), strict=True):
                parameter.data = spare.copy_(parameter.data)
            self._live = self._alias()
        elif self._records_updates:
            before = [p.data.clone() for p in self.parameters]
        is_step = any(gradient is not None for gradient in self._gradients)
        for parameter, gradient in zip(self.parameters, self._gradients, strict=True):
            parameter.grad = gradient
        if self.optimizer:
            self.optimizer.step()
        if self._scheduler:
            self._scheduler.step()
        for parameter in self.parameters:
            parameter.grad = None
        if self._records_updates and before is not None and is_step:
            self._last_updates = [p.data - b for p, b in zip(self.parameters, before, strict=True)]
        if not self._keeps_no_gradient:
            self._sums = None
        if self._forecasts and is_step:
            self._previous = self._gradients
            self._sums, self._previous_sums = self._previous_sums, self._sums
        if self._sums:
            self._spares.give(self._sums)
        self._gradients, self._sums = [None] * len(self.parameters), None
        self._share = 0.0
        self.applied += 1
        self._forget(lambda key: not self._is_wanted(key, batch))

    def _is_wanted(self, key: Key, batch: int) -> bool:
        """Whether a forward pass after the update of a batch may read the weights."""
        if key[0] == "version":
            return bool(key[1] >= self.applied - self._num_kept)
        return outlives(key, batch)

    def _forget(self, is_unwanted: Callable[[Key], bool]) -> None:
        """Lets sets of weights go that no forward pass will read again."""
        for key in [key for key in self._readable if is_unwanted(key)]:
            self._let_go(key, self._readable.pop(key))

    def drain(self) -> None:
        """Forgets all but weights and optimizer state: a segment is over."""
        self.applied = 0
        for tensors in self._readable.values():
            self._spares.give(tensors)
        self._readable.clear()
        self._pins.clear()
        if self._previous_sums is not None:
            self._spares.give(self._previous_sums)
        self._previous = self._previous_sums = None
        self._last_updates = [None] * len(self.parameters)


def _stepped_by(
    optimizer: Optimizer | None, found: Mapping[nn.Parameter, str]
) -> tuple[nn.Parameter, ...]:
    """The parameters that the optimizer steps, in its order; others are as good as frozen."""
    if optimizer is None:
        return ()
    lookahead.require_steps(optimizer)
    stepped = tuple(p for group in optimizer.param_groups for p in group["params"])
    strange = [list(p.shape) for p in stepped if p not in found]
    if strange:
        raise StrategyError(
            "the optimizer steps parameters that are not of its stage",
            got=f"parameters of shape {strange}",
            expected="those that it was called with, all or some, in groups or not",
        )
    return stepped


def _slots(modules: Sequence[nn.Module], places: dict[int, int]) -> Iterator[tuple[Any, Any, int]]:
    """(holder, key, place of the parameter) wherever a module keeps a trained parameter."""
    for module in modules:
        for part in module.modules():
            for key, parameter in part._parameters.items():
                if id(parameter) in places:
                    yield part._parameters, key, places[id(parameter)]
            if isinstance(part, nn.RNNBase):  # it keeps a second list of its weights
                for number, weight in enumerate(part._flat_weights):
                    if id(weight) in places:
                        yield part._flat_weights, number, places[id(weight)]
