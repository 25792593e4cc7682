"""Runs a function of a test in several real processes over gloo."""

import multiprocessing
import os
import socket
import traceback


def free_port():
    """A port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run_ranks(function, num_ranks, *arguments, killed=(), timeout_s=120):
    """Calls function(rank, num_ranks, *arguments) in as many processes; returns what each returned,
    which must hold no tensors (their memory would go with the process); None for those that are
    to be killed.

    Raises RuntimeError with the traceback of the first that failed.
    """
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    port = free_port()
    processes = [
        context.Process(
            target=_rank, args=(function, rank, num_ranks, port, results, arguments), daemon=True
        )
        for rank in range(num_ranks)
    ]
    for process in processes:
        process.start()
    found = dict.fromkeys(killed)
    try:
        while len(found) < num_ranks:
            if not results._reader.poll(timeout_s):
                raise RuntimeError(f"ranks {sorted(set(range(num_ranks)) - set(found))} hang")
            rank, result, error = results.get()
            if error:
                raise RuntimeError(f"rank {rank} failed:\n{error}")
            found[rank] = result
        for process in processes:
            process.join(timeout_s)
    finally:
        for process in processes:
            process.kill()
    for rank, process in enumerate(processes):
        assert process.exitcode == (-9 if rank in killed else 0)
    return [found[rank] for rank in range(num_ranks)]


def _rank(function, rank, num_ranks, port, results, arguments):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(num_ranks),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    try:
        results.put((rank, function(rank, num_ranks, *arguments), None))
    except BaseException:
        results.put((rank, None, traceback.format_exc()))
        raise
