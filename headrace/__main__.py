"""The command `headrace`, also as `python -m headrace`."""

import sys

__all__ = ["main"]


def main() -> None:
    """Runs the command line on this process's arguments and exits with its status."""
    from headrace.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
