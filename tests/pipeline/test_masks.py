"""Records that are not valid reach no layer and no loss, and move no row of the others."""

import math

import numpy
import pytest
import torch
from torch import nn

from headrace.errors import ModelError, StageError
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.strategy import FLUSH, FORECAST, PREDICT, SPECTRAIN, STASH
from headrace.shares import even_sizes
from tests.oracle import delayed
from tests.pipeline.test_simulator import (
    OPTIMIZERS,
    made_batches,
    squared_error,
    tanh_chain,
    trained,
)
from tests.processes import run_ranks

SIZES = [10, 10, 10, 10, 10, 3]


def mask_of(size, *invalid):
    """All but these records."""
    mask = torch.ones(size, dtype=torch.bool)
    mask[list(invalid)] = False
    return mask


def made_masks():
    """(inputs, targets) of the batches of SIZES: rows, a micro-batch, a batch and an end without
    valid records; of the last batch each record lacks one of the two."""
    return [
        (mask_of(10, 0, 4), mask_of(10, 4, 7)),
        (mask_of(10), mask_of(10)),
        (mask_of(10, 0, 1, 2, 3, 4), mask_of(10, 9)),  # of 2 or 3 parts the first is empty
        (mask_of(10, *range(6)), mask_of(10, *range(6, 10))),  # no record has both
        (mask_of(10), mask_of(10, 5, 6, 7, 8, 9)),
        (mask_of(3, 1), mask_of(3)),
    ]


def masked_batches(dtype=torch.float64):
    """The batches, whose blank rows hold NaN: one that is used shows at once."""
    batches = []
    for (x, y), (inputs, targets) in zip(made_batches(SIZES), made_masks(), strict=True):
        x, y = x.to(dtype), y.to(dtype)
        x[~inputs], y[~targets] = math.nan, math.nan
        batches.append(Batch(len(x), x, y, inputs, targets))
    return batches


def kept_parts(batch, micro_batches):
    """The micro-batches as the plain model is given them: cut as the pipeline cuts, then only the
    records that are valid for both."""
    sizes = even_sizes(batch.num_records, micro_batches)
    valid = (batch.inputs_valid & batch.targets_valid).split(sizes)
    return [
        (x[rows], y[rows])
        for x, y, rows in zip(
            batch.inputs.split(sizes), batch.targets.split(sizes), valid, strict=True
        )
    ]


@pytest.mark.parametrize("optimizer, first", [*((o, 0) for o in OPTIMIZERS), ("adam", 3)])
@pytest.mark.parametrize(
    "strategy, stages, micro_batches",
    [
        (strategy, n, m)
        for strategy in (STASH, PREDICT, FORECAST)
        for n, m in ((1, 3), (2, 2), (3, 3), (4, 2))
    ]
    + [(SPECTRAIN, 2, 1)],
    ids=lambda value: getattr(value, "name", value),
)
def test_trains_as_if_the_others_were_not_there(strategy, stages, micro_batches, optimizer, first):
    """Losses and weights are the oracle's, given batches without those rows; also where the first
    batch of all has no valid record."""
    batches = masked_batches()
    batches = batches[first:] + batches[:first]
    parts = [kept_parts(batch, micro_batches) for batch in batches]
    model = tanh_chain(stages)
    weights = [(block[0].weight.detach(), block[0].bias.detach()) for block in model]
    losses, expected = delayed.train(
        strategy.name, weights, parts, [len(part) for part in parts], OPTIMIZERS[optimizer]
    )
    pipeline = Pipeline(
        model,
        squared_error,
        OPTIMIZERS[optimizer],
        stages=stages,
        micro_batches=micro_batches,
        strategy=strategy,
        cuts=[2 * k for k in range(1, stages)],
    )

    actual = trained(pipeline, batches)

    assert actual == pytest.approx(losses, rel=1e-9)
    for block, (w, b) in zip(model, expected, strict=True):
        torch.testing.assert_close(block[0].weight.detach(), w, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(block[0].bias.detach(), b, rtol=1e-9, atol=1e-12)


def test_no_layer_sees_a_row_without_inputs():
    """The statistics of a BatchNorm are those of the rows that are there."""
    norm = nn.BatchNorm1d(6, momentum=None)  # a plain mean over batches
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    valid = mask_of(8, 2, 5)
    x[~valid] = 1e6
    pipeline = Pipeline(
        nn.Sequential(norm, nn.Linear(6, 6)),
        nn.functional.mse_loss,
        OPTIMIZERS["sgd"],
        stages=2,
        micro_batches=1,
        strategy=FLUSH,
    )

    pipeline.train([(x, torch.zeros(8, 6), valid)])

    torch.testing.assert_close(norm.running_mean, x[valid].mean(0))


def test_counts_means_and_metrics_are_over_the_valid_records():
    """As summary, on_batch and evaluate say; a batch without any counts and steps nothing."""
    batches = masked_batches()
    num_valid = [int((b.inputs_valid & b.targets_valid).sum()) for b in batches]
    model = tanh_chain(2)
    seen = []
    pipeline = Pipeline(
        model, squared_error, OPTIMIZERS["adamw"], stages=2, micro_batches=3, strategy=FLUSH
    )

    summary = pipeline.train(batches, on_batch=lambda *facts: seen.append(facts))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    nothing = pipeline.train(batches[3:4])
    metrics = pipeline.evaluate(batches, {"l1": lambda a, b: (a - b).abs().sum()})

    assert num_valid == [7, 10, 4, 0, 5, 2]
    assert [records for _, _, records in seen] == num_valid
    assert (summary.num_records, summary.num_left_out) == (53, 53 - 28)
    total = sum(loss.item() * records for _, loss, records in seen)
    assert summary.loss == pytest.approx(total / 28, rel=1e-6)
    assert (nothing.loss, nothing.num_left_out) == (None, 10)
    assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())
    with torch.no_grad():
        kept = [part for batch in batches for part in kept_parts(batch, 1)]
        distance = sum((model(x) - y).abs().sum().item() for x, y in kept)
    assert metrics == {"l1": pytest.approx(distance / 28, rel=1e-6)}
    assert pipeline.evaluate(batches[3:4], {"l1": lambda a, b: (a - b).abs().sum()}) == {}


def test_a_count_is_asked_about_valid_targets_only():
    """The weights of micro-batches are the tokens of the records that are left."""
    x, y = made_batches([6])[0]
    valid = mask_of(6, 0, 1, 5)
    asked = []

    def count(targets):
        asked.append(len(targets))
        return 2 * len(targets)

    pipeline = Pipeline(
        tanh_chain(1), squared_error, OPTIMIZERS["sgd"], stages=1, micro_batches=3, count=count
    )
    pipeline.train([(x, y, valid)])

    assert asked == [2, 1]  # the first micro-batch has none


def test_tuples_of_tensors_leave_out_the_same_rows():
    """Of inputs, outputs and targets."""

    class Pair(nn.Module):
        def forward(self, pair):
            return pair[0] + 1, pair[1] + 2

    seen = []

    def loss(outputs, targets):
        seen.append((*outputs, *targets))
        return outputs[0].mean() + 0 * weight.sum()

    weight = nn.Parameter(torch.zeros(1))
    rows = torch.arange(4.0)
    pipeline = Pipeline(
        nn.Sequential(Pair()), loss, OPTIMIZERS["sgd"], stages=1, micro_batches=1, strategy=FLUSH
    )
    batch = Batch(4, (rows, 10 * rows), (rows, -rows), mask_of(4, 0), mask_of(4, 2))

    pipeline.train([batch])

    kept = torch.tensor([1.0, 3.0])
    for actual, expected in zip(seen[0], (kept + 1, 10 * kept + 2, kept, -kept), strict=True):
        assert torch.equal(actual, expected)


def test_an_output_that_has_not_one_row_a_record_is_refused():
    """Where targets are not valid, their rows cannot be found in it."""
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)),
        nn.functional.mse_loss,
        OPTIMIZERS["sgd"],
        stages=1,
        micro_batches=1,
    )
    batch = Batch(3, torch.ones(3, 2), torch.ones(3, 2), targets_valid=mask_of(3, 1))

    with pytest.raises((ModelError, StageError), match=r"got \[6\], expected 3 rows, one a record"):
        pipeline.train([batch])


def dropping_model():
    """Layers that draw random numbers and change in place."""
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(inplace=True), nn.Dropout(0.3)),
        nn.Sequential(nn.Linear(16, 12), nn.GELU(), nn.LayerNorm(12), nn.Dropout(0.2)),
        nn.Linear(12, 6),
    )


CASES = [(STASH, 3), (FORECAST, 2), (FORECAST, 4), (FLUSH, 3), (SPECTRAIN, 1)]


def train_all(num_stages, mesh):
    """Strategies in turn on a model with dropout: facts and weights of the stages here."""
    results = []
    for strategy, micro_batches in CASES:
        pipeline = Pipeline(
            dropping_model(),
            nn.functional.mse_loss,
            OPTIMIZERS["momentum"],
            stages=num_stages,
            micro_batches=micro_batches,
            strategy=strategy,
            seed=6,
            mesh=mesh,
        )

        def batches(pipeline=pipeline):
            first, last = pipeline.is_first, pipeline.is_last
            for number, batch in enumerate(masked_batches(torch.float32)):
                inputs = (batch.inputs, batch.inputs_valid) if first else (None, None)
                targets = (batch.targets, batch.targets_valid) if last else (None, None)
                if number != 1:  # a plain pair in between: no mask crosses
                    yield Batch(batch.num_records, inputs[0], targets[0], inputs[1], targets[1])
                else:
                    yield Batch(batch.num_records, inputs[0], targets[0])

        losses = []
        summary = pipeline.train(
            batches(), on_batch=lambda *facts, losses=losses: losses.append(facts)
        )
        metrics = pipeline.evaluate(batches(), {"l1": lambda a, b: (a - b).abs().sum()})
        pipeline.close()
        state = {key: tensor.numpy().copy() for key, tensor in pipeline.state_dict().items()}
        facts = [(number, loss.item(), records) for number, loss, records in losses]
        results.append((facts, summary.loss, summary.num_left_out, metrics, state))
    return results


def one_rank(rank, num_ranks):
    """What one process of the test does."""
    mesh = Mesh.from_environment(num_ranks)
    results = train_all(num_ranks, mesh)
    mesh.close()
    return results


@pytest.mark.parametrize("num_stages", [2, 3])
def test_processes_equal_the_simulator_bit_for_bit(num_stages):
    """Stage 0 alone knows of the inputs, the last alone of the targets."""
    simulated = train_all(num_stages, None)
    ranks = run_ranks(one_rank, num_stages)

    for case, expected, *actual in zip(CASES, simulated, *ranks, strict=True):
        assert actual[-1][:4] == expected[:4], case
        assert all(math.isfinite(loss) for _, loss, _ in expected[0])
        together = {key: array for rank in actual for key, array in rank[4].items()}
        assert together.keys() == expected[4].keys()
        assert all(numpy.array_equal(together[key], expected[4][key]) for key in together), case
