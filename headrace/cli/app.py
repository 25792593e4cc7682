"""The command line as a whole: its commands, and what happens when one fails."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import typer

from headrace.cli.demo import demo
from headrace.cli.index import index
from headrace.cli.inspect import inspect
from headrace.cli.interrupts import INTERRUPTED
from headrace.cli.pack import pack
from headrace.cli.schedule import schedule
from headrace.cli.speaking import say, speaking
from headrace.cli.train import train
from headrace.cli.verify import verify
from headrace.errors import HeadraceError, InputError, PeerLostError
from headrace.runs.launch import is_launched, reporting

__all__ = ["build", "run"]

HELP = """Train a network through a pipeline that never drains, on records read in a truly random
order straight from their files."""


def build() -> typer.Typer:
    """The commands."""
    app = typer.Typer(
        name="headrace",
        help=HELP,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in (train, schedule, index, inspect, verify, pack, demo):
        app.command()(command)
    return app


def run(arguments: Sequence[str], is_interrupted: Callable[[], bool] = lambda: False) -> int:
    """Runs one command.

    Args:
        arguments: of the command line.
        is_interrupted: whether SIGINT came, which its caller then says: what a library has made of
            it is not worth a word.

    Returns:
        The exit status: 0, 2 for a mistake in what the user gave, 1 for what failed while running,
        130 when interrupted.
    """
    try:
        with reporting():
            # typer makes an exit status of a KeyboardInterrupt, and returns it
            status = build()(list(arguments), prog_name="headrace", standalone_mode=False)
    except SystemExit as exit:
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except Exception as error:
        return INTERRUPTED if is_interrupted() else _told(error)
    return status if isinstance(status, int) else 0


def _told(error: Exception) -> int:
    """Says what went wrong, unless that is for another process to do; the exit status."""
    # under torchrun a process that was lost speaks for itself
    is_consequence = is_launched() and isinstance(error, PeerLostError)
    with nullcontext(False) if is_consequence else speaking() as may_speak:
        if may_speak:
            _show(error)
    status = 2 if isinstance(error, InputError) else 1
    return int(getattr(error, "exit_code", status))


def _show(error: Exception) -> None:
    notes = getattr(error, "__notes__", None)
    show = getattr(error, "show", None)
    if show is not None:  # what typer does not understand, in its words
        show()
    elif isinstance(error, HeadraceError):
        say(f"error: {error}", notes or [])
    elif notes is None:
        raise error  # a fault of ours outside of any run: the traceback is what helps
    else:
        say(f"error: {type(error).__name__}: {error}", notes)
