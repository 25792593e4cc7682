"""Files that appear whole or not at all."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["appearing", "cache_folder", "read_json", "write_json"]


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Gives a temporary name beside a file; what was written there gets the file's name at the end.

    Whoever looks sees the old file or the new one, never a part; so does a machine that lost power.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: object) -> None:
    """Writes a value as JSON, for people too."""
    with appearing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> object | None:
    """The value in a JSON file; None where there is no file.

    Raises:
        json.JSONDecodeError: the file is not JSON.
    """
    try:
        value: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value


def cache_folder() -> Path:
    """Where headrace keeps what it can make again: in the user's cache ($XDG_CACHE_HOME)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
