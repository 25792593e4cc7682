"""Models as chains of layers, and weights that are tied across a cut."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from headrace.errors import ModelError
from headrace.pipeline.graph import Layer, layers, require_untied


class Named(nn.Sequential):
    """A subclass that only has a name."""


class Residual(nn.Sequential):
    """A Sequential that is more than its children in order."""

    def forward(self, value):
        return value + super().forward(value)


def names_of(model):
    """The names of the layers."""
    return [layer.name for layer in layers(model)]


def test_nested_chains_are_flattened_under_their_own_names():
    """Every name finds its module in the model, and the chain computes what the model does."""
    block = OrderedDict([("wide", nn.Linear(4, 8)), ("act", nn.Tanh())])
    model = nn.Sequential(
        OrderedDict(
            [("first", nn.Linear(3, 4)), ("middle", Named(block)), ("last", nn.Sequential())]
        )
    )
    model.append(nn.Sequential(nn.Sequential(nn.Linear(8, 2))))
    found = layers(model)
    assert [layer.name for layer in found] == ["first", "middle.wide", "middle.act", "3.0.0"]
    assert all(model.get_submodule(layer.name) is layer.module for layer in found)
    value = expected = torch.randn(5, 3)
    for layer in found:
        value = layer.module(value)
    assert torch.equal(value, model(expected))


def test_a_chain_with_its_own_forward_is_one_layer():
    """A residual block is not taken apart."""
    model = nn.Sequential(nn.Linear(3, 3), Residual(nn.Linear(3, 3), nn.ReLU()))
    assert names_of(model) == ["0", "1"]
    patched = nn.Sequential(nn.Linear(3, 3))
    patched.forward = lambda value: value
    assert names_of(nn.Sequential(patched)) == ["0"]


def test_a_chain_with_hooks_or_tensors_is_one_layer():
    """Taken apart it would lose them."""
    hooked = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    hooked.register_forward_hook(lambda module, inputs, output: output)
    holder = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    holder.register_buffer("scale", torch.ones(1))
    assert names_of(nn.Sequential(hooked, holder, nn.Sequential(nn.ReLU()))) == ["0", "1", "2.0"]


def test_a_module_in_two_places_is_two_layers():
    """named_modules() would drop the second."""
    act = nn.ReLU()
    assert layers(nn.Sequential(act, nn.Sequential(act))) == [Layer("0", act), Layer("1.0", act)]


def test_models_that_are_no_chain():
    """Their forward is followed: a Sequential that is more than its children, a layer alone."""
    residual = Residual(nn.Linear(3, 3), nn.Linear(3, 3))
    holder = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    holder.register_parameter("scale", nn.Parameter(torch.ones(1)))
    value = torch.randn(4, 3)
    for model in (residual, holder, nn.Linear(3, 2)):
        chain = layers(model)
        found = value
        for layer in chain:
            found = layer.module(found)
        assert torch.equal(found, model(value))
        names = {layer.full_name(key) for layer in chain for key in layer.module.state_dict()}
        assert names == set(model.state_dict())
    assert names_of(residual) == ["0", "1"]


def test_models_that_cannot_be_cut():
    """Hooks on the whole, a forward that was set, none at all: what is in the way is named."""
    hooked = nn.Sequential(nn.Linear(3, 3))
    hooked.register_forward_pre_hook(lambda module, inputs: None)
    patched = nn.Sequential(nn.Linear(3, 3))
    patched.forward = lambda value: value
    for model, fault in (
        (hooked, "it has hooks of its own"),
        (patched, "its forward is not its class's"),
        (nn.ModuleList([nn.Linear(2, 2)]), "it has no forward: got a ModuleList"),
    ):
        with pytest.raises(ModelError, match=f"cannot be cut into stages: {fault}.*give its lay"):
            layers(model)


@pytest.mark.parametrize("model", [nn.Sequential(), nn.Sequential(nn.Sequential())])
def test_a_model_without_layers_is_refused(model):
    """Nothing to cut."""
    with pytest.raises(ModelError, match="has no layers: got .*Sequential.*at least one layer"):
        layers(model)


def test_untied_models_pass():
    """Any cuts, shared activations included."""
    act = nn.ReLU()
    chain = layers(nn.Sequential(nn.Linear(3, 3), act, nn.Linear(3, 3), act, nn.BatchNorm1d(3)))
    require_untied(chain, (1, 2, 3, 4))


def tied_weight():
    """An embedding and a head with one parameter."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(3, 5, bias=False))
    model[2].weight = model[0].weight
    return model


def tied_memory():
    """The same, with two parameters over one memory."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 3), nn.Linear(5, 3, bias=False))
    model[2].weight = nn.Parameter(model[0].weight.detach().t())
    return model


@pytest.mark.parametrize("make", [tied_weight, tied_memory])
def test_tied_weights_across_a_cut(make):
    """Both names and stages; in one stage they are fine."""
    chain = layers(make())
    message = "used in two stages.*'0.weight' of stage 0 is '2.weight' of stage 1.*cut so that"
    for cuts in ((1,), (2,)):
        with pytest.raises(ModelError, match=message):
            require_untied(chain, cuts)
    require_untied(chain, ())
    require_untied([Layer("-1", nn.Linear(2, 2)), *chain], (1,))


def test_one_module_in_two_stages():
    """All its tensors are named, and all at once."""
    shared = nn.Linear(3, 3)
    chain = layers(nn.Sequential(shared, nn.ReLU(), nn.Sequential(shared)))
    with pytest.raises(ModelError) as caught:
        require_untied(chain, (1,))
    assert "'0.weight' of stage 0 is '2.0.weight' of stage 1" in str(caught.value)
    assert "'0.bias' of stage 0 is '2.0.bias' of stage 1" in str(caught.value)
    require_untied(chain[1:], (1,))


def test_a_buffer_in_two_stages():
    """Its updates would be seen by one stage only."""
    shared = nn.BatchNorm1d(3, affine=False)
    chain = layers(nn.Sequential(shared, nn.Linear(3, 3), shared))
    with pytest.raises(ModelError, match="'0.running_mean' of stage 0 is '2.running_mean'"):
        require_untied(chain, (2,))


def test_tensors_without_memory_are_told_apart():
    """On the meta device, and empty ones."""
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    require_untied(layers(model), (1,))
    holders = nn.Sequential(nn.ReLU(), nn.ReLU())
    for holder in holders:
        holder.register_buffer("nothing", torch.empty(0))
    require_untied(layers(holders), (1,))
