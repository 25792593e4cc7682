"""A byte-level GPT on the Python standard library's own source files, found on this machine."""

import sysconfig
from pathlib import Path

import torch
from torch import nn

import headrace
from headrace.recipes.models import byte_gpt, next_byte_loss

__all__ = ["LENGTH", "NUM_WINDOWS", "data", "model", "optimizer", "run", "sources"]

LENGTH = 96
NUM_WINDOWS = 7500


def sources() -> list[Path]:
    """The standard library's modules, without its tests and without what was installed into it."""
    library = Path(sysconfig.get_path("stdlib"))
    left_out = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3"}
    return [
        path
        for path in sorted(library.rglob("*.py"))
        if not left_out & set(path.relative_to(library).parts) and path.stat().st_size > LENGTH
    ]


def data() -> headrace.Records:
    """Windows spread evenly over the files: about NUM_WINDOWS of LENGTH bytes, in place."""
    paths = sources()
    total_bytes = sum(path.stat().st_size for path in paths)
    stride = max(LENGTH, total_bytes // NUM_WINDOWS)
    return headrace.open(
        [str(path) for path in paths], format="windows", length=LENGTH, stride=stride, ahead=1
    )


def model() -> nn.Sequential:
    """Four blocks of width 96: half a million parameters."""
    return byte_gpt(width=96, num_blocks=4, num_heads=4, max_length=LENGTH)


def optimizer(parameters: object) -> torch.optim.Optimizer:
    """AdamW, at a rate that suits so small a model."""
    return torch.optim.AdamW(parameters, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)  # type: ignore[arg-type]


def run() -> headrace.Run:
    """Two stages, four micro-batches of 4 windows."""
    return headrace.Run(
        model=model,
        data=data,
        inputs="window",
        targets="next",
        loss=next_byte_loss,
        optimizer=optimizer,
        batch_size=16,
        micro_batches=4,
        stages=2,
    )
