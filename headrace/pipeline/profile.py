"""What each layer costs, measured alone on one micro-batch, with no trace left in the model."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from headrace.errors import ModelError
from headrace.pipeline.graph import Layer
from headrace.pipeline.partition import LayerCost
from headrace.pipeline.values import mapped, tensors_in

__all__ = ["profile"]

Value = Any  # what passes between layers; see values


def profile(
    layers: Sequence[Layer],
    inputs: Value,
    *,
    loss: Callable[[Any, Any], Tensor] | None = None,
    targets: Any = None,
    repeats: int = 5,
) -> list[LayerCost]:
    """Measures the forward and backward pass of each layer in training mode.

    Each layer runs alone, on the outputs of the layer before it, and the chain runs repeats + 1
    times; the first run warms up and is left out, and of the others the median is taken. Backward
    times hold the gradients of the layer's weights, and of its inputs unless nothing before it is
    trained. Parameters, gradients, buffers, training flags and torch's random state are afterwards
    what they were. Set the number of threads that a stage will have before calling it.

    Args:
        layers: the chain, on the device to measure on; their weights are read only.
        inputs: what the first layer takes for one micro-batch of the usual size, on that device.
        loss: loss(output, targets), counted with the last layer; None leaves it out.
        targets: the targets of this micro-batch, for the loss.
        repeats: measured runs, at least 1.

    Returns:
        One LayerCost for each layer, in order; times in seconds of wall clock (CPU) or between
        events on the device's stream (CUDA; this path has not been run on a GPU yet).

    Raises:
        ModelError: a layer that cannot run on what the layer before it returns.
    """
    modules = [layer.module for layer in layers]
    passes: list[list[tuple[float, float]]] = [[] for _ in layers]
    saved_bytes = [0] * len(layers)
    with _left_as_found(modules, _device_of(inputs, modules)), torch.enable_grad():
        for run in range(repeats + 1):
            value = _detached(inputs, is_trained=False)
            for index, layer in enumerate(layers):
                is_last = index == len(layers) - 1
                call = _with_loss(layer.module, loss, targets) if is_last else layer.module
                meter = _SavedBytes(layer.module) if run == 0 else None
                value, *seconds = _measured(layer.name, call, value, layer.module, meter)
                if meter is None:
                    passes[index].append((seconds[0], seconds[1]))
                else:
                    saved_bytes[index] = meter.num_bytes
    return [
        LayerCost(
            name=layer.name,
            forward_s=statistics.median(forward for forward, _ in times),
            backward_s=statistics.median(backward for _, backward in times),
            parameter_bytes=sum(p.numel() * p.element_size() for p in layer.module.parameters()),
            activation_bytes=num_bytes,
        )
        for layer, times, num_bytes in zip(layers, passes, saved_bytes, strict=True)
    ]


class _SavedBytes:
    """Counts the memory that a layer's outputs and its part of the graph keep, each storage once.

    The layer's own weights, buffers and inputs are not counted: they are there in any case.
    """

    def __init__(self, module: nn.Module) -> None:
        self.num_bytes = 0
        self._seen: dict[int, Any] = {}
        for tensor in [*module.parameters(), *module.buffers()]:
            self._add(tensor)

    def given(self, value: Value) -> None:
        for tensor in tensors_in(value):
            self._add(tensor)

    def kept(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.num_bytes += storage.nbytes() if self._add(tensor) else 0
        return tensor

    def _add(self, tensor: Tensor) -> bool:
        storage = tensor.untyped_storage()
        # The storage is kept, or its address could be given to the next one.
        is_new = storage.data_ptr() not in self._seen
        self._seen[storage.data_ptr()] = storage
        return is_new


def _measured(
    name: str,
    call: Callable[[Value], Value],
    inputs: Value,
    module: nn.Module,
    meter: _SavedBytes | None,
) -> tuple[Value, float, float]:
    """One forward and backward pass: the outputs, cut off from the graph, and the two times."""
    device = _device_of(inputs, [module])
    given = _copied(inputs)  # a layer may work in place
    try:
        if meter is None:
            outputs, forward_s = _timed(device, lambda: call(given))
        else:
            meter.given(given)
            with saved_tensors_hooks(meter.kept, lambda tensor: tensor):
                outputs, forward_s = _timed(device, lambda: call(given))
            for tensor in tensors_in(outputs):
                meter.kept(tensor)
        backward_s = _backward(device, inputs, outputs, module)
    except Exception as error:
        raise ModelError(
            "a layer failed while it was measured",
            got=f"{type(error).__name__}: {error}",
            where=f"layer {name!r} ({type(module).__qualname__})",
            remedy="run the model on one micro-batch of these inputs to see it fail by itself",
        ) from error
    is_trained = any(tensor.requires_grad for tensor in tensors_in(outputs))
    return _detached(outputs, is_trained), forward_s, backward_s


def _backward(device: torch.device, inputs: Value, outputs: Value, module: nn.Module) -> float:
    """The time of the gradients of all that is trained, none of which is stored in a `.grad`."""
    ends = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
    sources = [t for t in (*tensors_in(inputs), *module.parameters()) if t.requires_grad]
    if not ends or not sources:
        return 0.0
    slopes = [torch.ones_like(tensor) for tensor in ends]
    _, seconds = _timed(
        device, lambda: torch.autograd.grad(ends, sources, slopes, allow_unused=True)
    )
    return seconds


def _timed(device: torch.device, call: Callable[[], Value]) -> tuple[Value, float]:
    if device.type == "cuda":
        start = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        stop = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        with torch.cuda.device(device):
            start.record()
            value = call()
            stop.record()
            stop.synchronize()
        return value, start.elapsed_time(stop) / 1e3
    began_s = time.perf_counter()
    value = call()
    return value, time.perf_counter() - began_s


@contextmanager
def _left_as_found(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """Training mode and any random numbers inside; flags, buffers and random state kept."""
    parts = [part for module in modules for part in module.modules()]
    flags = [part.training for part in parts]
    buffers = [
        (part, name, buffer, None if buffer is None else buffer.clone())
        for part in parts
        for name, buffer in part._buffers.items()
    ]
    generators = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=generators):
        try:
            for module in modules:
                module.train()
            yield
        finally:
            for part, is_training in zip(parts, flags, strict=True):
                part.training = is_training
            with torch.no_grad():
                for part, name, buffer, content in buffers:
                    part._buffers[name] = buffer
                    if buffer is not None and content is not None:
                        buffer.copy_(content)


def _with_loss(
    module: nn.Module, loss: Callable[[Any, Any], Tensor] | None, targets: Any
) -> Callable[[Value], Value]:
    if loss is None:
        return module
    return lambda value: loss(module(value), targets)


def _device_of(value: Value, modules: Sequence[nn.Module]) -> torch.device:
    for tensor in (*tensors_in(value), *(p for module in modules for p in module.parameters())):
        return tensor.device
    return torch.device("cpu")


def _detached(value: Value, is_trained: bool) -> Value:
    def detach(tensor: Tensor) -> Tensor:
        is_real = tensor.is_floating_point() or tensor.is_complex()
        return tensor.detach().requires_grad_(is_trained and is_real)

    return mapped(value, detach)


def _copied(value: Value) -> Value:
    # A clone is no leaf of the graph, so that a layer may change it.
    return mapped(value, lambda tensor: tensor.clone())
