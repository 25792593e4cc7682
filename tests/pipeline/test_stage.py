"""One stage alone: what crosses a cut, whose error it is, which random numbers a layer draws."""

import pytest
import torch
from torch import nn

from headrace.errors import DataError, ModelError, StageError
from headrace.pipeline.graph import Layer
from headrace.pipeline.pipeline import Batch, Pipeline
from headrace.pipeline.stage import Stage, crossing_of, layer_seed
from headrace.pipeline.strategy import FLUSH

CPU = torch.device("cpu")


class Raises(nn.Module):
    """Fails on the micro-batch that holds a record above 100."""

    def forward(self, x):
        if x.max() > 100:
            raise RuntimeError("too hot")
        return x


def sgd(parameters):
    """Plain SGD."""
    return torch.optim.SGD(parameters, lr=0.1)


def pipeline_of(*layers, stages=2, micro_batches=2, loss=nn.functional.mse_loss):
    """A flushed pipeline."""
    return Pipeline(
        nn.Sequential(*layers),
        loss,
        sgd,
        stages=stages,
        micro_batches=micro_batches,
        strategy=FLUSH,
    )


def test_a_layers_error_says_where_it_was_raised():
    """Layer, kind and text of the error; stage, action and batch; the cause is chained."""
    pipeline = pipeline_of(nn.Linear(2, 2), nn.Linear(2, 2), nn.Identity(), Raises())
    good, bad = torch.zeros(4, 2), torch.tensor([[0.0], [0], [0], [1e6]]).expand(4, 2)

    with pytest.raises(StageError) as caught:
        pipeline.train([(good, good), (bad, good)])

    assert str(caught.value) == (
        "layer 3 (Raises) raised RuntimeError: too hot; in stage 1, action 1F3, batch 1"
    )
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_a_loss_that_is_no_scalar_is_refused():
    """The shape that came is named."""
    loss = lambda a, b: (a - b) ** 2  # noqa: E731
    pipeline = pipeline_of(nn.Linear(2, 2), nn.Linear(2, 2), loss=loss)

    with pytest.raises(ModelError, match=r"the loss: got \[2, 2\], expected a tensor of no dim"):
        pipeline.train([(torch.zeros(4, 2), torch.zeros(4, 2))])


def test_what_cannot_cross_a_cut():
    """A set at a cut is refused with the layer's name; inside a stage anything goes."""

    class Gives(nn.Module):
        def forward(self, x):
            return x, {"h"}

    class Takes(nn.Module):
        def forward(self, d):
            return d[0]

    batch = (torch.zeros(4, 2), torch.zeros(4, 2))
    layers = (nn.Linear(2, 2), Gives(), Takes(), nn.Linear(2, 2))
    with pytest.raises(ModelError, match="got set; in the output of layer 1; cut at another"):
        pipeline_of(*layers).train([batch])
    pipeline_of(*layers, stages=1).train([batch])


@pytest.mark.parametrize(
    "given, message",
    [
        (
            (torch.zeros(2, 2), torch.zeros(2), torch.tensor([True])),
            r"mask of valid inputs is wrong: got torch.bool\[1\], expected bool\[2\]",
        ),
        (
            Batch(2, torch.zeros(2, 2), torch.zeros(2), targets_valid=torch.ones(2)),
            r"mask of valid targets is wrong: got torch.float32\[2\], expected bool\[2\]",
        ),
        (
            Batch(2, torch.zeros(2, 2), torch.zeros(2), targets_valid=[True, False]),
            r"mask of valid targets is wrong: got list",
        ),
        ("text", "not a batch: got str, expected .inputs, targets., "),
        ((torch.zeros(3, 2), torch.zeros(2, 2)), "targets of a batch have another number of rec"),
        ((torch.zeros(0, 2), torch.zeros(0, 2)), "an empty batch: got 0 records; in batch 0"),
        (([1, 2], torch.zeros(2)), "made of tensors with the records along dimension 0: got list"),
        ((torch.zeros(()), torch.zeros(1)), "got a tensor of no dimension"),
        (Batch(3, torch.zeros(2, 2), torch.zeros(3)), "inputs of a batch have another number"),
    ],
)
def test_batches_that_are_none_are_refused(given, message):
    """The batch's number and what came are named."""
    with pytest.raises(DataError, match=message):
        pipeline_of(nn.Linear(2, 2), nn.Linear(2, 2)).train([given])


def test_targets_that_weigh_nothing_are_refused():
    """A count of zero would divide by it."""
    pipeline = Pipeline(
        nn.Sequential(nn.Linear(2, 2)),
        nn.functional.mse_loss,
        sgd,
        stages=1,
        micro_batches=2,
        count=lambda target: 0,
    )
    with pytest.raises(DataError, match="weigh nothing: got 0.0, expected a count above 0"):
        pipeline.train([(torch.zeros(4, 2), torch.zeros(4, 2))])


def test_count_weighs_the_loss_by_tokens():
    """A batch of padded sequences has the gradient of the mean over all its tokens."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 7))
    x, target = torch.randn(6, 5, 3), torch.randint(7, (6, 5))
    target[0, 1:] = target[3, 2:] = -100  # padding

    def loss(output, target):
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    plain = [p.detach().clone().requires_grad_() for p in model.parameters()]
    whole = (x @ plain[0].T + plain[1]) @ plain[2].T + plain[3]
    loss(whole, target).backward()
    pipeline = Pipeline(
        model,
        loss,
        sgd,
        stages=2,
        micro_batches=3,
        strategy=FLUSH,
        count=lambda target: int((target != -100).sum()),
    )
    pipeline.train([(x, target)])

    for parameter, start in zip(model.parameters(), plain, strict=True):
        torch.testing.assert_close(parameter.detach(), start.detach() - 0.1 * start.grad)


def test_tuples_of_inputs_and_targets():
    """A batch may hold several tensors; a layer then takes the tuple, the loss too."""

    class Sum(nn.Module):
        def forward(self, pair):
            return pair[0] + pair[1]

    pipeline = pipeline_of(
        Sum(), nn.Linear(2, 2), loss=lambda y, pair: ((y - pair[0]) * pair[1]).pow(2).mean()
    )
    four = torch.ones(4, 2)
    summary = pipeline.train([((four, four), (four, four))] * 3)

    assert summary.num_records == 12


def test_a_layer_draws_by_its_name_and_the_micro_batch():
    """The same layer of the same micro-batch draws the same numbers in any stage."""
    dropout = nn.Dropout(0.5)
    x = crossing_of(torch.ones(4, 50), CPU)
    drawn = {
        (name, i): Stage([Layer(name, dropout)], device=CPU, seed=3).forward(i, x, ()).tensors[0]
        for name in ("a", "b")
        for i in (0, 1)
    }
    again = Stage([Layer("z", dropout), Layer("b", nn.Identity())], device=CPU, seed=3)

    torch.manual_seed(layer_seed(3, "a", 1))
    assert torch.equal(drawn["a", 1], nn.functional.dropout(x.tensors[0], 0.5))
    assert len({tuple(value.flatten().tolist()) for value in drawn.values()}) == 4
    assert not torch.equal(again.forward(0, x, ()).tensors[0], drawn["a", 0])
