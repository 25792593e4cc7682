"""Where the model is cut follows from the measured times of its layers."""

import dataclasses
import time

import pytest
import torch
from torch import nn

from headrace.errors import ModelError
from headrace.runs.placement import Part, Placement, place
from headrace.runs.prepare import prepare
from headrace.runs.recipe import load_recipe
from tests.recipes import write_recipe, write_records

CPU = torch.device("cpu")


class Slow(nn.Module):
    """Takes a while for each micro-batch, and wants eight records."""

    def forward(self, x):
        assert x.shape == (8, 6)
        assert torch.get_num_threads() == 1
        time.sleep(0.01)
        return x


@pytest.fixture
def run(tmp_path):
    """Batches of 32 in 4 micro-batches, through layers of which the last two are slow."""
    write_records(tmp_path)

    def model():
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Slow(), Slow())

    return dataclasses.replace(load_recipe(write_recipe(tmp_path)), model=model)


def test_the_slow_layers_are_parted(run):
    """Measured with a micro-batch and a stage's threads; the model is as it was."""
    prepared = prepare(run)
    before = {name: value.clone() for name, value in prepared.model.state_dict().items()}
    threads = torch.get_num_threads()

    placement = place(run, prepared, cuts=None, device=CPU)

    assert placement.cuts == (3,)
    first, second = placement.parts
    assert (first.first, first.last, first.num_layers, first.num_parameters) == ("0", "2", 3, 42)
    assert (second.first, second.last, second.num_layers, second.num_parameters) == ("3", "3", 1, 0)
    assert first.share + second.share == pytest.approx(1)
    assert second.share == pytest.approx(0.5, abs=0.1)
    assert torch.get_num_threads() == threads
    assert all(torch.equal(prepared.model.state_dict()[name], before[name]) for name in before)


def test_given_cuts_are_not_measured(run):
    """Nor is anything where there is one stage."""
    prepared = prepare(run)

    given = place(run, prepared, cuts=(1,), device=CPU)

    assert (given.cuts, [part.share for part in given.parts]) == ((1,), [None, None])
    one = place(dataclasses.replace(run, stages=1), prepared, cuts=None, device=CPU)
    assert (one.cuts, len(one.parts)) == ((), 1)


def test_a_layer_that_fails(run):
    """Its name, and what it said."""
    run = dataclasses.replace(run, model=lambda: nn.Sequential(nn.Linear(6, 6), nn.Linear(5, 3)))

    with pytest.raises(ModelError, match=r"RuntimeError: mat1 .*; in layer '1' \(Linear\)"):
        place(run, prepare(run), cuts=None, device=CPU)


def test_as_json_and_as_a_table():
    """There and back; the table for people."""
    placement = Placement(
        (2,), (Part("embed", "1", 2, 1234567, 0.625), Part("head", "head", 1, 10, None))
    )

    assert Placement.from_json(placement.to_json()) == placement
    assert str(placement).splitlines() == [
        "stage  layers         parameters  share of time",
        "    0  2: embed to 1   1,234,567            62%",
        "    1  1: head                10          given",
    ]
