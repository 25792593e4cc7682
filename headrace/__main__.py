"""The command `headrace`, also as `python -m headrace`."""

import sys

from headrace.cli.interrupts import Interrupts

__all__ = ["main"]


def main() -> None:
    """Runs the command line on this process's arguments and exits with its status."""
    with Interrupts() as interrupts:  # before imports that take their time
        from headrace.runs.launch import follow_launcher, is_launched, reporting

        if is_launched():
            interrupts.leave()
            follow_launcher()
        with reporting():
            from headrace.cli.app import run
        sys.exit(run(sys.argv[1:], lambda: interrupts.came))


if __name__ == "__main__":
    main()
