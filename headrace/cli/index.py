"""The command `headrace index`: reads files through once, so that they open at once ever after."""

import json
import time
from typing import Annotated

import typer

from headrace.cli.data import FieldsOption, FormatOption, OptionOption, Paths, extent, opened

__all__ = ["index"]


def index(
    paths: Paths,
    format: FormatOption = None,
    option: OptionOption = None,
    fields: FieldsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the figures as one line of JSON.")
    ] = False,
) -> None:
    """Find the records of a data set, and keep where they lie beside the files."""
    began_s = time.perf_counter()
    records = opened(paths, format, option, fields)
    seconds = time.perf_counter() - began_s
    size, num_bytes = extent(records)
    print(f"{size}, {seconds:.1f} s")
    for name, field in records.fields.items():
        print(f"  {name}: {field}")
    if as_json:
        facts = {
            "records": len(records),
            "files": len(records.paths),
            "bytes": num_bytes,
            "seconds": seconds,
            "fields": {name: str(field) for name, field in records.fields.items()},
            "fingerprint": records.fingerprint,
        }
        print(json.dumps(facts))
