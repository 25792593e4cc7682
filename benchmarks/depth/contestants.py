"""Pipelines whose stages sleep instead of computing, headrace's and torch's."""

import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.strategy import FORECAST

__all__ = ["Contestant", "Headrace", "Sleep", "Torch"]

WIDTH = 256  # float32 values of a record that cross each cut


class _Slept(torch.autograd.Function):
    """Hands a tensor on after so many seconds; its gradient after twice as many."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(2 * ctx.seconds)
        return gradients[0], gradients[0].sum(), None


class Sleep(nn.Module):
    """A layer of one parameter that takes its time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        """x, scaled."""
        return _Slept.apply(x, self.scale, self.seconds)  # type: ignore[no-any-return, no-untyped-call]


def data(num_rows: int) -> tuple[Tensor, Tensor]:
    """A batch: inputs and targets float32[num_rows, WIDTH]."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(num_rows, WIDTH, generator=generator)
    return inputs, inputs / 2


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)


class Contestant(Protocol):
    """One way of training. Every process makes it and calls `run` at the same time."""

    name: str

    def run(self, num_batches: int) -> list[float]:
        """Trains on so many batches; where the last stage is, the clock at the end of each."""

    def close(self) -> None:
        """Ends what it holds open."""


class Headrace:
    """headrace.Pipeline with FORECAST."""

    def __init__(self, mesh: Mesh, seconds: float, parts: int, schedule: str) -> None:
        self.name = f"headrace {schedule}"
        self._inputs, self._targets = data(parts)
        self._pipeline = Pipeline(
            nn.Sequential(*(Sleep(seconds) for _ in range(mesh.num_stages))),
            nn.functional.mse_loss,
            optimizer,
            stages=mesh.num_stages,
            micro_batches=parts,
            strategy=FORECAST,
            schedule=schedule,
            # channels of its own: several pipelines are alive at once here
            mesh=Mesh(dist.HashStore(), mesh.stage, mesh.num_stages, mesh.device),
        )

    def run(self, num_batches: int) -> list[float]:
        stamps: list[float] = []
        self._pipeline.train(
            self._batches(num_batches), lambda *facts: stamps.append(time.perf_counter())
        )
        return stamps

    def _batches(self, num_batches: int) -> Iterator[Batch]:
        for _ in range(num_batches):
            yield Batch(
                len(self._inputs),
                self._inputs if self._pipeline.is_first else None,
                self._targets if self._pipeline.is_last else None,
            )

    def close(self) -> None:
        self._pipeline.close()


class Torch:
    """A schedule of torch.distributed.pipelining; interleaved, two layers of half the time each."""

    def __init__(self, mesh: Mesh, seconds: float, parts: int, kind: str) -> None:
        self.name = f"torch {kind}"
        self._inputs, self._targets = data(parts)
        self._is_first, self._is_last = mesh.stage == 0, mesh.stage == mesh.num_stages - 1
        num_layers = 2 if kind == "interleaved 1F1B" else 1
        own = nn.ModuleList(Sleep(seconds / num_layers) for _ in range(num_layers))
        self._optimizer = optimizer(own.parameters())
        places = [mesh.stage + turn * mesh.num_stages for turn in range(num_layers)]
        stages = [
            PipelineStage(layer, place, num_layers * mesh.num_stages, mesh.device)
            for layer, place in zip(own, places, strict=True)
        ]
        loss = nn.functional.mse_loss
        self._schedule: Any
        if kind == "interleaved 1F1B":
            self._schedule = ScheduleInterleaved1F1B(stages, parts, loss_fn=loss)
        else:
            make = {"1F1B": Schedule1F1B, "GPipe": ScheduleGPipe}[kind]
            self._schedule = make(stages[0], parts, loss_fn=loss)

    def run(self, num_batches: int) -> list[float]:
        stamps = []
        for _ in range(num_batches):
            self._optimizer.zero_grad()
            given = (self._inputs,) if self._is_first else ()
            wanted = {"target": self._targets, "losses": []} if self._is_last else {}
            self._schedule.step(*given, **wanted, return_outputs=False)
            self._optimizer.step()
            if self._is_last:
                stamps.append(time.perf_counter())
        return stamps

    def close(self) -> None:
        pass
