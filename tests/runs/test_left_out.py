"""A run that leaves out damaged records and those of its transforms: no label moves."""

import dataclasses
import json
import struct

import numpy
import pytest
import torch

from headrace.data.checksums import crc32c
from headrace.errors import DataError, RecipeError
from headrace.pipeline.batches import Batch
from headrace.runs.checkpoint import load_model
from headrace.runs.config import identity
from headrace.runs.feed import Feed
from headrace.runs.placement import place
from headrace.runs.prepare import prepare
from headrace.runs.recipe import load_recipe
from tests.commands import headrace
from tests.recipes import write_recipe

N, BATCH = 100, 16
BAD_INPUTS, BAD_TARGETS = {5, 40, 77}, {40, 41}
ODD = {7, 17, 27, 37, 47, 57, 67, 87, 97}  # numbers that the transform of the targets leaves out
NUM_LEFT_OUT = len(BAD_INPUTS | BAD_TARGETS | ODD | {77})

# Each record holds its own number, so a model that hands its input on has loss 0 where the targets
# are those of the same records, and only there. Nothing moves the weights: lr is 0.
RECIPE = """

def data():
    return headrace.open({"x": HERE / "x.tfrecord", "y": HERE / "y.tfrecord"})


def model():
    import torch
    from torch import nn

    layers = nn.Linear(1, 1), nn.Linear(1, 1)
    for layer in layers:
        nn.init.ones_(layer.weight), nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


def loss(output, target):
    return ((output[:, 0] - target - SHIFT) ** 2).mean()


def optimizer(parameters):
    import torch

    return torch.optim.SGD(parameters, lr=LR)


def number(record):
    import numpy

    return numpy.frombuffer(record, "<f4")


def target(record):
    value = number(record)[0]
    return None if value % 10 == 7 else value


def distance(output, target):
    return (output[:, 0] - target).abs().sum()


LR, SHIFT = 0.0, 0
"""

OPTIONS = (
    "dict(batch_size=16, micro_batches=4, epochs=2, cuts=(1,), damaged='skip', transform=number, "
    "target_transform=target, evaluation=data, metrics={'distance': distance})"
)


def write_frames(path, damaged):
    """N float32 in TFRecord frames, of which some have a byte turned over."""
    with path.open("wb") as file:
        for number in range(N):
            data = struct.pack("<f", number)
            length = struct.pack("<Q", len(data))
            whole = length + masked(length) + data + masked(data)
            if number in damaged:
                whole = whole[:13] + bytes([whole[13] ^ 0x40]) + whole[14:]
            file.write(whole)


def masked(data):
    """TFRecord's checksum of some bytes."""
    crc = crc32c(numpy.frombuffer(data, numpy.uint8))
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records of which some are damaged, and recipes that leave them out, or do not."""
    folder = tmp_path_factory.mktemp("left-out")
    write_frames(folder / "x.tfrecord", BAD_INPUTS)
    write_frames(folder / "y.tfrecord", BAD_TARGETS)
    write_recipe(folder, more=RECIPE, options=OPTIONS)
    moving = RECIPE.replace("LR, SHIFT = 0.0, 0", "LR, SHIFT = 1e-6, 1")
    write_recipe(folder, more=moving, options=OPTIONS, name="moving.py")
    raising = OPTIONS.replace("'skip'", "'raise'")
    write_recipe(folder, more=RECIPE, options=raising, name="raising.py")
    return folder


def epoch_lines(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "epoch"]


def test_two_processes_leave_out_the_same_records(folder):
    """One reads the inputs, the other the targets; each learns of the other's damage in time."""
    ended = headrace("train", "recipe.py", "--out", "whole", "--json", cwd=folder)

    assert (ended.status, ended.err) == (0, "")
    results = ended.results
    assert (results["loss"], results["distance"]) == (0.0, 0.0)
    assert results["records"] == 2 * N
    assert results["left_out"] == 2 * NUM_LEFT_OUT
    assert [line["left_out"] for line in epoch_lines(folder / "whole")] == [NUM_LEFT_OUT] * 2
    printed = ended.out.splitlines()
    assert sum(f"{NUM_LEFT_OUT} of {N} records left out" in line for line in printed) == 2
    named = [line for line in printed if line.startswith("left out: ")]
    assert len(named) == len(BAD_INPUTS) + len(BAD_TARGETS)  # once, not once an epoch
    for file, numbers in (("x.tfrecord", BAD_INPUTS), ("y.tfrecord", BAD_TARGETS)):
        said = [line for line in named if file in line]
        assert {int(line.partition(", record ")[2].split(",")[0]) for line in said} == numbers


@pytest.mark.slow
def test_processes_and_the_simulator_train_alike(folder):
    """Bit for bit, in losses and weights."""
    for name, options in (("two", ()), ("one", ("--simulate",))):
        ended = headrace("train", "moving.py", "--out", name, *options, cwd=folder)
        assert (ended.status, ended.err) == (0, "")
    batches = [
        [
            (line["batch"], line["loss"], line["records"])
            for line in map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
            if line["kind"] == "batch"
        ]
        for name in ("two", "one")
    ]
    assert batches[0] == batches[1]
    assert sum(records for _, _, records in batches[0]) == 2 * (N - NUM_LEFT_OUT)
    two, one = (load_model(folder / name) for name in ("two", "one"))
    assert two.keys() == one.keys()
    assert all(torch.equal(two[name], one[name]) for name in one)
    assert two["0.weight"].item() != 1.0


def test_without_skipping_the_run_ends_with_one_error(folder):
    """It names file, record and offset; all processes are gone."""
    ended = headrace("train", "raising.py", "--out", "raising", cwd=folder)

    assert ended.status == 1
    assert "a record is damaged" in ended.err
    assert ".tfrecord, record " in ended.err
    assert "Traceback" not in ended.err and ended.err.count("damaged") == 1


@pytest.fixture
def run(folder):
    """The run of the recipe."""
    return load_recipe(folder / "recipe.py")


def number(record):
    """Of the file, not of the processes: what a Feed is given here."""
    return numpy.frombuffer(record, "<f4")


def drawing(record, generator):
    """The number and what is drawn for it."""
    return numpy.append(number(record), numpy.float32(generator.random()))


def fed(run, records, stages, **options):
    """record -> the row of its inputs, of an epoch; and the batches."""
    with Feed(run, records, stages, **options) as feed:
        return [Batch.of(batch, 0) for batch in feed]


@pytest.mark.parametrize("workers", [0, 2])
def test_inputs_and_targets_have_masks_of_their_own(run, workers):
    """On one stage as on two; the same whatever the workers."""
    records = prepare(run).records
    for stages, here in ((1, [0]), (2, [0, 1])):
        batches = fed(
            dataclasses.replace(run, stages=stages, workers=workers, cuts=None), records, here
        )
        order = run.order_of_records.indices(numpy.arange(N), N, 0)
        for start, batch in zip(range(0, N, BATCH), batches, strict=True):
            numbers = order[start : start + BATCH].tolist()
            inputs, targets = batch.inputs_valid, batch.targets_valid
            for row, record in enumerate(numbers):
                has_inputs = inputs is None or bool(inputs[row])
                has_targets = targets is None or bool(targets[row])
                assert has_inputs == (record not in BAD_INPUTS)
                assert has_targets == (record not in BAD_TARGETS and record % 10 != 7)
                assert not has_inputs or batch.inputs[row].item() == record
                assert not has_targets or batch.targets[row].item() == record


def test_inputs_and_targets_draw_the_same_numbers(run):
    """So a crop of an image and one of its labels are the same crop; evaluation has its own."""
    run = dataclasses.replace(
        run, transform=drawing, target_transform=drawing, evaluation_transform=number
    )
    records = prepare(run).records
    for batch in fed(run, records, [0, 1]):
        both = torch.ones(batch.num_records, dtype=torch.bool)
        for mask in (batch.inputs_valid, batch.targets_valid):
            both &= True if mask is None else mask
        assert torch.equal(batch.inputs[both], batch.targets[both])
    assert {batch.inputs.shape[1] for batch in fed(run, records, [0], evaluates=True)} == {1}


def test_layers_are_measured_on_valid_records(run):
    """Transformed as in training."""
    prepared = prepare(run)
    placement = place(run, prepared, cuts=None, device=torch.device("cpu"))
    assert placement.cuts == (1,)
    nothing = dataclasses.replace(run, transform=lambda record: None)
    with pytest.raises(DataError, match="left out"):
        place(nothing, prepared, cuts=None, device=torch.device("cpu"))


def test_values_that_are_no_tensors_are_refused(run):
    """Bytes that no transform makes into numbers: the batch, and what to do."""
    raw = dataclasses.replace(run, transform=None)
    with pytest.raises(DataError, match="got list; in batch 0; let what makes the batch give tens"):
        fed(raw, prepare(run).records, [0])


def test_they_belong_to_the_identity(run):
    """Another transform, other bits; workers and evaluation change none."""
    records = prepare(run).records
    whole = identity(run, records)
    assert whole["transform"] == "recipe:number" and whole["damaged"] == "skip"
    for changes in ({"transform": drawing}, {"target_transform": None}, {"damaged": "raise"}):
        assert identity(dataclasses.replace(run, **changes), records) != whole
    same = dataclasses.replace(run, workers=3, evaluation_transform=drawing)
    assert identity(same, records) == whole


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"transform": 3}, "transform: got 3, expected a callable or None"),
        ({"target_transform": "f"}, "target_transform: got 'f', expected a callable or None"),
        ({"damaged": "ignore"}, "damaged: got 'ignore', expected 'raise' or 'skip'"),
        ({"workers": -1}, "workers: got -1, expected an integer of 0 or more"),
    ],
)
def test_values_that_cannot_be(run, changes, message):
    """What was got and what is expected."""
    with pytest.raises(RecipeError, match=message):
        dataclasses.replace(run, **changes)
