"""Which weights a pass reads, told apart by changing them between the passes."""

import gc
import weakref

import pytest
import torch
from torch import nn

from headrace.errors import StrategyError
from headrace.pipeline.actions import Kind
from headrace.pipeline.clock import live_versions
from headrace.pipeline.pipeline import Pipeline
from headrace.pipeline.runtime import Interpreter
from headrace.pipeline.schedule import make_schedule
from headrace.pipeline.stage import Stage, crossing_of
from headrace.pipeline.strategy import (
    DOUBLE_BUFFER,
    FLUSH,
    FORECAST,
    FORECAST_LEAN,
    SPECTRAIN,
    STALE,
    STASH,
    STRATEGIES,
    Pinned,
    Strategy,
)
from headrace.pipeline.versions import Versions

CPU = torch.device("cpu")


def sgd(parameters):
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def make(layer, strategy):
    """A stage of one layer and its versions, an update possible between the passes."""
    stage = Stage([type("L", (), {"name": "0", "module": layer})()], device=CPU)
    return stage, Versions([layer], sgd, strategy, is_stale=True, looks_ahead=False)


def crossing(x):
    """Inputs that want a gradient."""
    return crossing_of(x, CPU)._replace(has_gradient=(True,))


def passes_around_an_update(layer, strategy, x, change):
    """Forward, an update that changes the weights, backward: gradients of input and weights."""
    stage, versions = make(layer, strategy)
    with versions.forward(batch=1, steps=0) as weights:
        output = stage.forward(0, crossing(x), weights.tensors)
    versions.add([torch.full_like(p, change) for p in versions.parameters], 1.0)
    versions.update(batch=0)
    with versions.backward(1, 0, weights):
        (of_input,), of_weights = stage.backward(0, (torch.ones_like(output.tensors[0]),))
    return output.tensors[0], of_input, of_weights


@pytest.mark.parametrize("strategy", [STASH, STALE], ids=lambda s: s.name)
def test_pinned_and_latest_are_told_apart(strategy):
    """The input's gradient is that of the old weights where pinned, of the new where latest."""
    torch.manual_seed(0)
    layer = nn.Linear(5, 3)
    old = layer.weight.detach().clone()
    x = torch.randn(4, 5)

    output, of_input, (of_weight, of_bias) = passes_around_an_update(layer, strategy, x, 2.0)

    new = layer.weight.detach()
    torch.testing.assert_close(new, old - 0.1 * 2.0)
    torch.testing.assert_close(output, x @ old.T + layer.bias.detach() + 0.2)
    read = old if strategy is STASH else new
    assert torch.equal(of_input, torch.ones(4, 3) @ read)
    torch.testing.assert_close(of_weight, torch.ones(4, 3).T @ x)
    torch.testing.assert_close(of_bias, torch.full((3,), 4.0))


@pytest.mark.parametrize(
    "layer, shape",
    [
        (nn.Conv2d(2, 3, 3), (2, 2, 5, 5)),
        (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 4)), (3, 4)),
        (nn.Bilinear(4, 4, 3), None),
        (nn.LSTM(4, 3, num_layers=2), (5, 2, 4)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_pinned_gradients_are_those_of_an_untouched_copy(layer, shape):
    """Whatever the layer saves: an update in between changes nothing for a pinned backward pass."""

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = layer

        def forward(self, x):
            out = self.inner(x, x) if isinstance(self.inner, nn.Bilinear) else self.inner(x)
            return out[0] if isinstance(out, tuple) else out

    torch.manual_seed(1)
    model = Whole()
    x = torch.randn(shape or (6, 4))
    expected_input = x.clone().requires_grad_()
    expected_output = model(expected_input)
    expected_output.sum().backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()

    output, of_input, of_weights = passes_around_an_update(model, STASH, x, 0.5)

    torch.testing.assert_close(output, expected_output.detach())
    torch.testing.assert_close(of_input, expected_input.grad)
    for actual, wanted in zip(of_weights, expected, strict=True):
        torch.testing.assert_close(actual, wanted)


def test_latest_reads_views_of_weights_from_what_is_newest():
    """A convolution and a transposed, sliced weight: the gradient is that of the new weights."""

    class Sliced(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 8))

        def forward(self, x):
            return x @ self.weight[1:5, ::2].t()

    torch.manual_seed(2)
    layer = Sliced()
    x = torch.randn(3, 4)

    _, of_input, _ = passes_around_an_update(layer, STALE, x, 3.0)

    assert torch.equal(of_input, torch.ones(3, 4) @ layer.weight.detach()[1:5, ::2])


def test_latest_keeps_no_old_weights_alive():
    """What a late backward pass will not read is freed as soon as the forward pass is done."""
    torch.manual_seed(3)
    layer = nn.Linear(4, 4, bias=False)
    stage = Stage([type("L", (), {"name": "0", "module": layer})()], device=CPU)
    momentum = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)  # noqa: E731
    versions = Versions([layer], momentum, SPECTRAIN, is_stale=True, looks_ahead=True)
    versions.add([torch.ones(4, 4)], 1.0)
    versions.update(0)
    with versions.forward(batch=3, steps=2) as weights:
        output = stage.forward(0, crossing(torch.eye(4)), weights.tensors)
    moved = layer.weight.detach() - 2 * 0.1
    torch.testing.assert_close(output.tensors[0], moved.T)
    (predicted,) = next(iter(versions._readable.values()))
    watch = weakref.ref(predicted)
    del predicted

    versions.add([torch.ones(4, 4)], 1.0)
    versions.update(1)
    gc.collect()

    assert watch() is None
    assert versions.num_live == 1


def test_a_version_is_cloned_once_and_only_if_a_forward_outlives_it():
    """Updates in place keep the storage; the first update under a forward in flight moves it."""
    layer = nn.Linear(3, 3)
    _, versions = make(layer, STASH)
    storage = layer.weight.data_ptr()
    versions.update(0)
    assert layer.weight.data_ptr() == storage

    with versions.forward(batch=2, steps=0) as weights:
        pass
    versions.update(1)
    moved = layer.weight.data_ptr()
    assert moved != storage
    assert weights.tensors[0].data_ptr() == storage
    versions.update(2)
    assert layer.weight.data_ptr() == moved
    with versions.backward(2, 0, weights):
        pass
    assert versions.num_live == 1


@pytest.mark.parametrize("schedule", ["async_1f1b", "async_eager_1f1b"])
@pytest.mark.parametrize(
    "strategy", [s for s in STRATEGIES.values() if s is not FLUSH], ids=lambda s: s.name
)
@pytest.mark.parametrize("stages, micro_batches", [(2, 1), (2, 2), (4, 2), (4, 4), (4, 8)])
def test_live_versions_are_those_that_the_clock_derives(
    strategy, stages, micro_batches, schedule, monkeypatch
):
    """The most sets of weights held, counted while training, equals what is planned for."""
    most = [0] * stages
    execute = Interpreter.execute

    def counted(self, action):
        execute(self, action)
        if action.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.UPDATE):
            most[self.number] = max(most[self.number], self.versions.num_live)

    monkeypatch.setattr(Interpreter, "execute", counted)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(stages)))
    pipeline = Pipeline(
        model,
        nn.functional.mse_loss,
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        stages=stages,
        micro_batches=micro_batches,
        strategy=strategy,
        schedule=schedule,
    )
    pipeline.train([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(10)])

    planned = make_schedule(schedule, stages, micro_batches, 10)
    assert most == [live_versions(planned, strategy, k) for k in range(stages)]


def test_shared_gradients_are_not_added_twice():
    """Two parameters may get the very same tensor as their gradient."""
    _, versions = make(nn.Linear(2, 2), STASH)
    shared = torch.ones(2, 2)
    versions.add([shared, shared[0]], 0.5)
    versions.add([shared, shared[0]], 0.5)
    versions.add([shared, None], 0.5)

    assert torch.equal(shared, torch.ones(2, 2))
    assert torch.equal(versions._gradients[0], torch.full((2, 2), 3.0))
    assert torch.equal(versions._gradients[1], torch.full((2,), 2.0))


def test_frozen_parameters_and_empty_stages_take_part():
    """A stage of frozen or no parameters trains around; frozen weights stay as they are."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].requires_grad_(False)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    pipeline = Pipeline(
        model, nn.functional.mse_loss, sgd, stages=4, micro_batches=4, strategy=FORECAST
    )
    pipeline.train([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(6)])

    changed = {key for key, value in model.state_dict().items() if not value.equal(before[key])}
    assert changed == {"0.weight", "0.bias", "3.weight", "3.bias"}


@pytest.mark.parametrize("strategy", [STALE, FORECAST, DOUBLE_BUFFER], ids=lambda s: s.name)
def test_parameter_groups_in_any_order(strategy):
    """Groups, as where norms and biases do not decay, change the order of an optimizer's
    parameters; training is the same, and what it is not given stays as it is."""

    def grouped(parameters):
        flat = [p for p in parameters if p.ndim == 1]
        weights = [p for p in parameters if p.ndim > 1]
        groups = [{"params": flat, "weight_decay": 0.0}, {"params": weights, "weight_decay": 0.1}]
        return torch.optim.AdamW(groups, lr=0.01)

    def in_order(parameters):
        return torch.optim.AdamW(
            [{"params": [p], "weight_decay": 0.1 * (p.ndim > 1)} for p in parameters], lr=0.01
        )

    def weights_only(parameters):
        return torch.optim.SGD([p for p in parameters if p.ndim > 1], lr=0.1)

    def train(optimizer):
        torch.manual_seed(5)
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
        pipeline = Pipeline(
            model, nn.functional.mse_loss, optimizer, stages=3, micro_batches=2, strategy=strategy
        )
        before = {key: value.clone() for key, value in model.state_dict().items()}
        pipeline.train([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(6)])
        return before, model.state_dict()

    (_, one), (_, other) = train(grouped), train(in_order)
    assert all(torch.equal(one[key], other[key]) for key in one)
    before, after = train(weights_only)
    assert {key for key in after if not after[key].equal(before[key])} == {
        f"{k}.weight" for k in range(3)
    }


def test_an_optimizer_of_other_parameters_is_refused():
    """A factory that does not step what it is given, or wants to call the model."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    strange = nn.Parameter(torch.ones(3))

    def build(optimizer):
        Pipeline(model, nn.functional.mse_loss, optimizer, stages=2, micro_batches=2)

    with pytest.raises(StrategyError, match=r"not of its stage: got parameters of shape \[\[3\]\]"):
        build(lambda parameters: torch.optim.SGD([strange], lr=0.1))
    with pytest.raises(StrategyError, match="whose step calls the model again"):
        build(torch.optim.LBFGS)


class Cast(nn.Module):
    """A layer that computes in bfloat16 with weights in float32."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        weight = self.inner.weight.bfloat16()
        return nn.functional.linear(x.bfloat16(), weight).float() + self.inner.bias


class Gated(nn.Module):
    """A layer with a gate that depends on nothing but a weight."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(4))

    def forward(self, x):
        return x * torch.sigmoid(self.gate)


class Looked(nn.Module):
    """An embedding of integers and of positions, added up: tables looked up, nothing copied."""

    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(9, 4), nn.Embedding(4, 4)

    def forward(self, x):
        index = (x.abs() * 2).long().clamp(max=8)
        return (self.tokens(index) + self.places(torch.arange(4))).mean(1) + x


@pytest.mark.parametrize(
    "make_layer, name",
    [
        (Cast, "Cast.inner.weight"),
        (Gated, "Gated.gate"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "weight.original"),
    ],
)
@pytest.mark.parametrize("strategy", [STALE, FORECAST_LEAN, SPECTRAIN], ids=lambda s: s.name)
def test_copies_of_weights_are_refused_where_the_newest_are_wanted(make_layer, name, strategy):
    """Casts, gates and parametrizations would keep old weights in the graph unseen."""
    model = nn.Sequential(nn.Linear(4, 4), make_layer(), nn.Linear(4, 4))
    batches = [(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(4)]

    def train(strategy):
        loss = nn.functional.mse_loss
        split = {"stages": 2, "micro_batches": 2, "cuts": [2]}
        return Pipeline(model, loss, sgd, strategy=strategy, **split).train(batches)

    with pytest.raises(StrategyError, match=rf"{name}.*such as a cast.*in stage 0, action 0F0"):
        train(strategy)
    for pinned in (STASH, DOUBLE_BUFFER, FORECAST):
        assert train(pinned).num_batches == 4


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(4, 4),
        Looked(),
        nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.5), nn.GELU()),
        nn.Sequential(nn.Unflatten(1, (4, 1)), nn.Conv1d(4, 4, 1), nn.BatchNorm1d(4), nn.Flatten()),
        nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_ordinary_layers_are_no_copies(layer):
    """Views of weights and what is computed from inputs too may be saved."""
    model = nn.Sequential(layer, nn.Linear(4, 4), nn.Linear(4, 4))
    cuts = [len(layer), len(layer) + 1] if isinstance(layer, nn.Sequential) else [1, 2]
    split = {"stages": 3, "micro_batches": 2, "cuts": cuts}
    pipeline = Pipeline(model, nn.functional.mse_loss, sgd, strategy=STALE, **split)
    summary = pipeline.train([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(4)])

    assert summary.num_batches == 4


def test_pinned_is_a_strategy_of_ones_own():
    """Users' own strategies are values: double look-ahead with stashed backward passes trains."""
    own = Strategy("OWN", ("async_1f1b",), SPECTRAIN.forward, Pinned())
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    pipeline = Pipeline(model, nn.functional.mse_loss, sgd, stages=3, micro_batches=1, strategy=own)
    summary = pipeline.train([(torch.randn(8, 4), torch.randn(8, 4)) for _ in range(10)])

    assert summary.num_batches == 10
    assert summary.loss is not None and summary.loss > 0


@pytest.mark.parametrize(
    "strategy", [s for s in STRATEGIES.values() if s is not FLUSH], ids=lambda s: s.name
)
@pytest.mark.parametrize("micro_batches", [1, 2, 4])
def test_memory_for_weights_is_used_again(strategy, micro_batches, monkeypatch):
    """After the first batches no set of tensors like the weights is made any more."""
    made = []
    really = torch.empty_like
    monkeypatch.setattr(torch, "empty_like", lambda t, **k: made.append(t) or really(t, **k))
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(4)])
    pipeline = Pipeline(
        model,
        nn.functional.mse_loss,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        stages=4,
        micro_batches=micro_batches,
        strategy=strategy,
    )
    counts = []
    data = [(torch.randn(8, 3), torch.randn(8, 3)) for _ in range(20)]

    pipeline.train(data, lambda *_: counts.append(len(made)))

    assert counts[0] >= 0 and counts[-1] == counts[12] <= 4 * 2 * 4
