"""One contestant's training on one layout: accuracy and seconds at each look, epoch by epoch."""

import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

import numpy as np
import torch
from loader.cold import resident_bytes
from sources import BATCH, Source
from stored import Rows
from torch import Tensor, nn

__all__ = [
    "EVALUATIONS",
    "LEARNING_RATE",
    "MOMENTUM",
    "Epoch",
    "Storage",
    "Training",
    "read_alone",
    "tensors_of",
]

LEARNING_RATE = 0.05  # at the start; falls in a straight line to 0 at the end
MOMENTUM = 0.9
EVALUATIONS = 4  # an epoch
_MEAN, _DEVIATION = 0.2860 * 255, 0.3530 * 255  # of the training images' pixels


def network() -> nn.Sequential:
    """Three layers: an epoch of it is short, which leaves little time to hide the reading in."""
    return nn.Sequential(
        nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def tensors_of(rows: Rows) -> tuple[Tensor, Tensor]:
    """Images as floats of mean 0 and deviation 1, and labels."""
    whole = torch.from_numpy(rows)
    return (whole[:, 1:].float() - _MEAN) / _DEVIATION, whole[:, 0].long()


@dataclass
class Epoch:
    """What one epoch took. Evaluation is not in any of these times.

    Args:
        seconds: from its start to its end, reading and computing.
        waited_s: of them, those in which the computing waited for a batch.
        evaluated_s: when the evaluations were, in seconds from its start.
        accuracies: of the test images, at each evaluation.
        resident_bytes: of the file in the page cache at its end; None where that is not told.
    """

    seconds: float = 0.0
    waited_s: float = 0.0
    evaluated_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    resident_bytes: int | None = None


@dataclass(frozen=True)
class Storage:
    """What reading an epoch takes when nothing is computed meanwhile.

    Args:
        seconds: from the first request to the last batch.
        processor_s: of all threads of this process.
        is_right: whether the records were those of the order, byte by byte.
    """

    seconds: float
    processor_s: float
    is_right: bool


@final
class Training:
    """A network that learns from one source.

    Args:
        source: of the batches.
        test: images and labels to try it on, from ``tensors_of``.
        seed: of the first weights.
        num_epochs: after which the learning rate is 0.
    """

    def __init__(
        self, source: Source, test: tuple[Tensor, Tensor], seed: int, num_epochs: int
    ) -> None:
        torch.manual_seed(seed)
        self._network = network()
        self._source = source
        self._test = test
        self._optimizer = torch.optim.SGD(
            self._network.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM
        )
        self._num_epochs = num_epochs
        self.epochs: list[Epoch] = []

    def epoch(self) -> None:
        """The next epoch, cold."""
        result, number = Epoch(), len(self.epochs)
        forget(self._source.path)
        num_batches = self._source.num_records // BATCH
        batches = self._source.epoch(number)
        began_s = time.perf_counter()  # moved on by what evaluation takes
        for index in range(num_batches):
            asked_s = time.perf_counter()
            rows = next(batches)
            result.waited_s += time.perf_counter() - asked_s
            self._step(rows, (number + index / num_batches) / self._num_epochs)
            if (index + 1) % (num_batches // EVALUATIONS) == 0:
                paused_s = time.perf_counter()
                result.evaluated_s.append(paused_s - began_s)
                result.accuracies.append(self._accuracy())
                began_s += time.perf_counter() - paused_s
        result.seconds = result.evaluated_s[-1]
        assert next(batches, None) is None, "an epoch has more batches than it should"
        result.resident_bytes = resident_bytes([self._source.path])
        self.epochs.append(result)

    def _step(self, rows: Rows, progress: float) -> None:
        """One update; progress is the share of the whole training that is over."""
        self._optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 - progress)
        images, labels = tensors_of(rows)
        self._optimizer.zero_grad()
        nn.functional.cross_entropy(self._network(images), labels).backward()
        self._optimizer.step()

    @torch.no_grad()
    def _accuracy(self) -> float:
        """Of the test images, in per cent."""
        images, labels = self._test
        found = self._network(images).argmax(1)
        return 100 * float((found == labels).float().mean())


def read_alone(source: Source, laid_out: Rows) -> Storage:
    """Reads the source's first epoch, cold, and compares it with what the layout has."""
    forget(source.path)
    batches = source.epoch(0)
    began_s, before_s = time.perf_counter(), time.process_time()
    read = list(batches)
    seconds, processor_s = time.perf_counter() - began_s, time.process_time() - before_s
    is_right = np.array_equal(np.concatenate(read), laid_out[source.members(0)])
    return Storage(seconds, processor_s, is_right)


def forget(path: Path) -> None:
    """Nothing of the file stays in the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
