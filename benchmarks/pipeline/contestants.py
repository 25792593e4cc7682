"""The ways to train one model on two processes that the benchmark compares, behind one Protocol."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.strategy import Strategy

__all__ = [
    "Contestant",
    "DataParallel",
    "Headrace",
    "OneProcess",
    "Stamps",
    "Torch1F1B",
    "Workload",
    "make_model",
    "stage_model",
]

Stamps = list[tuple[float, float]]  # (seconds on the clock, loss) at the end of each batch


@dataclass(frozen=True)
class Workload:
    """What everyone trains: a chain of linear layers, each with a ReLU behind it."""

    num_layers: int = 16
    width: int = 1024
    learning_rate: float = 0.01
    momentum: float = 0.9
    seed: int = 0

    def batches(self, num_rows: int, num_batches: int) -> list[tuple[Tensor, Tensor]]:
        """Inputs float32[num_rows, width] and the classes that a fixed linear map gives them."""
        generator = torch.Generator().manual_seed(self.seed + num_rows)
        teacher = torch.randn(self.width, self.width, generator=generator)
        found = []
        for _ in range(num_batches):
            inputs = torch.randn(num_rows, self.width, generator=generator)
            found.append((inputs, (inputs @ teacher).argmax(dim=1)))
        return found

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum)


def make_model(workload: Workload) -> nn.Sequential:
    """The model, with the same weights in every process and for every contestant."""
    torch.manual_seed(workload.seed)
    blocks = []
    for _ in range(workload.num_layers):
        linear = nn.Linear(workload.width, workload.width)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        blocks += [linear, nn.ReLU()]
    return nn.Sequential(*blocks)


def stage_model(workload: Workload, stage: int, num_stages: int) -> nn.Sequential:
    """An equal share of the layers."""
    model = make_model(workload)
    share = len(model) // num_stages
    return model[stage * share : (stage + 1) * share]


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    num_parts: int,
) -> float:
    """One update on a batch in so many parts, gradients exchanged after the last; its loss."""
    losses = []
    optimizer.zero_grad()
    pieces = zip(inputs.chunk(num_parts), targets.chunk(num_parts), strict=True)
    for place, (part, target) in enumerate(pieces, start=1):
        waits = place < num_parts and isinstance(model, DistributedDataParallel)
        with model.no_sync() if waits else nullcontext():
            loss = nn.functional.cross_entropy(model(part), target) / num_parts
            loss.backward()
        losses.append(loss.detach())
    optimizer.step()
    return float(sum(losses))


class Contestant(Protocol):
    """One way of training. Every process makes it and calls `run` at the same time."""

    name: str

    def run(self, num_batches: int) -> Stamps:
        """Trains on so many batches; the stamps, in the processes that know a loss."""

    def close(self) -> None:
        """Ends what it holds open."""


class OneProcess:
    """The plain model in rank 0, micro-batch after micro-batch; rank 1 waits, and sleeps."""

    def __init__(
        self, workload: Workload, mesh: Mesh, data: Sequence[tuple[Tensor, Tensor]], parts: int
    ) -> None:
        self.name = f"one process, m={parts}"
        self._is_here = mesh.stage == 0
        self._data, self._parts = data, parts
        self._model = make_model(workload)
        self._optimizer = workload.optimizer(self._model.parameters())

    def run(self, num_batches: int) -> Stamps:
        stamps: Stamps = []
        for number in range(num_batches if self._is_here else 0):
            inputs, targets = self._data[number % len(self._data)]
            loss = step(self._model, self._optimizer, inputs, targets, self._parts)
            stamps.append((time.perf_counter(), loss))
        return stamps

    def close(self) -> None:
        pass


class Headrace:
    """headrace.Pipeline with a stage a process."""

    def __init__(
        self,
        workload: Workload,
        mesh: Mesh,
        data: Sequence[tuple[Tensor, Tensor]],
        parts: int,
        strategy: Strategy,
        schedule: str,
    ) -> None:
        self.name = f"headrace {strategy.name} {schedule}, m={parts}"
        self._data = data
        self._pipeline = Pipeline(
            make_model(workload),
            nn.functional.cross_entropy,
            workload.optimizer,
            stages=mesh.num_stages,
            micro_batches=parts,
            strategy=strategy,
            schedule=schedule,
            cuts=[
                2 * workload.num_layers * stage // mesh.num_stages
                for stage in range(1, mesh.num_stages)
            ],
            # channels of its own: several pipelines are alive at once here
            mesh=Mesh(dist.HashStore(), mesh.stage, mesh.num_stages, mesh.device),
        )

    def run(self, num_batches: int) -> Stamps:
        stamps: Stamps = []

        def on_batch(number: int, loss: Tensor, num_records: int) -> None:
            stamps.append((time.perf_counter(), float(loss)))

        self._pipeline.train(self._batches(num_batches), on_batch)
        return stamps

    def _batches(self, num_batches: int) -> Iterator[Batch]:
        for number in range(num_batches):
            inputs, targets = self._data[number % len(self._data)]
            yield Batch(
                len(inputs),
                inputs if self._pipeline.is_first else None,
                targets if self._pipeline.is_last else None,
            )

    def close(self) -> None:
        self._pipeline.close()


class Torch1F1B:
    """torch.distributed.pipelining's Schedule1F1B with a stage a process."""

    def __init__(
        self, workload: Workload, mesh: Mesh, data: Sequence[tuple[Tensor, Tensor]], parts: int
    ) -> None:
        self.name = f"torch Schedule1F1B, m={parts}"
        self._data = data
        self._is_first, self._is_last = mesh.stage == 0, mesh.stage == mesh.num_stages - 1
        model = stage_model(workload, mesh.stage, mesh.num_stages)
        self._optimizer = workload.optimizer(model.parameters())
        stage = PipelineStage(model, mesh.stage, mesh.num_stages, mesh.device)
        self._schedule = Schedule1F1B(stage, parts, loss_fn=nn.functional.cross_entropy)

    def run(self, num_batches: int) -> Stamps:
        stamps: Stamps = []
        for number in range(num_batches):
            inputs, targets = self._data[number % len(self._data)]
            self._optimizer.zero_grad()
            losses: list[Tensor] = []
            given = (inputs,) if self._is_first else ()
            wanted = {"target": targets, "losses": losses} if self._is_last else {}
            self._schedule.step(*given, **wanted, return_outputs=False)
            self._optimizer.step()
            if self._is_last:
                loss = float(torch.stack(losses).detach().mean())
                stamps.append((time.perf_counter(), loss))
        return stamps

    def close(self) -> None:
        pass


class DataParallel:
    """torch's DistributedDataParallel: the whole model in each process, on half of each batch."""

    def __init__(
        self, workload: Workload, mesh: Mesh, data: Sequence[tuple[Tensor, Tensor]], parts: int
    ) -> None:
        self.name = f"torch DDP, m={parts}"
        self._data, self._parts = data, parts
        self._rank, self._num_ranks = mesh.stage, mesh.num_stages
        model = make_model(workload)
        self._optimizer = workload.optimizer(model.parameters())
        self._model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    def run(self, num_batches: int) -> Stamps:
        stamps: Stamps = []
        for number in range(num_batches):
            inputs, targets = (
                tensor.chunk(self._num_ranks)[self._rank]
                for tensor in self._data[number % len(self._data)]
            )
            loss = step(self._model, self._optimizer, inputs, targets, self._parts)
            stamps.append((time.perf_counter(), loss))
        return stamps

    def close(self) -> None:
        pass
