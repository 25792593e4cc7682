"""Starts one process a stage with torch.distributed's own launcher, and says why one ended.

The processes run `python -m headrace ...` with the variables that torchrun sets, so a run that was
started here and one under `torchrun -m headrace ...` take the same path. Whatever goes wrong in a
process is written to the file that the launcher names (TORCHELASTIC_ERROR_FILE); of all that is
reported, the launcher shows the cause and not what followed from it.
"""

import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headrace import errors
from headrace.errors import HeadraceError, LaunchError, PeerLostError

__all__ = [
    "ERROR_FILE",
    "End",
    "KEEP_FREED_MEMORY",
    "cause",
    "follow_launcher",
    "is_launched",
    "is_launched_by_headrace",
    "launch",
    "reporting",
]

LAUNCHER = "HEADRACE_LAUNCHER"
"""Names the process that started this one, in the environment of the processes started here."""

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
"""Names the file where the launcher looks for what a process says when it fails."""
KEEP_FREED_MEMORY: Mapping[str, str] = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
}
"""For glibc: freed tensors' memory else goes back to the system, and costs page faults anew."""
WAIT_FOR_CAUSE_S = 7.0
"""A process whose peer is gone lets the peer's own error be seen first: the peer may wait for its
channels twice 3 s before it reports. The launcher, which then ends all, does not wait."""
WAIT_FOR_CLOSING_S = 3.0
"""A process that has failed may close its files and channels for so long."""
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Signals by which systems end a job; torch's launcher answers them."""


def is_launched() -> bool:
    """Whether a launcher has started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_launched_by_headrace() -> bool:
    """Whether that launcher is `launch`, which shows what went wrong."""
    return is_launched() and LAUNCHER in os.environ


def follow_launcher() -> None:
    """Ends this process when the launcher that started it is gone, in whatever it is doing then."""
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="headrace-follow-launcher", daemon=True).start()


# What a process says when it fails


@contextmanager
def reporting(folder: Path | None = None) -> Iterator[None]:
    """Reports what is raised inside to the launcher at once, before anything else is closed.

    Args:
        folder: where the whole traceback goes, as `error-stage-K.txt`.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, SystemExit):
            pass  # an end, not an error: help, or what the command line has said already
        elif ERROR_FILE in os.environ and not Path(os.environ[ERROR_FILE]).exists():
            _report(error, folder)
            if isinstance(error, PeerLostError):
                time.sleep(WAIT_FOR_CAUSE_S)
            _exit_soon()
        elif folder is not None and isinstance(error, Exception):
            _note_traceback(error, folder, 0)
        raise


def _exit_soon() -> None:
    """Ends this process even where closing its channels hangs."""
    timer = threading.Timer(WAIT_FOR_CLOSING_S, os._exit, args=[1])
    timer.daemon = True
    timer.start()


def _report(error: BaseException, folder: Path | None) -> None:
    """Writes an error in the form that torch.distributed's launchers read, and more for ours."""
    if folder is not None and isinstance(error, Exception):
        _note_traceback(error, folder, int(os.environ.get("RANK", "0")))
    is_ours = isinstance(error, HeadraceError)
    text = str(error) if is_ours else f"{type(error).__name__}: {error}".removesuffix(": ")
    # torchrun knows whole seconds, and calls the first the cause
    seconds = math.ceil(time.time()) if isinstance(error, PeerLostError) else int(time.time())
    report = {
        "message": {
            "message": text,
            "extraInfo": {"py_callstack": text, "timestamp": str(seconds)},
        },
        "kind": type(error).__name__ if is_ours else "LaunchError",
        "is_ours": is_ours,
        "notes": getattr(error, "__notes__", []),
        "time": time.time(),
    }
    Path(os.environ[ERROR_FILE]).write_text(json.dumps(report))


def _note_traceback(error: Exception, folder: Path, stage: int) -> None:
    """Adds to the error where it was raised, in short, and where the whole traceback is."""
    origin = error.__cause__ if isinstance(error, HeadraceError) else error
    if origin is None or isinstance(error, errors.InputError):
        return
    lines = traceback.format_exception(error)
    file = folder / f"error-stage-{stage}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(lines))
    except OSError:
        return
    last = traceback.extract_tb(origin.__traceback__)[-1:]
    error.add_note(
        "".join(traceback.format_list(last)).rstrip()
        + f"\n{type(origin).__name__}: {origin}\nThe whole traceback is in {file}"
    )


# What the launcher makes of it


@dataclass(frozen=True)
class End:
    """How a process ended.

    Args:
        stage: which.
        process: its number in the system.
        exit_code: its exit status; a signal that ended it, as a negative number.
        report: what it wrote of its error.
    """

    stage: int
    process: int
    exit_code: int
    report: Mapping[str, object] | None = None


def cause(ends: Sequence[End]) -> HeadraceError:
    """The error that explains why the processes ended.

    Killed processes come first, then what was reported, the earliest first; a lost peer and a
    SIGTERM (the launcher ends the others with it) explain something only where nothing else does.
    """
    return _error_of(min(ends, key=_rank))


def _rank(end: End) -> tuple[int, float]:
    """Sorts the ends of processes from cause to consequence."""
    if end.report is not None:
        is_consequence = end.report["kind"] == "PeerLostError"
        return (5 if is_consequence else 1), float(str(end.report["time"]))
    if end.exit_code == -signal.SIGTERM:
        return 4, 0.0
    if end.exit_code == -signal.SIGABRT:  # a C++ library may give up so when its peer is gone
        return 2, 0.0
    return (0 if end.exit_code < 0 else 3), 0.0


def _error_of(end: End) -> HeadraceError:
    """A process's end as the error that it is."""
    process = f"stage {end.stage} (process {end.process})"
    if end.report is not None:
        message = end.report["message"]
        text = message["message"] if isinstance(message, dict) else str(message)
        if not end.report["is_ours"]:
            text = f"{process} failed: {text}"
        error: HeadraceError = getattr(errors, str(end.report["kind"]), LaunchError)(text)
        notes = end.report["notes"]
        for note in notes if isinstance(notes, list) else []:
            error.add_note(note)
        return error
    if end.exit_code < 0:
        name = signal.Signals(-end.exit_code).name
        out_of_memory = "if nobody did it, the system may have run out of memory"
        return LaunchError(
            f"{process} was killed by signal {-end.exit_code} ({name})",
            remedy=out_of_memory if end.exit_code == -signal.SIGKILL else None,
        )
    return LaunchError(f"{process} ended with exit status {end.exit_code} and did not say why")


def launch(arguments: Sequence[str], *, num_processes: int, threads: int) -> None:
    """Runs `python -m headrace ARGUMENTS` in so many processes of this machine, and waits.

    Args:
        arguments: of the command line, the same for each process.
        num_processes: one a stage.
        threads: computing threads of each.

    Raises:
        HeadraceError: a process failed: the error that explains it. All processes are gone.
        KeyboardInterrupt: interrupted. All processes are gone.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    _quieten()
    with tempfile.TemporaryDirectory(prefix="headrace-") as logs, _environment(threads), _signals():
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=num_processes,
            run_id=f"headrace-{os.getpid()}",
            rdzv_backend="c10d",
            rdzv_endpoint=f"localhost:{_port()}",
            local_addr="localhost",
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            shutdown_timeout=3,
            # not SIGINT: the processes are ended by SIGTERM then, which no Python code answers
            signals_to_handle=",".join(name.name for name in STOPPING),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "headrace", *arguments)
        except ChildFailedError as error:
            ends = [
                End(stage, failure.pid, failure.exitcode, _report_of(failure.error_file_data))
                for stage, failure in error.failures.items()
            ]
            raise cause(ends) from None
        except SignalException as error:
            raise LaunchError(f"stopped by signal {error.sigval.name}") from None


def _report_of(data: Mapping[str, object]) -> Mapping[str, object] | None:
    return data if "is_ours" in data else None


def _quieten() -> None:
    """Keeps the launcher's log to itself: all that a user needs is in the error raised here."""
    for name in ("torch.distributed.elastic", "torch.distributed.launcher"):
        logger = logging.getLogger(name)
        logger.addHandler(logging.NullHandler())
        logger.propagate = False


def _port() -> int:
    """The port where the processes meet: MASTER_PORT where it is set, else any free one.

    Raises:
        LaunchError: MASTER_PORT is no port, or in use.
    """
    wanted = os.environ.get("MASTER_PORT", "0")
    try:
        port = int(wanted)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("localhost", port))
    except (ValueError, OverflowError, OSError) as error:
        reason = "is in use" if isinstance(error, OSError) else "is not a port"
        raise LaunchError(
            f"port {wanted} {reason}",
            got=getattr(error, "strerror", None) or error,
            where="MASTER_PORT",
            remedy="set another, or unset it to take any free one",
        ) from error
    return port


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """What the processes inherit, while they are started and run."""
    wanted = {
        LAUNCHER: str(os.getpid()),
        "OMP_NUM_THREADS": str(threads),
        **{name: os.environ.get(name, value) for name, value in KEEP_FREED_MEMORY.items()},
        "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
    }
    if sys.platform == "linux":  # all processes are here: no need to find out this machine's name
        wanted["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals() -> Iterator[None]:
    """Gives the signals that torch's launcher takes over back to whom they were."""
    before = {name: signal.getsignal(name) for name in STOPPING}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in before.items():
                signal.signal(name, handler)
