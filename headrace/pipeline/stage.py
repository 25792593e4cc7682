"""Forward and backward of one stage; no communication."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from headrace.errors import HeadraceError, ModelError, StageError
from headrace.pipeline.graph import Layer
from headrace.pipeline.masks import Expected, rows_of
from headrace.pipeline.values import TENSOR, mapped, put_together, taken_apart

__all__ = ["Crossing", "Stage", "crossing_of", "layer_seed"]


class Crossing(NamedTuple):
    """What crosses a cut, in either direction.

    Args:
        tensors: always a tuple; a gradient that is not needed is None.
        form: how the value that the layers hand on is made of them; see values.taken_apart.
        has_gradient: of each tensor, whether a gradient is wanted for it.
        weight: what the micro-batch weighs in its batch's loss; known on the way back.
        valid: bool[records of the batch] on the CPU, whose inputs are valid, on the way forward;
            None is all. The tensors have rows for valid ones only; without any there are none.
    """

    tensors: tuple[Tensor | None, ...]
    form: str = TENSOR
    has_gradient: tuple[bool, ...] = ()
    weight: float = 0.0
    valid: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the micro-batch has no valid inputs: no layer runs."""
        return self.valid is not None and not self.tensors


@dataclass
class _InFlight:
    """A forward pass whose backward pass is to come."""

    entered: tuple[Tensor | None, ...]
    left: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]


def layer_seed(seed: int, name: str, micro_batch: int) -> int:
    """The seed of the random numbers that a layer draws for a micro-batch (dropout), 63 bits."""
    key = f"{seed}\0{name}\0{micro_batch}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") >> 1


class _Enter(torch.autograd.Function):
    """Hands a received tensor on as no leaf and no view, so that a layer may change it in place."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.data

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0]


@final
class Stage:
    """The layers of one stage on one device.

    Args:
        layers: in order.
        device: where they compute; the modules are moved there.
        seed: of the random numbers that layers draw.
        loss: on the last stage, (output, target) -> mean loss of the micro-batch, a scalar.
        autocast: the dtype that layers and loss compute in where torch.autocast says so; entered
            anew for each pass, since it remembers the weights that it has cast.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        device: torch.device,
        seed: int = 0,
        loss: Callable[[Any, Any], Tensor] | None = None,
        autocast: torch.dtype | None = None,
    ) -> None:
        self.device = device
        self.layers = list(layers)
        for layer in layers:
            layer.module.to(device)
        self._seed = seed
        self._loss = loss
        self._autocast = autocast
        self._generator = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.default_generator
        )
        self._in_flight: dict[int, _InFlight] = {}

    @property
    def modules(self) -> list[nn.Module]:
        """The layers without their names."""
        return [layer.module for layer in self.layers]

    def train(self, mode: bool) -> None:
        """Puts all layers into training or evaluation mode."""
        for module in self.modules:
            module.train(mode)

    def forward(
        self, micro_batch: int, crossing: Crossing, weights: tuple[Tensor, ...]
    ) -> Crossing:
        """Runs the layers on what came over the cut; keeps the graph until ``backward``.

        Args:
            micro_batch: its number.
            crossing: what came.
            weights: the leaves that stand for the trained parameters in this pass.

        Raises:
            StageError: a layer raised; ModelError: a layer at a cut gives no tensors.
        """
        if crossing.is_empty:
            self._in_flight[micro_batch] = _InFlight((), (), weights)
            return crossing
        entered, value = _enter(crossing, self.device)
        output = self._run(micro_batch, value)
        left, form = self._taken_apart(output)
        self._in_flight[micro_batch] = _InFlight(entered, left, weights)
        return Crossing(
            tuple(tensor.detach() for tensor in left),
            form,
            tuple(tensor.requires_grad for tensor in left),
            valid=crossing.valid,
        )

    def forward_to_loss(
        self,
        micro_batch: int,
        crossing: Crossing,
        weights: tuple[Tensor, ...],
        expected: Expected | None,
    ) -> Tensor | None:
        """The last stage's forward pass: the micro-batch's loss, times its weight in the batch.

        None, and no layer runs, where no record is expected to count.
        """
        assert self._loss is not None
        if expected is None:
            nothing = (None,) * len(crossing.tensors)
            self._in_flight[micro_batch] = _InFlight(nothing, (), weights)
            return None
        entered, value = _enter(crossing, self.device)
        output = rows_of(self._run(micro_batch, value), expected.rows)
        targets = _on(expected.targets, self.device)
        with _named("the loss"), self._cast():
            loss = self._loss(output, targets)
            if not isinstance(loss, Tensor) or loss.ndim:
                shape = list(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise ModelError("the loss", got=shape, expected="a tensor of no dimension")
        weighted = loss * expected.weight
        self._in_flight[micro_batch] = _InFlight(entered, (weighted,), weights)
        return weighted.detach()

    def backward(
        self, micro_batch: int, gradients: tuple[Tensor | None, ...] | None
    ) -> tuple[tuple[Tensor | None, ...], tuple[Tensor | None, ...]]:
        """The gradients of what came over the cut and of the trained parameters.

        Args:
            micro_batch: its number.
            gradients: of each tensor that left; None starts from the loss.
        """
        flight = self._in_flight.pop(micro_batch)
        wanted = [
            *(t for t in flight.entered if t is not None and t.requires_grad),
            *flight.weights,
        ]
        found: Iterator[Tensor | None]
        left, given = _reached(flight.left, gradients)
        if left and wanted:
            with _named("the backward pass"):
                found = iter(torch.autograd.grad(left, wanted, given, allow_unused=True))
        else:
            found = iter([None] * len(wanted))
        return (
            tuple(
                next(found) if t is not None and t.requires_grad else None for t in flight.entered
            ),
            tuple(found),
        )

    @torch.no_grad()
    def predict(self, micro_batch: int, crossing: Crossing) -> Crossing:
        """The layers' output alone, for evaluation: no graph, nothing kept."""
        if crossing.is_empty:
            return crossing
        tensors, form = self._taken_apart(self._run(micro_batch, self._value(crossing)))
        return Crossing(tensors, form, (False,) * len(tensors), valid=crossing.valid)

    @torch.no_grad()
    def predict_last(
        self, micro_batch: int, crossing: Crossing, expected: Expected
    ) -> tuple[Any, Any]:
        """The last stage's output and the targets, of the records that count."""
        output = rows_of(self._run(micro_batch, self._value(crossing)), expected.rows)
        return output, _on(expected.targets, self.device)

    def _run(self, micro_batch: int, value: Any) -> Any:
        state = self._generator.get_state()
        try:
            with self._cast():
                for name, module in ((layer.name, layer.module) for layer in self.layers):
                    self._generator.manual_seed(layer_seed(self._seed, name, micro_batch))
                    with _named(f"layer {name} ({type(module).__name__})"):
                        value = module(value)
        finally:
            self._generator.set_state(state)
        return value

    def _cast(self) -> AbstractContextManager[Any]:
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self._autocast)

    def _value(self, crossing: Crossing) -> Any:
        """What the first layer is given, without a graph."""
        return put_together(_all(crossing.tensors), crossing.form, self.device)

    def _taken_apart(self, output: Any) -> tuple[tuple[Tensor, ...], str]:
        try:
            return taken_apart(output)
        except ModelError as error:
            layer = self.layers[-1]
            raise ModelError(
                f"{error}", where=f"the output of layer {layer.name}", remedy="cut at another layer"
            ) from error


def crossing_of(value: Any, device: torch.device, valid: Tensor | None = None) -> Crossing:
    """The inputs of the first stage as if they had come over a cut; None where none is valid."""
    if value is None:
        return Crossing((), valid=valid)
    tensors, form = taken_apart(_on(value, device))
    return Crossing(tensors, form, (False,) * len(tensors), valid=valid)


def _on(value: Any, device: torch.device) -> Any:
    return mapped(value, lambda tensor: tensor.to(device, non_blocking=True))


def _all(tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
    """What came forward, where no tensor is missing."""
    return [tensor for tensor in tensors if tensor is not None]


def _enter(crossing: Crossing, device: torch.device) -> tuple[tuple[Tensor | None, ...], Any]:
    """Leaves for the tensors that want a gradient, and the value that the layers are given."""
    leaves: list[Tensor | None] = []
    values: list[Tensor] = []
    for tensor, has_gradient in zip(_all(crossing.tensors), crossing.has_gradient, strict=True):
        if has_gradient:
            leaf = tensor.detach().requires_grad_()
            leaves.append(leaf)
            values.append(_Enter.apply(leaf))  # type: ignore[no-untyped-call]
        else:
            leaves.append(None)
            values.append(tensor)
    return tuple(leaves), put_together(values, crossing.form, device)


def _reached(
    left: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...] | None
) -> tuple[list[Tensor], list[Tensor | None]]:
    """The outputs that a gradient reached, and those gradients."""
    if gradients is None:
        reached = [tensor for tensor in left if tensor.requires_grad]
        return reached, [None] * len(reached)
    pairs = [
        (tensor, gradient)
        for tensor, gradient in zip(left, gradients, strict=True)
        if gradient is not None and tensor.requires_grad
    ]
    return [tensor for tensor, _ in pairs], [gradient for _, gradient in pairs]


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Errors of the user's code say where they were raised."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        raise StageError(f"{what} raised {type(error).__name__}: {error}") from error
