"""Ordinary modules as chains of units, against the modules themselves, bit by bit."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from headrace.errors import ModelError, StageError
from headrace.pipeline.graph import layers, require_untied
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.stage import layer_seed
from headrace.pipeline.strategy import FLUSH, FORECAST, STASH
from headrace.shares import even_sizes
from tests.processes import run_ranks

WIDTH = 6


class Residual(nn.Module):
    """Sums over several layers; an activation in place; a batch norm."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.last = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = start = self.act(self.norm(self.first(x)))
        for block in self.blocks:
            x = x + torch.tanh(block(x))
        return self.last(x + start)


class Dense(nn.Module):
    """Each layer sees what all before it gave."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH * (k + 1), WIDTH) for k in range(5))

    def forward(self, x):
        seen = [x]
        for part in self.parts:
            seen.append(torch.relu(part(torch.cat(seen, 1))))
        return seen[-1]


class Attention(nn.Module):
    """A mask and places that several layers read, attention, tensors of whole numbers and bools,
    sizes, a tuple of which one part is not used."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.place = nn.Parameter(torch.randn(9, WIDTH))
        self.register_buffer("scale", torch.tensor(0.5))
        self.attend = nn.ModuleList(
            nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in range(3)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens, mask=None, *, shift: int = 1):
        batch, length = tokens.shape
        x = self.embed(tokens) * self.scale + self.place[:length]
        is_padding = tokens == 0 if mask is None else mask
        for attend, norm in zip(self.attend, self.norms, strict=True):
            found, _ = attend(x, x, x, key_padding_mask=is_padding)
            x = norm(x + found)
        whole = x.masked_fill(is_padding.unsqueeze(-1), 0.0).sum(1)
        return self.out(whole / torch.arange(shift, shift + WIDTH).expand(batch, WIDTH))


class Recurrent(nn.Module):
    """LSTMs with a residual: nested tuples between them."""

    def __init__(self):
        super().__init__()
        self.one = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.two = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        found, state = self.one(x)
        again, (hidden, _) = self.two(found, state)
        return self.out((again + found)[:, -1] + hidden[0])


class Frozen(nn.Module):
    """Layers that are not trained, between and before those that are."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("table", torch.randn(WIDTH), persistent=False)
        self.plain = torch.arange(6.0)
        self.fourth = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.second(torch.sin(self.first(x))) + self.table
        return self.fourth(torch.tanh(self.third(x)) * self.plain) + torch.tensor([0.25])


class Choosing(nn.Module):
    """A layer whose way depends on values."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else -self.inner(x)


class Opaque(nn.Module):
    """Layers before and after one that cannot be followed."""

    def __init__(self):
        super().__init__()
        self.before = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())
        self.choose = Choosing()
        self.after = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.after(self.choose(self.before(x)) + x)


class InPlace(nn.Module):
    """What crosses a cut is changed in place after it, and read under its other name."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        x = self.parts[0](x)
        y = x.add_(1.0)
        z = self.parts[1](x * 3.0)
        y.mul_(2)
        return torch.tanh(self.parts[2](x + z) + y)


def floats(rows):
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def tokens(rows):
    return torch.randint(0, 11, (rows, 7), generator=torch.Generator().manual_seed(rows))


def masked(rows):
    some = tokens(rows)
    return some, some < 3


def named(rows):
    some, mask = masked(rows)
    return {"mask": mask, "tokens": some}


def sequences(rows):
    return torch.randn(rows, 4, WIDTH, generator=torch.Generator().manual_seed(rows))


MODELS = {
    "residual": (Residual, floats, None),
    "dense": (Dense, floats, None),
    "attention": (Attention, tokens, None),
    "attention, two inputs": (Attention, masked, ("tokens", "mask")),
    "attention, by name": (Attention, named, ("tokens", "mask")),
    "recurrent": (Recurrent, sequences, None),
    "frozen": (Frozen, floats, None),
    "opaque": (Opaque, floats, None),
    "in place": (InPlace, floats, None),
}


def made(name):
    torch.manual_seed(4)
    make, inputs, arguments = MODELS[name]
    return make(), inputs, arguments


def called(model, value):
    """A model's forward on a batch's inputs."""
    if isinstance(value, dict):
        return model(**value)
    return model(*value) if isinstance(value, tuple) else model(value)


def squared_error(output, target):
    return 0.5 * ((output - target) ** 2).sum(1).mean()


def split(value, sizes):
    if isinstance(value, dict):
        parts = {key: tensor.split(sizes) for key, tensor in value.items()}
        return [{key: parts[key][i] for key in parts} for i in range(len(sizes))]
    if isinstance(value, tuple):
        return list(zip(*(tensor.split(sizes) for tensor in value), strict=True))
    return list(value.split(sizes))


def plainly_trained(model, batches, num_micro_batches):
    """Losses of the batches; each micro-batch backward by itself, gradients weighted by records."""
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9
    )
    model.train()
    losses = []
    for inputs, targets in batches:
        sizes = even_sizes(len(targets), num_micro_batches)
        total = []
        sums = {}
        for part, target in zip(split(inputs, sizes), targets.split(sizes), strict=True):
            loss = squared_error(called(model, part), target) * (len(target) / len(targets))
            trained = [p for p in model.parameters() if p.requires_grad]
            for p, g in zip(trained, torch.autograd.grad(loss, trained), strict=True):
                sums[p] = sums[p] + g if p in sums else g
            total.append(loss.detach())
        for p, g in sums.items():
            p.grad = g
        optimizer.step()
        losses.append(torch.stack(total).sum().item() if len(total) > 1 else total[0].item())
    return losses


def batches_of(inputs):
    sizes = (8, 8, 5, 8)
    return [(inputs(size), torch.tanh(floats(size + 100)[:size])) for size in sizes]


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize("name", MODELS)
def test_a_chain_computes_what_the_model_does(name):
    """In both modes; the chain has the model's own modules and parameters by their own names."""
    model, inputs, arguments = made(name)
    twin = copy.deepcopy(model)
    chain = layers(model, arguments)
    assert len(chain) > 2
    state = {layer.full_name(key) for layer in chain for key in layer.module.state_dict()}
    assert state == set(model.state_dict())
    parameters = {id(p) for layer in chain for p in layer.module.parameters()}
    assert parameters == {id(p) for p in model.parameters()}
    for mode in (True, False):
        value = inputs(9)
        for layer in chain:
            layer.module.train(mode)
            value = layer.module(value)
        assert torch.equal(value, called(twin.train(mode), inputs(9)))
    for key, tensor in twin.state_dict().items():
        assert torch.equal(model.state_dict()[key], tensor)


@pytest.mark.parametrize("num_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", MODELS)
def test_a_flushed_pipeline_is_the_plain_model(name, num_stages):
    """Losses and weights bit by bit, buffers too; ragged batches; evaluation before and after."""
    model, inputs, arguments = made(name)
    num_stages = min(num_stages, len(layers(model, arguments)))
    twin = copy.deepcopy(model)
    batches = batches_of(inputs)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = plainly_trained(twin, batches, 2)
    finally:
        torch.set_num_threads(threads)
    pipeline = Pipeline(
        model,
        squared_error,
        optimizer,
        stages=num_stages,
        micro_batches=2,
        strategy=FLUSH,
        arguments=arguments,
    )

    losses = []
    pipeline.train(batches, on_batch=lambda number, loss, records: losses.append(loss.item()))

    assert losses == expected
    found = pipeline.state_dict()
    assert found.keys() == twin.state_dict().keys()
    for key, tensor in twin.state_dict().items():
        assert torch.equal(found[key], tensor), key
    sums = pipeline.evaluate(batches[:1], {"loss": lambda y, t: squared_error(y, t) * len(t)})
    twin.eval()
    truth = squared_error(called(twin, batches[0][0]), batches[0][1])
    assert sums["loss"] == pytest.approx(truth.item(), rel=1e-5)


def trained_by(rank, num_ranks, name):
    """Losses of an asynchronous pipeline of processes, where the last stage is."""
    from headrace.pipeline.mesh import Mesh

    model, inputs, arguments = made(name)
    pipeline = Pipeline(
        model,
        squared_error,
        optimizer,
        stages=num_ranks,
        micro_batches=2,
        strategy=FORECAST,
        arguments=arguments,
        mesh=Mesh.from_environment(num_ranks),
    )
    losses = []
    pipeline.train(
        batches_of(inputs), on_batch=lambda number, loss, records: losses.append(loss.item())
    )
    pipeline.close()
    return losses


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "dense",
        *(pytest.param(n, marks=SLOW) for n in ("attention, by name", "recurrent", "in place")),
    ],
)
def test_processes_do_what_one_process_does(name):
    """Whatever crosses the cuts: the same bits, with predicted weights too."""
    model, inputs, arguments = made(name)
    pipeline = Pipeline(
        model,
        squared_error,
        optimizer,
        stages=3,
        micro_batches=2,
        strategy=FORECAST,
        arguments=arguments,
    )
    losses = []
    pipeline.train(
        batches_of(inputs), on_batch=lambda number, loss, records: losses.append(loss.item())
    )

    *_, found = run_ranks(trained_by, 3, name)

    assert found == losses


class Dropping(nn.Module):
    """Dropout by the function, which is told the mode."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = functional.dropout(self.one(x), 0.5, self.training)
        return self.two(x) * (2.0 if self.training else 1.0)


def test_what_depends_on_the_mode():
    """Constants follow the mode of the units; random numbers come from each layer's own seed."""
    torch.manual_seed(0)
    model = Dropping()
    twin = copy.deepcopy(model)
    first, second = layers(model)
    value = floats(9)
    for mode in (True, False):
        first.module.train(mode), second.module.train(mode)
        torch.manual_seed(5)
        found = second.module(first.module(value))
        torch.manual_seed(5)
        assert torch.equal(found, twin.train(mode)(value))
    assert layer_seed(0, first.name, 0) != layer_seed(0, second.name, 0)


class Auxiliary(nn.Module):
    """Takes another way in training: through a layer more, and returns two things."""

    def __init__(self):
        super().__init__()
        self.one, self.side = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = self.one(x)
        side = None
        if self.training:
            side = self.side(torch.tanh(x)) * 0.5
            x = x + side
        return self.two(x), side


def test_another_way_in_evaluation():
    """Each unit does what the forward does there in its mode; what only training has is passed."""
    model = Auxiliary()
    chain = layers(model)
    assert [layer.name for layer in chain] == ["one", "side", "two"]
    for mode in (True, False):
        value = floats(5)
        for layer in chain:
            layer.module.train(mode)
            value = layer.module(value)
        expected = model.train(mode)(floats(5))
        assert torch.equal(value[0], expected[0])
        assert value[1] is None if expected[1] is None else torch.equal(value[1], expected[1])


class Noisy(nn.Module):
    """Makes random tensors and tensors of a size that depends on the batch."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        keep = torch.rand(x.shape[0], 1) < 0.5
        return self.two(torch.where(keep, self.one(x), torch.zeros(x.shape[0], WIDTH)))


def test_tensors_that_a_forward_makes():
    """Are made anew for each batch, of its size."""
    model = Noisy()
    chain = layers(model)
    for rows in (4, 9):
        torch.manual_seed(rows)
        expected = model(floats(rows))
        torch.manual_seed(rows)
        value = floats(rows)
        for layer in chain:
            value = layer.module(value)
        assert torch.equal(value, expected)


class Tied(nn.Module):
    """The embedding's weights are the output's."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, 11, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(torch.tanh(self.middle(self.embed(tokens))))


def test_tied_weights():
    """Are refused across a cut, with both names."""
    chain = layers(Tied())
    assert [layer.name for layer in chain] == ["embed", "middle", "out"]
    require_untied(chain, [])
    with pytest.raises(ModelError, match="'embed.weight' of stage 0 is 'out.weight' of stage 1"):
        require_untied(chain, [1])


class Twice(nn.Module):
    """One layer at two places."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.layer(torch.tanh(self.layer(x)))


def test_a_layer_at_two_places():
    """Two units with names of their own; the weights are tied."""
    chain = layers(Twice())
    assert [layer.name for layer in chain] == ["layer", "layer@2"]
    with pytest.raises(ModelError, match="one tensor is used in two stages"):
        require_untied(chain, [1])


class Wrong(nn.Module):
    """Forwards that cannot be followed."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.layer, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.kind == "values" and x.sum() > 0:
            return x
        if self.kind == "sets":
            self.steps = self.steps + 1
        if self.kind == "random":
            x = x + torch.from_numpy(np.random.rand(1))
        if self.kind == "mode" and self.training:
            return self.layer(self.other(x))
        return self.other(self.layer(x)) if self.kind == "mode" else self.layer(x)


@pytest.mark.parametrize(
    "kind, message",
    [
        ("values", "cannot be cut into stages: torch.fx cannot follow its forward: got TraceError"),
        ("sets", "cannot be cut into stages: its forward sets attributes: got 'Wrong'"),
        ("random", "its forward makes a constant that is another each time"),
        ("mode", "its layers come in another order in evaluation"),
    ],
)
def test_what_cannot_be_followed(kind, message):
    """Says why and what to do; the model is left as it was."""
    model = Wrong(kind).eval()
    attributes, state = dict(model.__dict__), dict(model._buffers)
    with pytest.raises(ModelError, match=message + r".*; give its layers: nn.Sequential\("):
        layers(model)
    assert model.__dict__.keys() == attributes.keys()
    assert all(model.__dict__[key] is value for key, value in attributes.items())
    assert model._buffers == state and not model.training
    chain = layers(nn.Sequential(model, nn.Linear(WIDTH, WIDTH)))
    assert [layer.name for layer in chain] == ["0", "1"]


class Counting(nn.Module):
    """Keeps count of its calls in a buffer that it sets."""

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        self.steps = self.steps + 1
        return self.layer(x)


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Counting(), Counting()

    def forward(self, x):
        return self.two(self.one(x))


def test_a_part_that_sets_attributes_is_one_step():
    """And goes on doing so."""
    model = Pair()
    chain = layers(model)
    assert [layer.name for layer in chain] == ["one", "two"]
    value = floats(3)
    for layer in chain * 2:
        value = layer.module(value)
    assert model.one.steps == model.two.steps == 2


@pytest.mark.parametrize(
    "inputs, message",
    [
        (
            (tokens(4), tokens(4) < 3, tokens(4)),
            "forward is given: got 3 by position, expected tok",
        ),
        (tokens(4), "got 1 by position, expected tokens, mask"),
        ({"mask": tokens(4) < 3}, "got mask, expected tokens, mask; name those that a batch gives"),
    ],
)
def test_inputs_that_the_model_does_not_take(inputs, message):
    """Say what it takes."""
    pipeline = Pipeline(
        Attention(),
        squared_error,
        optimizer,
        stages=2,
        micro_batches=1,
        strategy=STASH,
        arguments=("tokens", "mask"),
    )
    with pytest.raises((ModelError, StageError), match=message):
        pipeline.train([Batch(4, inputs, floats(4))])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("tokens", "masks"),
            "got tokens, masks, expected some of tokens, mask, shift; in Attentio",
        ),
        (
            ("mask",),
            "got mask, expected some of tokens, mask, shift; tokens must be among them; in",
        ),
        ((), "got none, expected some of tokens, mask, shift; tokens must be among them"),
    ],
)
def test_arguments_that_the_forward_does_not_have(arguments, message):
    with pytest.raises(ModelError, match=message):
        layers(Attention(), arguments)
