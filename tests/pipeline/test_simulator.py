"""The pipeline in one process, against the plain model and an independent oracle."""

import pytest
import torch
from torch import nn

from headrace.errors import ModelError
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.stage import layer_seed
from headrace.pipeline.strategy import (
    DOUBLE_BUFFER,
    FLUSH,
    FORECAST,
    FORECAST_LEAN,
    PREDICT,
    SPECTRAIN,
    STALE,
    STASH,
)
from headrace.shares import even_sizes
from tests.oracle import delayed

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.01),  # no closed form
}


def squared_error(output, target):
    """Half the squared distance, a mean over records."""
    return 0.5 * ((output - target) ** 2).sum(1).mean()


def tanh_chain(num_stages, width=6):
    """One layer a stage, as the oracle has it."""
    torch.manual_seed(3)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num_stages))
    ).double()


def made_batches(sizes, width=6):
    """Pairs of random inputs and targets."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda rows: torch.randn(rows, width, generator=generator, dtype=torch.float64)  # noqa: E731
    return [(draw(size), torch.tanh(draw(size))) for size in sizes]


def trained(pipeline, batches):
    """The batches' losses, in order."""
    losses = []
    pipeline.train(batches, on_batch=lambda number, loss, records: losses.append(loss.item()))
    return losses


PLAIN = ((1, 1), (2, 1), (2, 2), (3, 3), (4, 4), (4, 2), (4, 9), (3, 1))
EAGER = ((2, 1), (2, 2), (3, 3), (4, 4), (4, 9))
ORACLE = [
    (optimizer, strategy, "async_1f1b", n, m)
    for optimizer in OPTIMIZERS
    for strategy in (STALE, STASH, DOUBLE_BUFFER, PREDICT, FORECAST, FORECAST_LEAN)
    for n, m in PLAIN
    if optimizer != "radam" or strategy in (PREDICT, FORECAST, FORECAST_LEAN)
]
ORACLE += [
    (optimizer, strategy, "async_eager_1f1b", n, m)
    for optimizer in ("momentum", "adamw")
    for strategy in (STASH, DOUBLE_BUFFER, PREDICT, FORECAST, FORECAST_LEAN)
    for n, m in EAGER
]
ORACLE += [
    (optimizer, SPECTRAIN, "async_1f1b", n, 1) for optimizer in OPTIMIZERS for n in (1, 2, 3, 4)
]


@pytest.mark.parametrize(
    "optimizer, strategy, schedule, stages, micro_batches",
    ORACLE,
    ids=lambda value: getattr(value, "name", value),
)
def test_equals_the_delayed_gradient_oracle(optimizer, strategy, schedule, stages, micro_batches):
    """Losses and weights of the asynchronous strategies follow the equations, ragged end too."""
    sizes = [10] * 7 + [min(3, micro_batches)]
    batches = made_batches(sizes)
    model = tanh_chain(stages)
    weights = [(block[0].weight.detach(), block[0].bias.detach()) for block in model]
    parts = [
        list(
            zip(
                x.split(even_sizes(len(x), micro_batches)),
                y.split(even_sizes(len(x), micro_batches)),
                strict=True,
            )
        )
        for x, y in batches
    ]
    losses, expected = delayed.train(
        strategy.name,
        weights,
        parts,
        [len(part) for part in parts],
        OPTIMIZERS[optimizer],
        head_start=2 if schedule == "async_eager_1f1b" else 1,
    )
    pipeline = Pipeline(
        model,
        squared_error,
        OPTIMIZERS[optimizer],
        stages=stages,
        micro_batches=micro_batches,
        strategy=strategy,
        schedule=schedule,
        cuts=[2 * k for k in range(1, stages)],
    )

    actual = trained(pipeline, batches)

    assert actual == pytest.approx(losses, rel=1e-9)
    for block, (w, b) in zip(model, expected, strict=True):
        torch.testing.assert_close(block[0].weight.detach(), w, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(block[0].bias.detach(), b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["momentum", "adamw", "radam"])
@pytest.mark.parametrize("strategy", [FORECAST, STASH, FORECAST_LEAN], ids=lambda s: s.name)
def test_a_learning_rate_scheduler_steps_after_each_batch(strategy, optimizer):
    """Warm-up and decay as the optimizer's own scheduler gives them, look-ahead included: what is
    forecast is the step at the rate that it will be made with."""
    batches = made_batches([8] * 9)
    model = tanh_chain(3)
    weights = [(block[0].weight.detach(), block[0].bias.detach()) for block in model]
    parts = [list(zip(x.split(2), y.split(2), strict=True)) for x, y in batches]

    def one_cycle(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: min(1.0, 0.2 + t / 4) / (1 + t)
        )

    losses, expected = delayed.train(
        strategy.name, weights, parts, [4] * 9, OPTIMIZERS[optimizer], make_scheduler=one_cycle
    )
    pipeline = Pipeline(
        model,
        squared_error,
        OPTIMIZERS[optimizer],
        stages=3,
        micro_batches=4,
        strategy=strategy,
        scheduler=one_cycle,
        cuts=[2, 4],
    )

    assert trained(pipeline, batches) == pytest.approx(losses, rel=1e-9)
    for block, (w, b) in zip(model, expected, strict=True):
        torch.testing.assert_close(block[0].weight.detach(), w, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(block[0].bias.detach(), b, rtol=1e-9, atol=1e-12)


def mixed_model():
    """Layers that draw random numbers, keep buffers, change in place; nested."""
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Linear(6, 16),
        nn.Sequential(nn.ReLU(inplace=True), nn.BatchNorm1d(16), nn.Dropout(0.3)),
        nn.Linear(16, 12),
        nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.GELU(), nn.LayerNorm(12))),
        nn.Linear(12, 6),
    )


class Plain:
    """The same training without headrace: layers in a row, seeded alike, one thread."""

    def __init__(self, model, optimizer, seed, micro_batches):
        self.model, self.seed, self.m = model, seed, micro_batches
        self.optimizer = optimizer(model.parameters())
        self.layers = [
            (name, module)
            for name, module in model.named_modules()
            if not isinstance(module, nn.Sequential)
        ]

    def train(self, batches):
        """The batches' losses and, of the last batch, the gradients that were stepped with."""
        losses = []
        torch.set_num_threads(1)
        for t, (x, y) in enumerate(batches):
            self.optimizer.zero_grad()
            sizes = even_sizes(len(x), self.m)
            parts = []
            for j, (h, target) in enumerate(zip(x.split(sizes), y.split(sizes), strict=True)):
                for name, layer in self.layers:
                    torch.manual_seed(layer_seed(self.seed, name, t * self.m + j))
                    h = layer(h)
                loss = nn.functional.mse_loss(h, target) * (len(target) / len(x))
                loss.backward()
                parts.append(loss.detach())
            losses.append(sum(parts).item() if len(parts) > 1 else parts[0].item())
            gradients = [p.grad.clone() for p in self.model.parameters()]
            self.optimizer.step()
        return losses, gradients


@pytest.mark.parametrize("schedule", ["one_f_one_b", "gpipe"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_flush_equals_the_plain_model_bit_for_bit(stages, schedule):
    """50 steps of the flushed pipeline: losses, weights and buffers are the plain model's own."""
    batches = [(x.float(), y.float()) for x, y in made_batches([8] * 49 + [7])]
    optimizer = OPTIMIZERS["momentum"]
    plain = Plain(mixed_model(), optimizer, seed=9, micro_batches=3)
    model = mixed_model()
    pipeline = Pipeline(
        model,
        nn.functional.mse_loss,
        optimizer,
        stages=stages,
        micro_batches=3,
        strategy=FLUSH,
        schedule=schedule,
        seed=9,
    )

    expected, _ = plain.train(batches)
    actual = trained(pipeline, batches)

    assert actual == pytest.approx(expected, rel=1e-6)  # losses are added in another way
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


@pytest.mark.parametrize("stages", [1, 3])
def test_bfloat16_by_autocast_equals_the_plain_model(stages):
    """autocast around forward pass and loss: the plain model's weights, in float32, bit for bit;
    through asynchronous pinned strategies and evaluation too."""
    batches = [(x.float(), y.float()) for x, y in made_batches([8] * 12)]
    optimizer = OPTIMIZERS["adamw"]

    class Cast(Plain):
        def train(self, batches):
            for t, (x, y) in enumerate(batches):
                self.optimizer.zero_grad()
                for j, (h, target) in enumerate(zip(x.split(4), y.split(4), strict=True)):
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        for name, layer in self.layers:
                            torch.manual_seed(layer_seed(self.seed, name, t * self.m + j))
                            h = layer(h)
                        loss = nn.functional.mse_loss(h, target) * (len(target) / len(x))
                    loss.backward()
                self.optimizer.step()

    torch.set_num_threads(1)
    plain = Cast(mixed_model(), optimizer, seed=9, micro_batches=2)
    plain.train(batches)
    seen = []

    def loss(output, target):
        seen.append(output.dtype)
        return nn.functional.mse_loss(output, target)

    for strategy in (FLUSH, FORECAST):
        model = mixed_model()
        pipeline = Pipeline(
            model,
            loss,
            optimizer,
            stages=stages,
            micro_batches=2,
            strategy=strategy,
            segment_batches=1,  # so that nothing is late
            autocast=torch.bfloat16,
            seed=9,
        )
        pipeline.train(batches)
        for name, tensor in plain.model.state_dict().items():
            assert torch.equal(model.state_dict()[name], tensor), name
    pipeline.evaluate(batches, {"dtype": lambda output, target: seen.append(output.dtype) or 0})
    assert set(seen) == {torch.bfloat16}


def test_autocast_to_what_would_need_scaled_gradients_is_refused():
    """Float16 underflows without a scaler."""
    with pytest.raises(ModelError, match=r"autocast: got torch.float16, expected torch.bfloat16"):
        Pipeline(
            tanh_chain(2),
            squared_error,
            OPTIMIZERS["sgd"],
            stages=2,
            micro_batches=2,
            autocast=torch.float16,
        )


def test_flush_steps_with_the_plain_models_gradients():
    """What the optimizer is given is bit for bit what backward() of the plain model gives."""
    batches = [(x.float(), y.float()) for x, y in made_batches([10])]
    seen = []

    class Spy(torch.optim.SGD):
        def step(self, closure=None):
            seen.extend(p.grad.clone() for group in self.param_groups for p in group["params"])

    _, expected = Plain(mixed_model(), OPTIMIZERS["sgd"], 9, 4).train(batches)
    Pipeline(
        mixed_model(),
        nn.functional.mse_loss,
        lambda p: Spy(p, lr=0.1),
        stages=1,
        micro_batches=4,
        strategy=FLUSH,
        seed=9,
    ).train(batches)

    assert len(seen) == len(expected)
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_segments_and_epochs_drain():
    """A drain after each batch makes every strategy train as FLUSH does."""
    batches = made_batches([8] * 6)
    results = []
    for strategy, segment in ((FLUSH, None), (STASH, 1), (FORECAST, 1)):
        model = tanh_chain(3)
        pipeline = Pipeline(
            model,
            squared_error,
            OPTIMIZERS["momentum"],
            stages=3,
            micro_batches=4,
            strategy=strategy,
            segment_batches=segment,
        )
        pipeline.train(batches)
        results.append(model.state_dict())

    for name, tensor in results[0].items():
        assert all(torch.equal(other[name], tensor) for other in results[1:])


def test_batches_given_whole_or_by_part_train_alike():
    """A Batch with inputs and targets is the pair."""
    batches = made_batches([8] * 4)
    models = []
    for given in (batches, [Batch(len(x), x, y) for x, y in batches]):
        models.append(tanh_chain(2))
        Pipeline(models[-1], squared_error, OPTIMIZERS["adam"], stages=2, micro_batches=2).train(
            given
        )

    for name, tensor in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], tensor)


def test_evaluates_with_the_newest_weights_at_any_batch_size():
    """Means over all records are the plain model's in evaluation mode."""
    batches = [(x.float(), y.float()) for x, y in made_batches([8] * 5)]
    model = mixed_model()
    pipeline = Pipeline(model, nn.functional.mse_loss, OPTIMIZERS["sgd"], stages=3, micro_batches=4)
    test = [(x.float(), y.float()) for x, y in made_batches([5, 32, 1])]
    metrics = {"distance": lambda output, target: (output - target).abs().sum(1).sum()}

    for _ in range(2):  # evaluation, training, evaluation
        actual = pipeline.evaluate(test, metrics)
        model.eval()
        with torch.no_grad():
            expected = sum(metrics["distance"](model(x), y).item() for x, y in test) / 38
        assert actual == {"distance": pytest.approx(expected, rel=1e-6)}
        pipeline.train(batches)


def test_random_state_of_the_caller_is_left_alone():
    """Layers draw from their own seeds."""
    pipeline = Pipeline(
        mixed_model(), nn.functional.mse_loss, OPTIMIZERS["sgd"], stages=2, micro_batches=2
    )
    torch.manual_seed(1)
    before = torch.get_rng_state()

    pipeline.train([(x.float(), y.float()) for x, y in made_batches([8])])

    assert torch.equal(torch.get_rng_state(), before)
