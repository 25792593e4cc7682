"""The command `headrace`, also as `python -m headrace`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line on this process's arguments and exits with its status."""
    from headrace.runs.launch import follow_launcher, is_launched, reporting

    if is_launched():
        follow_launcher()  # before the imports that take seconds
    with reporting():
        from headrace.cli.app import run
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
