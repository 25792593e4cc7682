"""The command `headrace pack`: rewrites a data set into a format that is read in place."""

import time
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.data import Bar, FieldsOption, FormatOption, OptionOption, Paths, opened, plural

__all__ = ["pack"]


def pack(
    paths: Paths,
    out: Annotated[Path, typer.Option(help="What is written: a folder for npy, else a file.")],
    to: Annotated[str, typer.Option(help="npy, tar, tfrecord or csr.")],
    shuffle: Annotated[
        int | None, typer.Option(help="Write the records in the random order of this seed.")
    ] = None,
    format: FormatOption = None,
    option: OptionOption = None,
    fields: FieldsOption = None,
) -> None:
    """Rewrite a data set, shuffled if asked, into a standard format; the files stay as they are.

    Files that are compressed as a whole (gzip, bzip2, xz, zstd, lz4) are unpacked for the while.
    """
    from headrace.data.opening import paths_of
    from headrace.data.order import RandomOrder, SequentialOrder
    from headrace.data.pack import pack as write
    from headrace.data.unpacking import unpacked

    began_s = time.perf_counter()
    order = SequentialOrder() if shuffle is None else RandomOrder(shuffle)
    with Bar("unpacking") as bar, unpacked(paths_of(paths), format, out, bar) as files:
        bar.stop()
        records = opened([str(file) for file in files], format, option, fields)
        with Bar("writing") as bar:
            write(records, out, to, order, bar)
        num_records = len(records)
    print(f"{plural(num_records, 'record')} in {out}, {time.perf_counter() - began_s:.1f} s")
