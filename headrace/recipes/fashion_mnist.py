"""A small convolutional net on Fashion-MNIST, from Debian's package of it."""

import gzip
import os
import shutil
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import headrace
from headrace.errors import DataError
from headrace.files import appearing, cache_folder
from headrace.recipes.models import convolutional_net

__all__ = ["data", "loss", "num_correct", "optimizer", "run", "unpacked"]

FOLDER = "FASHION_MNIST"
"""The environment variable that names a folder with the four files, gzipped or not."""
PACKAGED = "/usr/share/datasets/fashion-mnist"


def unpacked(name: str) -> Path:
    """One of the data set's files as it is read, in place; unpacked into the cache folder once.

    Raises:
        DataError: it is neither in the folder nor in the cache, or cannot be unpacked.
    """
    folder = Path(os.environ.get(FOLDER) or PACKAGED)
    path = cache_folder() / "fashion-mnist" / name
    for ready in (folder / name, path):
        if ready.exists():
            return ready
    packed = folder / f"{name}.gz"
    if not packed.exists():
        raise DataError(
            "Fashion-MNIST is not on this machine",
            got=f"no {packed}",
            remedy=f"apt-get install dataset-fashion-mnist; or fetch the four files from "
            f"github.com/zalandoresearch/fashion-mnist and set {FOLDER} to their folder",
        )
    print(f"unpacking {packed} into {path.parent}, once", flush=True)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(packed) as source, appearing(path) as new, new.open("wb") as target:
            shutil.copyfileobj(source, target)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"{packed} cannot be unpacked into {path.parent}",
            got=f"{type(error).__name__}: {error}",
        ) from error
    return path


def data(part: str = "train") -> headrace.Records:
    """Images (28, 28) and labels from two IDX files; part "train" (60,000) or "t10k" (10,000)."""
    return headrace.open(
        {
            "image": unpacked(f"{part}-images-idx3-ubyte"),
            "label": unpacked(f"{part}-labels-idx1-ubyte"),
        }
    )


def loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy."""
    return functional.cross_entropy(logits, labels.long())


def num_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many records' likeliest class is the right one."""
    return (logits.argmax(1) == labels).sum()


def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9, weight_decay=5e-4)


def run() -> headrace.Run:
    """Two stages, four micro-batches of 32 images; accuracy on the test images after each epoch."""
    return headrace.Run(
        model=convolutional_net,
        data=data,
        inputs="image",
        targets="label",
        loss=loss,
        optimizer=optimizer,
        batch_size=128,
        micro_batches=4,
        stages=2,
        epochs=3,
        evaluation=partial(data, "t10k"),
        metrics={"accuracy": num_correct},
    )
