"""A process that raises or is killed ends the others, which say whom they lost."""

import os
import signal
import time

import pytest
import torch
from torch import nn

from headrace.errors import HeadraceError, LaunchError, PeerLostError, StageError
from headrace.pipeline.mesh import Mesh
from headrace.pipeline.pipeline import Pipeline
from tests.processes import run_ranks


class Trips(nn.Module):
    """Raises, or kills its process, in its fifth pass."""

    def __init__(self, how):
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, x):
        self.calls += 1
        if self.calls == 5:
            if self.how == "raise":
                raise ZeroDivisionError("by accident")
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        return x


def train_until_it_breaks(rank, num_ranks, how, victim):
    """The error that this rank sees, and how long after the start."""
    mesh = Mesh.from_environment(num_ranks)
    layers = [nn.Linear(4, 4) for _ in range(num_ranks)]
    layers.insert(victim + 1, Trips(how))
    cuts = [k if k <= victim else k + 1 for k in range(1, num_ranks)]
    pipeline = Pipeline(
        nn.Sequential(*layers),
        nn.functional.mse_loss,
        lambda p: torch.optim.SGD(p, lr=0.1),
        stages=num_ranks,
        micro_batches=num_ranks,
        cuts=cuts,
        mesh=mesh,
    )
    started = time.monotonic()
    try:
        pipeline.train([(torch.zeros(8, 4), torch.zeros(8, 4))] * 100)
    except HeadraceError as error:
        return type(error).__name__, str(error), time.monotonic() - started


@pytest.mark.parametrize("victim", [0, 2])
def test_a_stage_that_raises_ends_its_neighbours(victim):
    """The raising rank has its own error, the others name the stage that they lost, in seconds."""
    outcomes = run_ranks(train_until_it_breaks, 3, "raise", victim)

    kind, message, _ = outcomes[victim]
    assert kind == StageError.__name__
    assert "raised ZeroDivisionError: by accident" in message
    assert f"in stage {victim}, action {victim}F4, batch 1" in message
    for rank in {0, 1, 2} - {victim}:
        kind, message, seconds = outcomes[rank]
        assert kind == PeerLostError.__name__
        assert f"stage {rank} lost stage" in message
        assert seconds < 10


def test_a_killed_stage_ends_its_neighbours():
    """SIGKILL in a forward pass: both neighbours know within seconds."""
    outcomes = run_ranks(train_until_it_breaks, 3, "kill", 1, killed=[1])

    assert outcomes[1] is None
    for rank in (0, 2):
        kind, message, seconds = outcomes[rank]
        assert kind == PeerLostError.__name__
        assert message.startswith(f"stage {rank} lost stage 1: got a closed connection")
        assert seconds < 10


def test_no_launcher_no_mesh(monkeypatch):
    """Outside a launcher the message says how to start."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(LaunchError, match="no RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT in the"):
        Mesh.from_environment(2)


def test_another_number_of_processes_than_stages(monkeypatch):
    """Both numbers and both remedies are named before anything connects."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "x")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "1")

    with pytest.raises(LaunchError, match="got 3 processes, expected 2, one a stage; start 2"):
        Mesh.from_environment(2)


def test_a_port_in_use_is_named(monkeypatch):
    """The address that could not be used stands in the message."""
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        for name, value in (
            ("RANK", "0"),
            ("WORLD_SIZE", "1"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", str(port)),
        ):
            monkeypatch.setenv(name, value)

        with pytest.raises(LaunchError, match=f"could not meet at 127.0.0.1:{port}.*in use"):
            Mesh.from_environment(1)
