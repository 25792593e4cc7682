"""The command line's surface is designed, not accreted."""

import subprocess
import sys

import typer

from headrace.cli.app import build

SURFACE = """
headrace --help -h
headrace demo --help -h --json
headrace index PATHS --fields --format --help -h --json --option -o
headrace inspect PATHS --direct --fields --format --help -h --json --no-direct --option -o
    --seconds
headrace pack PATHS --fields --format --help -h --option --out --shuffle --to -o
headrace schedule NAME --batches --help -h --json --micro-batches --stages --strategy
headrace train RECIPE --cuts --epochs --help -h --json --micro-batches --out --seed --simulate
    --stages --strategy
headrace verify PATHS --fields --format --help -h --json --option -o
"""


def surface() -> dict[str, list[str]]:
    """Command -> its arguments and flags, as the command line itself knows them."""
    top = typer.main.get_command(build())
    context = top.make_context("headrace", [], resilient_parsing=True)
    commands = {"headrace": (top, context)}
    for name in top.list_commands(context):  # type: ignore[attr-defined]
        command = top.get_command(context, name)  # type: ignore[attr-defined]
        made = command.make_context(name, [], parent=context, resilient_parsing=True)
        commands[f"headrace {name}"] = (command, made)
    found = {}
    for name, (command, made) in commands.items():
        arguments, flags = [], []
        for parameter in command.get_params(made):
            if parameter.param_type_name == "argument":
                arguments.append(str(parameter.name).upper())
            else:
                flags += [*parameter.opts, *parameter.secondary_opts]
        found[name] = [*arguments, *sorted(flags)]
    return found


def expected() -> dict[str, list[str]]:
    """The frozen list."""
    found: dict[str, list[str]] = {}
    for line in SURFACE.strip().replace("\n    ", " ").splitlines():
        words = line.split()
        size = next(n for n, word in enumerate(words) if not word.islower() or word[0] == "-")
        arguments = [word for word in words[size:] if word.isupper()]
        flags = sorted(word for word in words[size:] if word.startswith("-"))
        found[" ".join(words[:size])] = [*arguments, *flags]
    return found


def test_the_verbs_and_flags() -> None:
    """Exactly these; a change here is a change for every user."""
    assert surface() == expected()


def test_the_help_is_quick() -> None:
    """It loads neither torch nor numpy."""
    code = (
        "import sys; from headrace.cli.app import run; run(['train', '--help']); "
        "sys.stderr.write(str({'torch', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "set()"
    assert "--micro-batches" in done.stdout
