"""Runs a benchmark's own file once a rank, on this machine."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from headrace.runs.launch import KEEP_FREED_MEMORY

__all__ = ["start_ranks"]


def start_ranks(path: str, arguments: Sequence[str], num_processes: int) -> dict[str, Any]:
    """Starts `path arguments --worker` in so many processes of one thread each.

    Returns:
        What rank 0 printed in its last line, as JSON.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(num_processes),
    }
    shared |= KEEP_FREED_MEMORY  # what headrace's launcher sets; it helps the rivals too
    processes = [
        subprocess.Popen(
            [sys.executable, path, *arguments, "--worker"],
            env=os.environ | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            text=True,
        )
        for rank in range(num_processes)
    ]
    try:
        text, _ = processes[0].communicate()
        if any(process.wait(timeout=60) for process in processes):
            sys.exit("a process failed; its own message is above")
    finally:
        for process in processes:
            process.kill()
    measured: dict[str, Any] = json.loads(text.splitlines()[-1])
    return measured
