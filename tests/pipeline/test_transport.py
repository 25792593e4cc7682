"""What leaves a stage arrives as it left."""

import os
import signal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ModelError, PeerLostError, RunError
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.stage import Crossing
from headrace.pipeline.transport import Distributed, InProcess, decode, encode
from headrace.pipeline.values import TENSOR
from tests.processes import run_ranks

FORM = '["tuple",0,["dict",["x",1]],["plain",null]]'


def odd_tensors():
    """Tensors of every kind that a cut may see."""
    torch.manual_seed(7)
    base = torch.randn(6, 8)
    return (
        base,
        base.t(),
        base[1:5, ::2],
        torch.randn(1, 4).expand(3, 4),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(2.5, dtype=torch.float64),
        torch.zeros(0, 3),
        torch.tensor([True, False]),
        torch.arange(5),
        torch.arange(5, dtype=torch.uint8),
        torch.randn(3).bfloat16(),
        torch.randn(3).half(),
        torch.randn(3, dtype=torch.complex64),
        None,
    )


def as_left(sent, came):
    """Whether dtype, shape, strides and values are the same."""
    if sent is None or came is None:
        return sent is came
    return (
        sent.dtype == came.dtype
        and sent.shape == came.shape
        and sent.stride() == came.stride()
        and torch.equal(sent, came)
    )


def exchange(rank, num_ranks):
    """Stage 0 sends the tensors forward twice, stage 1 sends them back."""
    mesh = Mesh.from_environment(num_ranks)
    transport = Distributed(mesh)
    flags = tuple(tensor is not None and tensor.is_floating_point() for tensor in odd_tensors())
    mask = torch.tensor([True, False, True])
    crossing = Crossing(odd_tensors(), FORM, flags, 0.1, mask)
    for i in (3, 4):
        if rank == 0:
            transport.send(i, crossing, forward=True)
            came = transport.receive(i, forward=False)
            transport.delivered(i, forward=True)
        else:
            came = transport.receive(i, forward=True)
            transport.send(i, came, forward=False)
        assert came.has_gradient == flags and came.weight == 0.1 and came.form == FORM
        assert all(map(as_left, crossing.tensors, came.tensors))
        assert torch.equal(came.valid, mask)
    empty = Crossing((), valid=mask)
    if rank == 0:
        transport.send(5, empty, forward=True)
        transport.send(6, crossing._replace(valid=None), forward=True)
    else:
        assert transport.receive(5, forward=True).is_empty
        assert transport.receive(6, forward=True).valid is None
    transport.close()
    mesh.close()


def test_tensors_arrive_as_they_left_between_processes():
    """Any dtype, shape and strides, empty and absent ones, over gloo."""
    run_ranks(exchange, 2)


def test_tensors_arrive_as_they_left_within_a_process():
    """And no receiver's change in place reaches the sender."""
    channels = {}
    sender, receiver = InProcess(0, channels), InProcess(1, channels)
    sent = Crossing(odd_tensors(), FORM, (False,) * 14)
    sender.send(0, sent, forward=True)
    came = receiver.receive(0, forward=True)

    assert all(map(as_left, sent.tensors, came.tensors))
    came.tensors[0].zero_()
    assert sent.tensors[0].abs().sum() > 0


def begin_and_give_up(rank, num_ranks):
    """Stage 0 cannot send the second of two tensors, says goodbye if it may, and ends."""
    mesh = Mesh.from_environment(num_ranks)
    transport = Distributed(mesh)
    if rank == 0:
        with pytest.raises(PeerLostError):
            crossing = Crossing((torch.ones(3), torch.ones(3, dtype=torch.complex64).conj()))
            transport.send(0, crossing, forward=True)
        transport.abandon()
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(PeerLostError, match="stage 1 lost stage 0"):
        transport.receive(0, forward=True)


def test_half_a_message_is_followed_by_no_goodbye():
    """gloo ends a process that gets more bytes than it waits for; a lost connection it can take."""
    run_ranks(begin_and_give_up, 2, killed=[0])


def test_another_micro_batch_than_expected_is_an_error():
    """A schedule that both ends read otherwise is noticed."""
    channels = {}
    InProcess(0, channels).send(5, Crossing((torch.ones(1),), TENSOR, (False,)), forward=True)

    with pytest.raises(RunError, match="came in another order: got 5, expected 4"):
        InProcess(1, channels).receive(4, forward=True)


@given(
    micro_batch=st.integers(0, 2**62),
    weight=st.floats(allow_nan=False),
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=64),
    mask_records=st.integers(0, 9),
)
@settings(deadline=None)
def test_a_header_reads_back(micro_batch, weight, shapes, mask_records):
    """Numbers of 62 bits, any weight to the last bit, up to 64 tensors of up to 8 dimensions."""
    tensors = tuple(torch.empty(shape, device="meta") for shape in shapes)
    wants = tuple(number % 2 == 0 for number in range(len(shapes)))
    mask = torch.zeros(mask_records, dtype=torch.bool) if mask_records else None
    sent = Crossing(tensors, FORM, wants, weight, mask)

    number, crossing, layouts = decode(encode(micro_batch, sent))

    assert (0 if crossing.valid is None else len(crossing.valid)) == mask_records
    assert (number, crossing.weight, crossing.has_gradient) == (micro_batch, weight, wants)
    assert len(crossing.form) == len(FORM)
    assert layouts == [(t.dtype, tuple(t.shape), tuple(t.stride())) for t in tensors]


def test_what_a_header_cannot_hold_is_refused():
    """Too many tensors or dimensions, a dtype without a number, another version."""
    with pytest.raises(ModelError, match="too many tensors cross a cut: got 65, expected <= 64"):
        encode(0, Crossing((torch.ones(1),) * 65))
    with pytest.raises(ModelError, match="got torch.float32 of 9 dimensions"):
        encode(0, Crossing((torch.ones([1] * 9),)))
    with pytest.raises(ModelError, match="got torch.float8_e5m2 of 1 dim.* one of float32, float"):
        encode(0, Crossing((torch.ones(1).to(torch.float8_e5m2),)))
    header = encode(0, Crossing(()))
    header[0] = 99
    with pytest.raises(RunError, match="got header version 99, expected 3; install the same"):
        decode(header)
