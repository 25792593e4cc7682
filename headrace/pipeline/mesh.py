"""The processes of a run as stages, over torch.distributed."""

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, final

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from headrace.errors import LaunchError
from headrace.pipeline.prompt import prompt_threads

__all__ = ["Mesh"]

TIMEOUT = timedelta(minutes=30)


@final
class Mesh:
    """One process a stage; rank k is stage k.

    On CUDA the device is that of LOCAL_RANK and tensors go over NCCL (written, not yet run on a
    GPU); elsewhere over gloo.

    Args:
        store: where small facts are shared.
        stage: which stage this process is.
        num_stages: n.
        device: where this stage computes.
    """

    def __init__(self, store: Store, stage: int, num_stages: int, device: torch.device) -> None:
        self.stage = stage
        self.num_stages = num_stages
        self.device = device
        self._store = PrefixStore("headrace", store)
        on_cuda = device.type == "cuda"
        self._groups: dict[bool, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
        for forward in (True, False):  # every process makes every group, in the same order
            with prompt_threads():
                headers = dist.new_group(backend="gloo", timeout=TIMEOUT)
            payloads = dist.new_group(backend="nccl", timeout=TIMEOUT) if on_cuda else headers
            self._groups[forward] = (headers, payloads)

    @classmethod
    def from_environment(cls, num_stages: int | None = None) -> "Mesh":
        """Joins the processes that torchrun, or headrace itself, has started.

        Args:
            num_stages: how many there must be; None takes as many as there are.

        Raises:
            LaunchError: not started by a launcher, another number of processes than stages, an
                address that cannot be used, or peers that do not come.
        """
        missing = [
            name
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
            if name not in os.environ
        ]
        if missing:
            raise LaunchError(
                "this process was not started by a launcher",
                got=f"no {', '.join(missing)} in the environment",
                remedy="start it with `headrace train` or `torchrun -m headrace train`",
            )
        world_size = int(os.environ["WORLD_SIZE"])
        if num_stages is not None and world_size != num_stages:
            raise LaunchError(
                "another number of processes than stages",
                got=f"{world_size} processes",
                expected=f"{num_stages}, one a stage",
                remedy=f"start {num_stages} processes, or ask for --stages {world_size}",
            )
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        try:
            store, rank, _ = next(iter(rendezvous("env://", timeout=TIMEOUT)))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=rank,
                world_size=world_size,
                timeout=TIMEOUT,
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise LaunchError(
                f"the processes could not meet at {address}",
                got=str(error).splitlines()[0],
                remedy="is the port in use? Give another MASTER_PORT, or none at all",
            ) from error
        return cls(store, rank, world_size, device)

    def groups(self, *, forward: bool) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """The groups of one direction: that of headers, that of tensors."""
        return self._groups[forward]

    def publish(self, key: str, value: Any) -> None:
        """Lets every process read a small fact (anything that JSON holds)."""
        self._store.set(key, json.dumps(value))

    def read(self, key: str) -> Any:
        """A fact that some process publishes; waits for it."""
        return json.loads(self._store.get(key))

    def read_if_published(self, key: str) -> Any:
        """A fact, or None where it has not been published."""
        return self.read(key) if self._store.check([key]) else None

    def from_stage(self, stage: int, key: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives on one stage, on every stage."""
        if self.stage == stage:
            self.publish(key, make())
        return self.read(key)

    def barrier(self) -> None:
        """Waits until every process is here."""
        dist.barrier()

    def close(self) -> None:
        """Leaves torch.distributed."""
        dist.destroy_process_group()
