"""The command `headrace pack`: rewrites a data set into a format that is read in place."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from headrace.cli.data import Bar, FieldsOption, FormatOption, OptionOption, Paths, opened, plural

if TYPE_CHECKING:
    from headrace.data.pack import PackedFormat

__all__ = ["pack"]


def pack(
    paths: Paths,
    out: Annotated[Path, typer.Option(help="What is written: a folder for npy, else a file.")],
    to: Annotated[str, typer.Option(help="npy, tar or tfrecord.")],
    shuffle: Annotated[
        int | None, typer.Option(help="Write the records in the random order of this seed.")
    ] = None,
    format: FormatOption = None,
    option: OptionOption = None,
    fields: FieldsOption = None,
) -> None:
    """Rewrite a data set, shuffled if asked, into a standard format; the files stay as they are."""
    from headrace.data.order import RandomOrder, SequentialOrder
    from headrace.data.pack import pack as write

    began_s = time.perf_counter()
    records = opened(paths, format, option, fields)
    order = SequentialOrder() if shuffle is None else RandomOrder(shuffle)
    with Bar("writing") as bar:
        write(records, out, cast("PackedFormat", to), order, bar)
    print(f"{plural(len(records), 'record')} in {out}, {time.perf_counter() - began_s:.1f} s")
