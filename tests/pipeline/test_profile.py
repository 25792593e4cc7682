"""Measured costs: right by construction where they can be, and no trace left behind."""

import copy
import random
import time

import pytest
import torch
from torch import nn

from headrace.errors import ModelError
from headrace.pipeline.graph import Layer, layers
from headrace.pipeline.profile import profile


class Repeated(nn.Module):
    """The same multiplication over and over."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.eye(64))

    def forward(self, value):
        for _ in range(self.times):
            value = value @ self.weight
        return value


class Slow(nn.Module):
    """Takes a known time at least, in either pass."""

    def forward(self, value):
        time.sleep(0.01)
        output = value * 1
        output.register_hook(lambda gradient: time.sleep(0.02))
        return output


def test_work_is_seen():
    """Sixty-four times the work costs more in both passes, wherever it stands."""
    chain = layers(nn.Sequential(Repeated(1), Repeated(64), Repeated(1)))
    light, heavy, other = profile(chain, torch.randn(64, 64))
    for cost in (light, other):
        assert heavy.forward_s > cost.forward_s > 0
        assert heavy.backward_s > cost.backward_s > 0
    assert [cost.name for cost in (light, heavy, other)] == ["0", "1", "2"]


def test_times_are_at_least_what_a_layer_sleeps():
    """Seconds, and each pass on its own."""
    costs = profile(layers(nn.Sequential(nn.Linear(3, 3), Slow())), torch.randn(2, 3), repeats=2)
    assert costs[1].forward_s >= 0.01
    assert costs[1].backward_s >= 0.02
    assert costs[1].total_s == costs[1].forward_s + costs[1].backward_s


def test_each_layer_runs_once_a_repeat_and_once_to_warm_up():
    """Alone, on what the layer before it returned."""
    seen = []
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for name, module in model.named_children():
        module.register_forward_hook(lambda module, given, output, name=name: seen.append(name))
    profile(layers(model), torch.randn(2, 3), repeats=3)
    assert seen == ["0", "1"] * 4


def test_bytes_are_exact():
    """float32: 4 bytes a number; outputs and what autograd saves, each memory once."""
    model = nn.Sequential(
        nn.Linear(8, 16),  # its output
        nn.Unflatten(1, (4, 4)),  # a view: nothing new
        nn.Flatten(),
        nn.ReLU(),  # its output, which it also saves
        nn.ReLU(inplace=True),  # nothing new
        nn.Linear(16, 2, bias=False),
        nn.Softmax(1),
    )
    costs = profile(layers(model), torch.randn(5, 8), repeats=1)
    assert [cost.parameter_bytes for cost in costs] == [4 * (8 * 16 + 16), 0, 0, 0, 0, 4 * 32, 0]
    assert [cost.activation_bytes for cost in costs] == [320, 0, 0, 320, 0, 40, 40]


def test_backward_is_only_what_training_needs():
    """Nothing before the first trained layer has a backward pass; a frozen one after it has."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh())
    costs = profile(layers(model), torch.randn(3, 2, 2))
    assert [cost.backward_s > 0 for cost in costs] == [False, True, True, True, True]
    model[1].requires_grad_(False)
    costs = profile(layers(model), torch.randn(3, 2, 2))
    assert [cost.backward_s > 0 for cost in costs] == [False, False, False, True, True]
    model.requires_grad_(False)
    model[1].requires_grad_(True)
    costs = profile(layers(model), torch.randn(3, 2, 2))
    assert [cost.backward_s > 0 for cost in costs] == [False, True, True, True, True]


def test_the_loss_belongs_to_the_last_layer():
    """It is called with the outputs and the targets, and its backward pass is timed."""
    seen = []

    def loss(output, targets):
        seen.append((output.shape, targets))
        time.sleep(0.01)
        return output.square().mean()

    chain = layers(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    costs = profile(chain, torch.randn(4, 3), loss=loss, targets="targets", repeats=2)
    assert seen == [((4, 2), "targets")] * 3
    assert costs[1].forward_s >= 0.01
    assert costs[1].activation_bytes == 4 * (4 * 2 + 1)


class Pair(nn.Module):
    """Makes a tuple with a tensor of whole numbers in it."""

    def forward(self, value):
        return value * 2, [torch.arange(3), "text"]


class Join(nn.Module):
    """Takes such a tuple."""

    def forward(self, pair):
        value, (numbers, text) = pair
        assert text == "text"
        return value + numbers


def test_tuples_between_layers():
    """As nn.Sequential hands them on; integers have no gradient."""
    chain = layers(nn.Sequential(nn.Linear(3, 3), Pair(), Join(), nn.Linear(3, 1)))
    costs = profile(chain, torch.randn(4, 3), repeats=1)
    assert costs[1].activation_bytes == 4 * 4 * 3 + 8 * 3
    assert all(cost.backward_s > 0 for cost in costs)


class Restless(nn.Module):
    """Leaves as many traces as a layer can."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("replaced", torch.zeros(6))
        self.register_buffer("nothing", None)

    def forward(self, value):
        self.calls += 1
        self.replaced = self.replaced + torch.rand(6)
        return value + self.replaced


def test_nothing_is_left_behind():
    """Weights, gradients, buffers (replaced ones too), flags, random state, inputs: all kept."""
    model = nn.Sequential(
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.BatchNorm1d(6),
        nn.Dropout(0.5),
        Restless(),
        nn.ReLU(inplace=True),
    )
    model[1].weight.grad = torch.full((6, 6), 3.0)
    model[2].eval()
    inputs = torch.randn(4, 6)
    before = copy.deepcopy(model)
    buffers = dict(model.named_buffers())
    given = inputs.clone()
    torch_state, python_state = torch.get_rng_state(), random.getstate()

    profile(layers(model), inputs)

    assert torch.equal(torch.get_rng_state(), torch_state)
    assert random.getstate() == python_state
    assert torch.equal(inputs, given) and not inputs.requires_grad and inputs.grad is None
    torch.testing.assert_close(model.state_dict(), before.state_dict(), rtol=0, atol=0)
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    flags = [part.training for part in model.modules()]
    assert flags == [part.training for part in before.modules()]
    assert torch.equal(model[1].weight.grad, torch.full((6, 6), 3.0))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "1.weight")
    assert all(parameter.is_leaf for parameter in model.parameters())


def test_nothing_is_left_behind_by_a_layer_that_fails():
    """Even then; and the message names it."""
    model = nn.Sequential(nn.BatchNorm1d(6).eval(), nn.Linear(6, 6), nn.Linear(5, 5))
    before = copy.deepcopy(model.state_dict())
    message = r"failed while it was measured: got RuntimeError: .*shapes.*in layer '2' \(Linear\)"
    with pytest.raises(ModelError, match=message):
        profile(layers(model), torch.randn(4, 6))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not model[0].training and model[1].training


def test_gradients_may_be_switched_off_around_it():
    """Backward passes are measured all the same."""
    with torch.no_grad():
        (cost,) = profile([Layer("0", nn.Linear(3, 3))], torch.randn(2, 3), repeats=1)
    assert cost.backward_s > 0
