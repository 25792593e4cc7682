"""Stages in real processes over gloo, against the simulator."""

import numpy
import pytest
import torch
from torch import nn

from headrace.errors import DataError, ScheduleError
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.strategy import STRATEGIES
from tests.processes import run_ranks

CASES = [
    (name, schedule, micro_batches)
    for name, strategy in STRATEGIES.items()
    for schedule in strategy.schedules
    for micro_batches in ((4,) if schedule == "async_eager_1f1b" else (1, 4))
]


class Halves(nn.Module):
    """Gives two tensors, one of them integers that no gradient reaches."""

    def forward(self, x):
        return x, (x > 0).long()


class Joined(nn.Module):
    """Takes what Halves gives, through a transposed, strided tensor."""

    def forward(self, pair):
        x, signs = pair
        return (x * signs).t()


class Turned(nn.Module):
    """Turns it back."""

    def forward(self, x):
        return x.t()


def make_model():
    """Ten layers with dropout, buffers, tuples and strides at the cuts."""
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Linear(6, 16),
        Halves(),
        Joined(),
        Turned(),
        nn.Sequential(nn.LayerNorm(16), nn.Dropout(0.3)),
        nn.ReLU(inplace=True),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 6),
    )


def make_batches(sizes):
    """Pairs of inputs and targets."""
    generator = torch.Generator().manual_seed(4)
    return [
        (torch.randn(size, 6, generator=generator), torch.randn(size, 6, generator=generator))
        for size in sizes
    ]


def train_all(num_stages, mesh):
    """Every strategy and schedule in turn: losses, evaluation and weights of the stages here."""
    results = []
    for name, schedule, micro_batches in CASES:
        model = make_model()
        pipeline = Pipeline(
            model,
            nn.functional.mse_loss,
            lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
            stages=num_stages,
            micro_batches=micro_batches,
            strategy=STRATEGIES[name],
            schedule=schedule,
            segment_batches=5,
            seed=6,
            mesh=mesh,
        )
        losses = []

        def batches(sizes, pipeline=pipeline):
            for x, y in make_batches(sizes):
                yield Batch(
                    len(x), x if pipeline.is_first else None, y if pipeline.is_last else None
                )

        summary = pipeline.train(
            batches([8] * 7 + [3]), on_batch=lambda *facts, losses=losses: losses.append(facts)
        )
        metrics = pipeline.evaluate(batches([20, 2]), {"l1": lambda a, b: (a - b).abs().sum()})
        pipeline.train(batches([8] * 2))
        pipeline.close()
        state = {key: tensor.numpy().copy() for key, tensor in pipeline.state_dict().items()}
        facts = [(number, loss.item(), records) for number, loss, records in losses]
        results.append((facts, summary.loss, metrics, state))
    return results


def one_rank(rank, num_ranks, work):
    """What one process of a test does."""
    mesh = Mesh.from_environment(num_ranks)
    results = work(num_ranks, mesh)
    mesh.close()
    return results


SLOW = pytest.mark.slow


@pytest.mark.parametrize("num_stages", [1, *(pytest.param(n, marks=SLOW) for n in (2, 3)), 4])
def test_distributed_equals_the_simulator_bit_for_bit(num_stages):
    """Every strategy, schedule and number of stages: losses, metrics, weights, buffers."""
    simulated = train_all(num_stages, None)
    ranks = run_ranks(one_rank, num_stages, train_all)

    for case, expected, *actual in zip(CASES, simulated, *ranks, strict=True):
        losses, mean, metrics, state = expected
        assert actual[-1][:3] == (losses, mean, metrics), case
        assert len(losses) == 8
        together = {key: array for rank in actual for key, array in rank[3].items()}
        assert together.keys() == state.keys()
        assert all(numpy.array_equal(together[key], state[key]) for key in state), case


def stepped_and_trained(num_stages, mesh):
    """The same batches through step and drain, and through train: losses and weights."""
    found = []
    for strategy in ("FORECAST", "SPECTRAIN", "FLUSH", "DOUBLE_BUFFER"):
        for does_step in (True, False):
            pipeline = Pipeline(
                make_model(),
                nn.functional.mse_loss,
                lambda p: torch.optim.AdamW(p, lr=0.05),
                stages=num_stages,
                micro_batches=2,
                strategy=STRATEGIES[strategy],
                segment_batches=4,
                seed=6,
                mesh=mesh,
            )
            losses = []
            for _epoch in range(2):
                batches = make_batches([8] * 5 + [3])
                if not does_step:
                    pipeline.train(batches, lambda *facts, losses=losses: losses.append(facts[1]))
                    continue
                for x, y in batches:
                    inner = not (pipeline.is_first or pipeline.is_last)
                    losses += pipeline.step(None if inner else (x, y))
                losses += pipeline.drain()
            pipeline.close()
            state = {key: tensor.numpy().copy() for key, tensor in pipeline.state_dict().items()}
            found.append((strategy, [loss.item() for loss in losses], state))
    return found


@pytest.mark.parametrize("num_stages", [1, 3])
def test_steps_are_training_bit_for_bit(num_stages):
    """step after step and drain, in processes and in the simulator: the losses and weights of
    train, with drains at the ends of segments and epochs."""
    alone = stepped_and_trained(num_stages, None)
    ranks = run_ranks(one_rank, num_stages, stepped_and_trained) if num_stages > 1 else [alone]

    for stepped, trained in zip(alone[::2], alone[1::2], strict=True):
        assert stepped[1] == trained[1] and len(stepped[1]) == 12
        assert all(numpy.array_equal(stepped[2][key], trained[2][key]) for key in trained[2])
    for number, (_, losses, state) in enumerate(alone):
        assert ranks[-1][number][1] == losses
        together = {key: array for rank in ranks for key, array in rank[number][2].items()}
        assert together.keys() == state.keys()
        assert all(numpy.array_equal(together[key], state[key]) for key in state)


def test_what_is_in_flight_is_not_looked_at():
    """Evaluation, training and weights wait for the drain; an error ends the steps."""
    pipeline = Pipeline(
        make_model(),
        nn.functional.mse_loss,
        lambda p: torch.optim.SGD(p, lr=0.05),
        stages=2,
        micro_batches=2,
    )
    assert pipeline.drain() == []
    (batch,) = make_batches([8])
    known = pipeline.step(batch)
    for look in (
        pipeline.state_dict,
        lambda: pipeline.evaluate([batch], {}),
        lambda: pipeline.train([batch]),
    ):
        with pytest.raises(ScheduleError, match=r"are in flight; call drain\(\) on every process"):
            look()
    assert len(known + pipeline.drain()) == 1
    assert pipeline.state_dict()
    with pytest.raises(DataError, match="not a batch: got str"):
        pipeline.step("nonsense")
    assert pipeline.drain() == []
