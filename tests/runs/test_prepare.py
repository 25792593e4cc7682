"""What is wrong with a run's records and model is found before anything starts, all at once."""

import dataclasses

import numpy
import pytest
import torch
from torch import nn

import headrace
from headrace.errors import DataError, ModelError, RecipeError
from headrace.runs.prepare import prepare
from headrace.runs.recipe import load_recipe
from tests.recipes import write_recipe, write_records


@pytest.fixture
def run(tmp_path):
    """A run that can be prepared."""
    write_records(tmp_path)
    return load_recipe(write_recipe(tmp_path))


def fault_of(run, kind, **changes):
    """What `prepare` says of a run with these changes."""
    with pytest.raises(kind) as caught:
        prepare(dataclasses.replace(run, **changes))
    assert type(caught.value) is kind
    return str(caught.value)


def test_what_is_made(run):
    """Records, the model with the weights of the seed, its layers; torch's own state is kept."""
    torch.manual_seed(5)
    before = torch.get_rng_state()

    prepared = prepare(dataclasses.replace(run, seed=3, evaluation=run.data, metrics={"m": max}))

    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(3)
    expected = nn.Linear(6, 16).weight
    assert torch.equal(prepared.model[0].weight, expected)
    assert len(prepared.records) == len(prepared.evaluation) == 200
    assert [layer.name for layer in prepared.layers] == ["0", "1", "2", "3", "4"]


def test_fields_that_the_records_lack(run):
    """Which, what there is instead, and whose records."""
    assert fault_of(run, DataError, inputs="image") == (
        "the inputs name a field that the records lack: got 'image', expected 'x' or 'y'; "
        "in data of the run"
    )
    message = fault_of(run, RecipeError, targets="z", evaluation=run.data, metrics={"m": max})
    assert message.count("the targets name a field that the records lack: got 'z'") == 2
    assert "in data of the run" in message and "in evaluation of the run" in message


def test_something_else_than_records(run):
    """The type that came."""
    assert fault_of(run, DataError, data=lambda: [1, 2]) == (
        "data of the run gave something else: got list, expected headrace.open(...)"
    )


def test_no_records(run, tmp_path):
    """An empty data set, and one without a full batch where only such count."""
    for name, shape in (("x", (0, 6)), ("y", (0,))):
        numpy.save(tmp_path / f"{name}.npy", numpy.zeros(shape))
    assert fault_of(run, DataError) == "no records: got 0, expected at least 1; in data of the run"
    write_records(tmp_path, num_records=31)
    assert fault_of(run, DataError, drop_last=True) == (
        "no full batch, and drop_last leaves out one that is not full: got 31 records, expected at "
        "least batch_size = 32; in data of the run; lower batch_size, or drop_last=False"
    )
    assert len(prepare(run).records) == 31


def test_callables_that_raise(run):
    """What they raised, and the file and line."""
    assert fault_of(run, ModelError, model=lambda: nn.Linear(2, "three")).startswith(
        "model of the run failed: got TypeError: "
    )
    message = fault_of(run, DataError, data=lambda: {}["train"])
    assert message.startswith("data of the run failed: got KeyError: 'train'; in ")
    assert "test_prepare.py, line " in message


class Branching(nn.Module):
    """Its forward depends on the values, which neither torch.fx nor torch.export can follow."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


def test_models_that_cannot_be_cut(run):
    """No chain, too few layers, and one module in two stages of the given cuts."""
    message = fault_of(run, ModelError, model=Branching)
    assert message.startswith("this model cannot be cut into stages: ")
    assert message.endswith(
        "; in Branching; give its layers: nn.Sequential(first, second, ...); each may be any module"
    )
    assert "got 2 stages for 1 layers" in fault_of(run, ModelError, model=lambda: nn.Linear(6, 3))
    assert "got 2 stages for 1 layers" in fault_of(
        run, ModelError, model=lambda: nn.Sequential(nn.Linear(6, 3))
    )
    layer = nn.Linear(6, 6)
    message = fault_of(run, ModelError, model=lambda: nn.Sequential(layer, layer), cuts=(1,))
    assert "'0.weight' of stage 0 is '1.weight' of stage 1" in message


def test_all_faults_at_once(run):
    """One error for the records of both roles and for the model."""
    message = fault_of(
        run,
        RecipeError,
        data=lambda: headrace.open("no-such-file.npy"),
        evaluation=lambda: 3,
        metrics={"m": max},
        model=lambda: 3,
    )

    first, *faults = message.splitlines()
    assert first == "the run has 3 problems:"
    assert [fault[:20] for fault in faults] == [
        "  - no such file: go",
        "  - evaluation of th",
        "  - model of the run",
    ]


def test_an_ordinary_module_is_tried_on_records(run):
    """Of which one must be there; a single one is doubled, for example inputs have two or more."""
    ordinary = dataclasses.replace(run, model=Ordinary, batch_size=1, micro_batches=1)
    assert [layer.name for layer in prepare(ordinary).layers] == ["first", "second"]
    message = fault_of(ordinary, DataError, transform=lambda x: None)
    assert message.startswith("the transform left out all records so far")


class Ordinary(nn.Module):
    """torch.fx cannot follow it, torch.export can."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.second = nn.Linear(16, 3)

    def forward(self, x):
        hidden = self.first(x).relu()
        if hidden.shape[0] * hidden.shape[1] < 10**9 and int(hidden.ndim) == 2:
            hidden = hidden + torch.zeros(list(hidden.shape))
        return self.second(hidden)
