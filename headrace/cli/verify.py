"""The command `headrace verify`: reads every record and lists those that are damaged."""

import json
from typing import Annotated

import typer

from headrace.cli.data import Bar, FieldsOption, FormatOption, OptionOption, Paths, opened, plural

__all__ = ["verify"]


def verify(
    paths: Paths,
    format: FormatOption = None,
    option: OptionOption = None,
    fields: FieldsOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the findings as one line of JSON.")
    ] = False,
) -> None:
    """Read all records and list the damaged ones, with file and offset; exit status 1 if any is."""
    from headrace.data.damage import damaged

    found = []
    records = opened(paths, format, option, fields)
    with Bar("reading") as bar:
        for damage in damaged(records, bar):
            found.append(damage)
            bar.say(f"record {damage.record}, field {damage.field!r}: {damage.error}")
    bad = len({damage.record for damage in found})
    print(f"{plural(len(records), 'record')} read, {bad or 'none'} damaged")
    if as_json:
        listed = [
            {"record": damage.record, "field": damage.field, "error": str(damage.error)}
            for damage in found
        ]
        print(json.dumps({"records": len(records), "damaged": listed}))
    if found:
        raise typer.Exit(1)
