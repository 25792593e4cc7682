"""The command `headrace inspect`: what a data set is, and what an epoch in random order costs."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.data import FieldsOption, FormatOption, OptionOption, Paths, extent, opened

if TYPE_CHECKING:
    from headrace.data.records import Records
    from headrace.data.survey import Sizes, Trial

__all__ = ["inspect"]

_BAR_WIDTH = 30
_FIRST_RECORD_WIDTH = 70


def inspect(
    paths: Paths,
    format: FormatOption = None,
    option: OptionOption = None,
    fields: FieldsOption = None,
    seconds: Annotated[float, typer.Option(help="Time to read records at random.")] = 2.0,
    direct: Annotated[
        bool | None,
        typer.Option(help="Read past the page cache, or through it; by default by size."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with the figures as one line of JSON.")
    ] = False,
) -> None:
    """Show a data set: format, fields, sizes, the first record, and the cost of a random epoch."""
    from headrace.data.order import RandomOrder
    from headrace.data.survey import Survey, sizes_of

    records = opened(paths, format, option, fields)
    kind = next(iter(records.fields.values())).format.name
    size, num_bytes = extent(records)
    print(f"{kind}: {size}; fingerprint {records.fingerprint}")
    sizes = {name: sizes_of(records, name) for name in records.fields}
    for name, some in sizes.items():
        print(f"\n{name}: {records.fields[name]}")
        if some is not None:
            print("\n".join(_size_lines(some)))
    if not len(records):
        return
    print("\nfirst record")
    for name, value in _first(records).items():
        print(f"  {name}: {_short(value)}")
    survey = Survey(records, direct=direct)
    trial = survey.trial(RandomOrder(), seconds)
    print("\n" + "\n".join(_cost_lines(records, trial)))
    advice = survey.advice(trial, seconds)
    if advice is not None:
        print(f"\nsmall records: {advice}")
    if as_json:
        facts: dict[str, Any] = {"format": kind, "records": len(records), "bytes": num_bytes}
        facts["sizes"] = {name: some and asdict(some) for name, some in sizes.items()}
        print(json.dumps(facts | {"trial": asdict(trial), "advice": advice and asdict(advice)}))


def _size_lines(sizes: "Sizes") -> list[str]:
    lines = [
        f"  {sizes.least:,} to {sizes.most:,} bytes a record, median {sizes.median:,}; "
        f"{sizes.page_use:.1%} of the pages that a random read touches is the record"
    ]
    if sizes.least < sizes.most:
        most = max(count for _, _, count in sizes.histogram)
        for low, high, count in sizes.histogram:
            bar = "█" * max(1, round(_BAR_WIDTH * count / most))
            lines.append(f"  {low:>13,} to {high:<13,} {bar} {count:,}")
    return lines


def _first(records: "Records") -> dict[str, Any]:
    import numpy as np

    from headrace.data.batch_reader import BatchReader

    with BatchReader(records, tuple(records.fields)) as reader:
        return reader.read(np.zeros(1, np.int64))


def _short(value: Any) -> str:
    """A batch of one record on one line."""
    one = value[0] if isinstance(value, list) else value
    text = " ".join(repr(one).split())
    return text if len(text) <= _FIRST_RECORD_WIDTH else f"{text[:_FIRST_RECORD_WIDTH]}..."


def _cost_lines(records: "Records", trial: "Trial") -> list[str]:
    rate = trial.records_per_s
    each = trial.bytes_read / max(trial.num_records, 1)
    return [
        f"random order: {trial.num_records:,} records read and decoded in {trial.seconds:.1f} s by "
        f"{trial.how}",
        f"  {rate:,.0f} records/s, {each:,.0f} bytes asked of the system each",
        f"  an epoch takes {_duration(len(records) / rate)} and reads "
        f"{each * len(records) / 1e9:,.2f} GB at that rate",
    ]


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, left = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {left} s"
