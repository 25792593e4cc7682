"""Writes a small recipe and its records into a folder."""

import numpy

NUM_RECORDS = 200
INPUT_BYTES = 6 * 4
TARGET_BYTES = 8

RECIPE = """\
from pathlib import Path

import headrace

HERE = Path(__file__).parent


def data():
    return headrace.open({{"x": HERE / "x.npy", "y": HERE / "y.npy"}})


def model():
    from torch import nn

    return nn.Sequential({layers})


def loss(output, target):
    from torch.nn import functional

    return functional.cross_entropy(output, target)


def optimizer(parameters):
    import torch

    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def num_correct(output, target):
    return (output.argmax(1) == target).sum()


def run():
    options = dict(batch_size=32, micro_batches=4, epochs=2)
    options.update({options})
    return headrace.Run(
        model=model, data=data, inputs="x", targets="y", loss=loss, optimizer=optimizer, **options
    )
"""

LAYERS = "nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 3)"


def write_records(folder, num_records=NUM_RECORDS):
    """x.npy, float32[N, 6], and y.npy, int64[N], the class that a random linear map gives x."""
    random = numpy.random.default_rng(0)
    x = random.standard_normal((num_records, 6), dtype=numpy.float32)
    y = (x @ random.standard_normal((6, 3))).argmax(1)
    numpy.save(folder / "x.npy", x)
    numpy.save(folder / "y.npy", y)


def write_recipe(folder, *, layers=LAYERS, options="", more="", name="recipe.py"):
    """The recipe's path; more is Python that comes last, options the arguments of Run to change."""
    path = folder / name
    path.write_text(RECIPE.format(layers=layers, options=options) + more)
    return path
