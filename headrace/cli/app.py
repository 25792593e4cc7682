"""The command line as a whole: its commands, and what happens when one fails."""

import sys
from collections.abc import Sequence

import typer

from headrace.cli.demo import demo
from headrace.cli.index import index
from headrace.cli.inspect import inspect
from headrace.cli.pack import pack
from headrace.cli.schedule import schedule
from headrace.cli.train import train
from headrace.cli.verify import verify
from headrace.errors import HeadraceError, InputError, PeerLostError
from headrace.runs.launch import is_launched, is_launched_by_headrace, reporting

__all__ = ["build", "run"]

HELP = """Train a network through a pipeline that never drains, on records read in a truly random
order straight from their files."""
INTERRUPTED = 130
"""The exit status of what SIGINT ended, as shells have it."""


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


def run(arguments: Sequence[str]) -> int:
    """Runs one command.

    Returns:
        The exit status: 0, 2 for a mistake in what the user gave, 1 for what failed while running,
        130 when interrupted.
    """
    may_speak = not is_launched_by_headrace()  # which shows the cause itself
    try:
        with reporting():
            build()(list(arguments), prog_name="headrace")
    except SystemExit as exit:
        if exit.code == INTERRUPTED and may_speak:
            _show("interrupted")  # typer has made an exit of the KeyboardInterrupt
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except HeadraceError as error:
        # under torchrun each process speaks for itself
        if may_speak and not (is_launched() and isinstance(error, PeerLostError)):
            _show(f"error: {error}", getattr(error, "__notes__", []))
        return 2 if isinstance(error, InputError) else 1
    except Exception as error:
        notes = getattr(error, "__notes__", None)
        if may_speak and notes is None:
            raise  # a fault of ours outside of any run: the traceback is what helps
        if may_speak:
            _show(f"error: {type(error).__name__}: {error}", notes or [])
        return 1
    return 0


def _show(text: str, notes: Sequence[str] = ()) -> None:
    """Says what went wrong; brings back the cursor that a killed process may have hidden."""
    if sys.stdout.isatty():
        print("\033[?25h", end="", flush=True)
    print("\n".join((text, *notes)), file=sys.stderr)
