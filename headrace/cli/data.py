"""What the commands on data have in common: opening what the user named, with a bar."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Self, final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from headrace.errors import DataError

if TYPE_CHECKING:
    from headrace.data.records import Records

__all__ = [
    "Bar",
    "FieldsOption",
    "FormatOption",
    "OptionOption",
    "Paths",
    "extent",
    "opened",
    "plural",
]

Paths = Annotated[
    list[str],
    typer.Argument(help="Files, folders or globs: one data set.", metavar="PATHS..."),
]
FormatOption = Annotated[
    str | None,
    typer.Option("--format", help="Of the files; by default what they look like."),
]
OptionOption = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", help="Of the format, such as -o length=128; may be repeated."),
]
FieldsOption = Annotated[
    str | None,
    typer.Option("--fields", help="Names of those to open, with commas; all by default."),
]


def opened(
    paths: Sequence[str],
    format: str | None,
    options: Sequence[str] | None,
    fields: str | None,
) -> "Records":
    """The data set of a command's arguments, with a bar while it is indexed."""
    from headrace.data.opening import open

    pairs = dict(_option(text) for text in options or ())
    names = tuple(name.strip() for name in fields.split(",")) if fields else None
    source = paths[0] if len(paths) == 1 else list(paths)
    with Bar("indexing") as bar:
        return open(source, format, fields=names, progress=bar, **pairs)


def extent(records: "Records") -> tuple[str, int]:
    """How large a data set is, in words; and the bytes of its files."""
    num_bytes = sum(path.stat().st_size for path in records.paths)
    counted = f"{plural(len(records), 'record')} in {plural(len(records.paths), 'file')}"
    return f"{counted} of {num_bytes:,} bytes", num_bytes


def plural(count: int, noun: str) -> str:
    """A number of things in words."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _option(text: str) -> tuple[str, object]:
    """name=value; the value is a number, true or false if it looks like one, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise DataError("an option of the format is wrong", got=repr(text), expected="name=value")
    known = {"true": True, "false": False, "none": None}
    if value.lower() in known:
        return name, known[value.lower()]
    try:
        return name, int(value)
    except ValueError:
        return name, value


@final
class Bar:
    """A bar on a terminal while something long is done; elsewhere only what is said once."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the bar away; the next update shows it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, text: str) -> None:
        """One line for good."""
        self._console.print(text, markup=False, soft_wrap=True)

    def update(self, facts: Mapping[str, object]) -> None:
        """So many bytes, or records, of all."""
        unit = "bytes" if "num_bytes" in facts else "records"
        done, all_ = int(str(facts[unit])), int(str(facts[f"num_{unit}"]))
        if self._bar is None:
            counted = (
                (DownloadColumn(), TransferSpeedColumn())
                if unit == "bytes"
                else (MofNCompleteColumn(),)
            )
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                *counted,
                TimeRemainingColumn(),
                console=self._console,
                transient=True,
                disable=not self._console.is_terminal,
            )
            self._bar.add_task(self._doing, total=all_)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done, total=all_)
