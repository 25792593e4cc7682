"""Look-ahead against the real optimizer: a copy of it, stepped on the same gradients."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, Adam, AdamW, RMSprop

from headrace.errors import StrategyError
from headrace.pipeline.lookahead import (
    can_forecast,
    constant_velocity,
    displacement,
    keeps_last_update,
    last_update,
    predicted,
    repeated,
    require_steps,
)

SHAPES = ((5, 3), (7,), ())
ROOM = {torch.float32: 1e-6, torch.float64: 2e-15}

dtypes = st.sampled_from([torch.float32, torch.float64])
decays = st.sampled_from([0.0, 0.01, 0.3])
rates = st.sampled_from([1e-3, 0.05])
flags = st.booleans()


@st.composite
def sgds(draw):
    """SGD in all its forms."""
    momentum = draw(st.sampled_from([0.0, 0.5, 0.9]))
    nesterov = draw(flags) if momentum else False
    return SGD, {
        "lr": draw(rates),
        "momentum": momentum,
        "nesterov": nesterov,
        "dampening": 0.0 if nesterov else draw(st.sampled_from([0.0, 0.1, 1.0])),
        "weight_decay": draw(decays),
        "maximize": draw(flags),
    }


@st.composite
def adams(draw):
    """Adam with either kind of weight decay, and AdamW."""
    kind = draw(st.sampled_from([Adam, AdamW]))
    decoupled = {"decoupled_weight_decay": draw(flags)} if kind is Adam else {}
    return kind, decoupled | {
        "lr": draw(rates),
        "betas": draw(st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.95)])),
        "eps": draw(st.sampled_from([1e-8, 1e-3])),
        "weight_decay": draw(decays),
        "amsgrad": draw(flags),
        "maximize": draw(flags),
    }


optimizers = st.one_of(sgds(), adams())


def noise(generator, dtype, shapes=SHAPES):
    """One tensor of normal values for each shape."""
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]


def started(kind, options, dtype, previous, seed=0):
    """An optimizer after some real steps, and the generator that made them."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [nn.Parameter(value) for value in noise(generator, dtype)]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 2 * options["lr"]}]
    optimizer = kind(groups, **options)
    for _ in range(previous):
        step(optimizer, noise(generator, dtype))
    return optimizer, generator


def parameters_of(optimizer):
    """The parameters in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def values_of(optimizer):
    """Copies of the parameters' values."""
    return [parameter.detach().clone() for parameter in parameters_of(optimizer)]


def step(optimizer, gradients):
    """A real step on the given gradients."""
    for parameter, gradient in zip(parameters_of(optimizer), gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.clone()
    optimizer.step()


def really_stepped(optimizer, gradients):
    """What a copy of the real optimizer makes of its parameters."""
    clone = copy.deepcopy(optimizer)
    for given_gradients in gradients:
        step(clone, given_gradients)
    return values_of(clone)


def assert_near(found, expected):
    """Equal within a few units in the last place of the largest value."""
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        room = ROOM[one.dtype] * max(1.0, float(other.abs().max()))
        assert torch.allclose(one, other, rtol=ROOM[one.dtype], atol=room), (
            (one - other).abs().max()
        )


@settings(max_examples=300, deadline=None)
@given(optimizers, dtypes, st.integers(0, 3), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_prediction_is_what_the_real_optimizer_does(choice, dtype, previous, steps, seed):
    """Every form of every optimizer, before and after its first step, over 1 to 4 steps."""
    optimizer, generator = started(*choice, dtype, previous, seed)
    gradients = [noise(generator, dtype) for _ in range(steps)]
    expected = really_stepped(optimizer, gradients)
    assert_near(predicted(optimizer, gradients), expected)
    buffers = [torch.full_like(value, torch.nan) for value in expected]
    for written, buffer in zip(predicted(optimizer, gradients, out=buffers), buffers, strict=True):
        assert written is buffer
    assert_near(buffers, expected)
    before = values_of(optimizer)
    moves = [after - start for after, start in zip(expected, before, strict=True)]
    for found, move, start in zip(displacement(optimizer, gradients), moves, before, strict=True):
        room = 2 * ROOM[dtype] * max(1.0, float(start.abs().max()))
        assert torch.allclose(found, move, rtol=0, atol=room)


@settings(max_examples=60, deadline=None)
@given(optimizers, st.integers(0, 2), st.lists(st.lists(flags, min_size=3, max_size=3), max_size=3))
def test_a_missing_gradient_leaves_the_parameter_alone(choice, previous, present):
    """None in a step skips decay, momentum and the count of steps, as in torch."""
    optimizer, generator = started(*choice, torch.float64, previous)
    gradients = [
        [value if keep else None for value, keep in zip(values, row, strict=True)]
        for row in present
        for values in [noise(generator, torch.float64)]
    ]
    assert_near(predicted(optimizer, gradients), really_stepped(optimizer, gradients))
    moved = [any(row[index] for row in present) for index in range(3)]
    assert [move is not None for move in displacement(optimizer, gradients)] == moved


@settings(max_examples=60, deadline=None)
@given(optimizers, st.integers(0, 2), st.integers(1, 4))
def test_zero_gradients_let_momentum_decay(choice, previous, steps):
    """The zero gradient assumption is the same function with zeros given."""
    optimizer, _ = started(*choice, torch.float64, previous)
    zeros = [torch.zeros_like(parameter) for parameter in parameters_of(optimizer)]
    expected = really_stepped(optimizer, [zeros] * steps)
    assert_near(predicted(optimizer, [zeros] * steps), expected)


@settings(max_examples=60, deadline=None)
@given(optimizers, st.integers(0, 3), st.integers(1, 3))
def test_nothing_is_mutated(choice, previous, steps):
    """Parameters, state, gradients and hyper-parameters are bit for bit what they were."""
    optimizer, generator = started(*choice, torch.float32, previous)
    gradients = [noise(generator, torch.float32) for _ in range(steps)]
    before = copy.deepcopy((optimizer.state_dict(), values_of(optimizer), gradients))
    num_states = len(optimizer.state)
    found = predicted(optimizer, gradients)
    displacement(optimizer, gradients)
    last_update(optimizer)
    constant_velocity(parameters_of(optimizer), gradients[0], steps)
    after = (optimizer.state_dict(), values_of(optimizer), gradients)
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert len(optimizer.state) == num_states
    storages = {parameter.data_ptr() for parameter in parameters_of(optimizer)}
    assert not storages & {tensor.data_ptr() for tensor in found}
    assert not any(tensor.requires_grad for tensor in found)


def test_one_gradient_given_for_several_steps():
    """A gradient object that stands for several steps counts once for each of them."""
    options = {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}
    optimizer, generator = started(SGD, options, torch.float64, 2)
    first, again = noise(generator, torch.float64), noise(generator, torch.float64)
    gradients = [first, again, again, first]
    assert_near(predicted(optimizer, gradients), really_stepped(optimizer, gradients))


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_a_learning_rate_may_be_a_tensor(kind):
    """As torch allows it, and as it stands at the time of the call."""
    options = {"lr": torch.tensor(0.05), "weight_decay": 0.1}
    options |= {"momentum": 0.9} if kind is SGD else {}
    optimizer, generator = started(kind, options, torch.float32, 1)
    gradients = [noise(generator, torch.float32) for _ in range(2)]
    assert_near(predicted(optimizer, gradients), really_stepped(optimizer, gradients))
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
    assert_near(predicted(optimizer, gradients), really_stepped(optimizer, gradients))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_other_implementations_of_the_step(kind, fused):
    """torch's fused and multi-tensor kernels take the same steps."""
    options = {"lr": 0.05, "weight_decay": 0.1, "fused": fused, "foreach": not fused}
    options |= {"momentum": 0.9} if kind is SGD else {}
    optimizer, generator = started(kind, options, torch.float32, 2)
    gradients = [noise(generator, torch.float32) for _ in range(3)]
    assert_near(predicted(optimizer, gradients), really_stepped(optimizer, gradients))


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_complex_parameters(kind):
    """Adam treats a complex number as two real ones."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(4, 3, generator=generator, dtype=torch.complex128) for _ in range(4)]
    optimizer = kind([nn.Parameter(values[0])], lr=0.05, weight_decay=0.1)
    step(optimizer, values[1:2])
    gradients = [values[2:3], values[3:4]]
    torch.testing.assert_close(
        predicted(optimizer, gradients),
        really_stepped(optimizer, gradients),
        rtol=1e-14,
        atol=1e-14,
    )


def test_dtype_and_strides_are_kept():
    """A bfloat16 parameter in channels-last order stays one."""
    value = torch.randn(2, 3, 4, 5, dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    for optimizer in (SGD([nn.Parameter(value)], momentum=0.9), AdamW([nn.Parameter(value)])):
        (found,) = predicted(optimizer, [[torch.ones_like(value)]])
        assert found.dtype == torch.bfloat16
        assert found.stride() == value.stride()


def test_no_steps_is_no_move():
    """Without gradients the parameters stay where they are."""
    optimizer, _ = started(Adam, {"lr": 0.05}, torch.float32, 1)
    assert_near(predicted(optimizer, []), values_of(optimizer))
    assert displacement(optimizer, []) == [None] * 3


def test_a_frozen_parameter_keeps_its_value():
    """A parameter without gradients is returned as a copy that later steps do not touch."""
    parameter = nn.Parameter(torch.ones(3), requires_grad=False)
    optimizer = SGD([parameter], lr=0.1, momentum=0.9, weight_decay=0.1)
    (found,) = predicted(optimizer, [[None]])
    assert torch.equal(found, torch.ones(3))
    with torch.no_grad():
        parameter.zero_()
    assert torch.equal(found, torch.ones(3))


def test_the_same_number_of_gradients_as_parameters_is_needed():
    """A step that gives too few gradients is refused."""
    optimizer, generator = started(SGD, {"lr": 0.05}, torch.float32, 0)
    with pytest.raises(StrategyError, match="one gradient for each parameter.*got 2, expected 3"):
        predicted(optimizer, [noise(generator, torch.float32)[:2]])


class Careful(SGD):
    """A subclass, which may step as it likes."""


OTHERS = {
    "subclass": lambda groups: Careful(groups, lr=0.05, momentum=0.9),
    "rmsprop": lambda groups: RMSprop(groups, lr=0.01, momentum=0.5),
    "nadam": lambda groups: torch.optim.NAdam(groups, lr=0.01),
    "radam": lambda groups: torch.optim.RAdam(groups, lr=0.01),
    "adafactor": lambda groups: torch.optim.Adafactor(groups, lr=0.01),
    "adagrad": lambda groups: torch.optim.Adagrad(groups, lr=0.01),
    "adamax": lambda groups: torch.optim.Adamax(groups, lr=0.01),
    "rprop": lambda groups: torch.optim.Rprop(groups, lr=0.01),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("is_started", [True, False], ids=["started", "fresh"])
def test_a_copy_of_any_other_optimizer_is_stepped(name, is_started):
    """Three steps ahead are the very weights that the optimizer comes to, and it is not touched by
    looking; with groups, a learning rate scheduler, and a parameter without gradients."""
    generator = torch.Generator().manual_seed(8)
    shapes = [(3, 4), (4,), (2, 2)]
    parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer = OTHERS[name]([{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.02}])
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)  # it replaces optimizer.step
    assert not can_forecast(optimizer)

    def step(gradients):
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        optimizer.step()

    def draw():
        return [torch.randn(shape, generator=generator) for shape in shapes[:2]] + [None]

    for _ in range(2 * is_started):
        step(draw())
    gradients = [draw() for _ in range(3)]
    before = [parameter.detach().clone() for parameter in parameters]
    state = copy.deepcopy(optimizer.state_dict())

    found = predicted(optimizer, [[g[0], [(0.5, g[1]), (0.5, g[1])], None] for g in gradients])

    assert all(map(torch.equal, before, parameters))
    torch.testing.assert_close(optimizer.state_dict(), state, rtol=0, atol=0)
    for known in gradients:
        step(known)
    assert all(map(torch.equal, found, parameters))
    assert last_update(optimizer) is None


def test_an_optimizer_that_calls_the_model_is_refused_by_name():
    """LBFGS needs a closure; a stage has none to give."""
    with pytest.raises(StrategyError, match=r"cannot step one stage of it: got torch.*\.LBFGS"):
        require_steps(torch.optim.LBFGS([nn.Parameter(torch.ones(2))]))


@pytest.mark.parametrize("kind", [SGD, Adam, AdamW])
def test_closed_forms(kind):
    """Exactly the three classes: a subclass is another optimizer."""
    optimizer = kind([nn.Parameter(torch.ones(2))], lr=0.1)
    assert can_forecast(optimizer)
    require_steps(optimizer)


def test_constant_velocity_repeats_the_last_update():
    """W + steps x update, in new tensors."""
    weights, update = torch.tensor([1.0, 2.0]), torch.tensor([0.25, -0.5])
    found = constant_velocity([weights, weights], [update, None], 3)
    assert torch.equal(found[0], torch.tensor([1.75, 0.5]))
    assert torch.equal(found[1], weights) and found[1].data_ptr() != weights.data_ptr()
    (still,) = constant_velocity([weights], [update], 0)
    assert torch.equal(still, weights) and still.data_ptr() != weights.data_ptr()


@settings(max_examples=200, deadline=None)
@given(optimizers, dtypes, st.integers(1, 3))
def test_last_update_is_the_real_difference(choice, dtype, steps):
    """Where the state tells the last update, it is what a real step added to the parameters."""
    kind, options = choice
    optimizer, generator = started(kind, options, dtype, steps - 1)
    before = values_of(optimizer)
    step(optimizer, noise(generator, dtype))
    found = last_update(optimizer)
    if kind is SGD and (not options["momentum"] or options["nesterov"]):
        assert found is None
        return
    for update, old, new in zip(found, before, values_of(optimizer), strict=True):
        room = 4 * ROOM[dtype] * max(1.0, float(old.abs().max()))
        assert torch.allclose(update, new - old, rtol=0, atol=room)


@pytest.mark.parametrize("kind", [SGD, Adam])
def test_last_update_before_the_first_step(kind):
    """A parameter that was never stepped has no last update; it is not yet a zero."""
    options = {"lr": 0.1} | ({"momentum": 0.9} if kind is SGD else {})
    optimizer, generator = started(kind, options, torch.float32, 0)
    assert last_update(optimizer) == [None] * 3
    step(optimizer, [noise(generator, torch.float32)[0], None, None])
    assert [update is None for update in last_update(optimizer)] == [False, True, True]


def test_last_update_where_decay_forgets_the_weights():
    """A decoupled decay of the whole weight leaves nothing to tell the update by."""
    optimizer, _ = started(AdamW, {"lr": 0.5, "weight_decay": 2.0}, torch.float32, 1)
    assert last_update(optimizer) is None


@settings(max_examples=40, deadline=None)
@given(choice=st.one_of(sgds(), adams()), dtype=dtypes, steps=st.integers(0, 3))
def test_repeated_is_the_real_difference_as_often(choice, dtype, steps):
    """Read off the state, it is W + steps x (W now - W before), for those that keep it."""
    optimizer, generator = started(*choice, dtype, previous=2)
    before = values_of(optimizer)
    step(optimizer, noise(generator, dtype))
    now = values_of(optimizer)

    if not keeps_last_update(optimizer):
        assert choice[0] is SGD and (not choice[1]["momentum"] or choice[1]["nesterov"])
        return
    out = [torch.full_like(p, 7.0) for p in now]
    found = repeated(optimizer, steps, out)

    assert all(one is other for one, other in zip(found, out, strict=True))
    for one, new, old in zip(found, now, before, strict=True):
        room = 12 * ROOM[dtype] * max(1.0, float(old.abs().max()))
        assert torch.allclose(one, new + steps * (new - old), rtol=0, atol=room)


@settings(max_examples=30, deadline=None)
@given(choice=st.one_of(sgds(), adams()), previous=st.integers(0, 2))
def test_a_sum_of_gradients_may_be_given_unsummed(choice, previous):
    """The same as the gradient 1.5 a + 0.25 b, then b."""
    optimizer, generator = started(*choice, torch.float64, previous)
    a, b = noise(generator, torch.float64), noise(generator, torch.float64)
    pairs = list(zip(a, b, strict=True))

    found = predicted(optimizer, [[[(1.5, x), (0.25, y)] for x, y in pairs], b])

    assert_near(found, predicted(optimizer, [[1.5 * x + 0.25 * y for x, y in pairs], b]))
