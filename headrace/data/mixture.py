"""Several data sets as one, mixed by weight: headrace.mix."""

from collections.abc import Mapping, Sequence

from headrace.data.formats.format import identity_of
from headrace.data.opening import records_of
from headrace.data.orders.mixture import MixtureOrder
from headrace.data.records import Field, Records
from headrace.data.selection import Joined, Sliced
from headrace.errors import DataError

__all__ = ["mix"]


def mix(
    parts: Sequence[tuple[Records, float]], seed: int = 0, *, epoch_length: int | None = None
) -> tuple[Records, MixtureOrder]:
    """Joins data sets of the same fields, and says in which order to read them.

    Args:
        parts: data sets or views of such, each with its weight: how much of every batch comes from
            it. Whole numbers are kept exactly; see MixtureOrder.
        seed: of the order.
        epoch_length: positions of an epoch; None is the number of all records.

    Returns:
        The records of all parts, one after another, and the order that mixes them.

    Raises:
        DataError: parts that differ in their fields, or that have no records; a wrong weight.

    Example::

        records, order = headrace.mix([(web, 7), (code, 2), (books, 1)])
        loader = headrace.Loader(records, 1000, order=order)  # 700, 200 and 100 in each batch
    """
    parts = list(parts)
    if not parts:
        raise DataError("no data sets to mix", expected="[(records, weight), ...]")
    every = [records for records, _ in parts]
    for number, records in enumerate(every):
        _require_same(number, records.fields, every[0].fields)
        if not len(records):
            raise DataError("a data set without records", where=f"part {number} of the mixture")
    order = MixtureOrder(
        [len(records) for records in every],
        [weight for _, weight in parts],
        seed,
        epoch_length=epoch_length,
    )
    return _joined(every), order


def _joined(every: Sequence[Records]) -> Records:
    """Data sets one after another."""
    whole = records_of(
        {
            name: (field.format, [part for records in every for part in records.parts[name]])
            for name, field in every[0].fields.items()
        }
    )
    if all(records.selection is None for records in every):
        return whole
    sizes = [records.num_stored for records in every]
    selections = [
        records.selection or Sliced(range(size)) for records, size in zip(every, sizes, strict=True)
    ]
    return whole.selected(Joined(selections, sizes))


def _require_same(number: int, fields: Mapping[str, Field], expected: Mapping[str, Field]) -> None:
    """Checks that one reader can make one batch of both."""
    where = f"part {number} of the mixture"
    if fields.keys() != expected.keys():
        raise DataError(
            "data sets of a mixture differ in fields",
            got=", ".join(map(repr, fields)),
            expected=", ".join(map(repr, expected)),
            where=where,
            remedy="open each with the same fields=(...)",
        )
    for name, field in fields.items():
        first = expected[name]
        if (field.dtype, field.shape) != (first.dtype, first.shape):
            raise DataError(
                f"data sets of a mixture differ in {name!r}",
                got=field,
                expected=first,
                where=where,
            )
        if identity_of(field.format) != identity_of(first.format) and field.has_any_length:
            raise DataError(
                f"data sets of a mixture differ in the format of {name!r}",
                got=identity_of(field.format),
                expected=identity_of(first.format),
                where=where,
            )
