"""From paths and globs to the records of a data set: headrace.open."""

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.data.columns import Part
from headrace.data.formats import detect, make, refuse_compressed
from headrace.data.formats.column import Column, Refused, Runs
from headrace.data.formats.format import Format, describe
from headrace.data.formats.layout import Layout
from headrace.data.indexing import columns_of_all
from headrace.data.records import Field, Records
from headrace.data.refusals import reading
from headrace.errors import DataError
from headrace.progress import Progress, Silent

__all__ = ["Source", "open", "paths_of", "records_of"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a glob (sorted), or a list of them (in its order)."""


def open(
    source: Source | Mapping[str, Source],
    format: str | Format | None = None,
    *,
    fields: Sequence[str] | None = None,
    progress: Progress | None = None,
    **options: object,
) -> Records:
    """Opens a data set where it lies; nothing is copied and the files are never written.

    Files whose records can only be found by reading through them are indexed first: once, into a
    folder ``.headrace`` beside them, or the user's cache folder where that cannot be written.

    Args:
        source: a path, a glob (its files in sorted order are one data set) or a list of these; or
            a mapping of field names to them, for fields that lie in different files. The path of a
            folder means all files in it as records, labelled by sub-folder.
        format: the name of one (see docs/formats.md), or a Format of your own; None looks at the
            files, and tells most formats from their name and first bytes.
        fields: those to open, of formats that have several; None is all.
        progress: hears of the files that are indexed.
        options: of the format.

    Returns:
        The records. Their fields have the names that the format gives them ("data" where it has
        one), unless ``source`` names them.

    Raises:
        DataError: a file that is missing, damaged or of another format, dtype or shape than the
            rest; fields that differ in length; a glob without files; wrong options.
    """
    if isinstance(format, str):
        format = make(format, options)
    elif format is not None and options:
        raise DataError("options are for formats given by name", got=", ".join(options))
    opening = _Opening(format, options, progress or Silent())
    if not isinstance(source, Mapping):
        return records_of(opening.parts(source, fields))
    if not source:
        raise DataError("no fields", got="{}", expected="{name: path or glob, ...}")
    if fields is not None:
        raise DataError("fields= is for one source", remedy="leave them out of the mapping")
    parts = {}
    for name, files in source.items():
        if not isinstance(name, str):
            raise DataError("a field's name is not text", got=repr(name))
        found = opening.parts(files, None)
        if len(found) > 1:
            raise DataError(
                "the files have several fields, which a mapping cannot name",
                got=", ".join(map(repr, found)),
                expected="a path, a glob or a list",
            )
        (parts[name],) = found.values()
    return records_of(parts)


class _Opening:
    """How the files of one call of open are looked at."""

    def __init__(
        self, format: Format | None, options: Mapping[str, object], progress: Progress
    ) -> None:
        self._format = format
        self._options = options
        self._progress = progress

    def parts(
        self, source: Source, fields: Sequence[str] | None
    ) -> dict[str, tuple[Format, list[Part]]]:
        """Per field the format, the files and where in them its records lie."""
        given = paths_of(source)
        format = self._format or make(_common_format(given), self._options)
        _require_files(given, format)
        paths = [one for path in given for one in reading(path, format.files, path)]
        if not format.takes_any_bytes:
            for path in paths:
                reading(path, refuse_compressed, path)
        found: dict[str, list[tuple[Path, Column]]] = {}
        for path, columns in zip(paths, columns_of_all(paths, format, self._progress), strict=True):
            for name, column in columns.items():
                found.setdefault(name, []).append((path, column))
        for name in fields or ():
            if name not in found:
                raise DataError(
                    "no such field", got=repr(name), expected=", ".join(map(repr, found))
                )
        chosen = {name: found[name] for name in (found if fields is None else fields)}
        if not chosen:
            raise DataError("the files have no fields", where=paths[0])
        return {name: (format, _parts(name, chosen[name], paths)) for name in chosen}


def records_of(found: Mapping[str, tuple[Format, Sequence[Part]]]) -> Records:
    """The records of fields that were found in files, if what all files say goes together.

    Raises:
        DataError: files of a field differ, or fields differ in length.
    """
    fields = {name: _field(format, parts) for name, (format, parts) in found.items()}
    return Records(fields, {name: parts for name, (_, parts) in found.items()})


def _field(format: Format, parts: Sequence[Part]) -> Field:
    """What all files say of a field."""
    first_path, first = parts[0]
    for path, column in parts:
        if (column.dtype, column.shape) != (first.dtype, first.shape):
            raise DataError(
                "files of one data set differ",
                got=f"{describe(column.dtype, column.shape)} a record",
                expected=f"{describe(first.dtype, first.shape)} as in {first_path}",
                where=path,
            )
    abouts = [{} if isinstance(column, Layout) else column.about for _, column in parts]
    try:
        about = format.join(abouts)
    except ValueError as error:
        raise DataError("files of one data set differ", got=error, where=first_path) from error
    return Field(first.dtype, first.shape, format, about)


def _parts(name: str, columns: Sequence[tuple[Path, Column]], paths: Sequence[Path]) -> list[Part]:
    """One field in all files; every record has it, and it can be read."""
    remedy = "name the fields that all records have: fields=(...)"
    lacking = set(paths) - {path for path, _ in columns}
    if lacking:
        where = min(lacking)
        raise DataError(f"no record has the field {name!r}", where=where, remedy=remedy)
    parts: list[Part] = []
    for path, column in columns:
        if isinstance(column, Refused):
            raise column.error(name, path)
        if isinstance(column, Runs):
            parts += [(path, layout) for layout in column.layouts]
            continue
        missing = getattr(column, "first_missing", None)
        if missing is not None:
            raise DataError(f"record {missing} lacks the field {name!r}", where=path, remedy=remedy)
        parts.append((path, column))
    return parts


def _require_files(paths: Sequence[Path], format: Format) -> None:
    """Checks that no folder is meant where the format knows only files."""
    for path in paths:
        if not format.takes_folders and path.is_dir():
            raise DataError(
                "a folder is not a file of this format",
                got=path,
                expected=f"{format.name} files",
                remedy=f"try {path / '*'}",
            )


def paths_of(source: Source) -> list[Path]:
    """The files, absolute, of a path, a glob or a list.

    Raises:
        DataError: there are none, or one is missing.
    """
    if isinstance(source, str | os.PathLike):
        return reading(source, _files, os.fspath(source))
    if not isinstance(source, Sequence) or isinstance(source, bytes):
        raise DataError("not a path", got=repr(source), expected="a path, a glob or a list of them")
    if not source:
        raise DataError("no files", got="an empty list", expected="at least one path")
    return [path for part in source for path in paths_of(part)]


def _files(name: str) -> list[Path]:
    """Absolute, so that a later change of the working directory changes nothing."""
    path = Path(os.path.abspath(name))
    if path.exists() and name:
        found = [path]
    elif glob.has_magic(name):
        matches = (
            Path(os.path.abspath(match)) for match in sorted(glob.glob(name, recursive=True))
        )
        found = [match for match in matches if not match.is_dir()]
        if not found:
            raise DataError("no file matches", got=repr(name), where=os.getcwd())
    else:
        raise DataError("no such file", got=repr(name), where=os.getcwd())
    for match in found:
        if match.exists() and not match.is_file() and not match.is_dir():
            raise DataError("not a regular file, which could be read anywhere", got=match)
    return found


def _common_format(paths: Sequence[Path]) -> str:
    first = reading(paths[0], detect, paths[0])
    for path in paths[1:]:
        format = reading(path, detect, path)
        if format != first:
            raise DataError(
                "two formats in one data set",
                got=format,
                expected=f"{first} as in {paths[0]}",
                where=path,
                remedy="give a glob that leaves out the others",
            )
    return first
