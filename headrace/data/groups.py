"""Values of records that come in groups, each decoded as a whole; the recent ones are kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.columns import InGroups
from headrace.data.formats.column import ANY_LENGTH
from headrace.data.formats.format import DecodedGroup, Format, GroupFile
from headrace.data.memory import available_memory_bytes
from headrace.errors import ReadError

__all__ = ["GroupReader"]

_MOST_OPEN_FILES = 16
_Key = tuple[str, int, int]
"""Field, file, group."""


@final
class GroupReader:
    """Decodes groups, each once for all records of a batch, and keeps those used last.

    Args:
        paths: the files.
        most_bytes: of decoded groups to keep; the last one always is. By default an eighth of the
            available memory. A group that is being decoded comes on top.
    """

    def __init__(self, paths: Sequence[Path], most_bytes: int | None = None) -> None:
        self._paths = paths
        self._most_bytes = available_memory_bytes() // 8 if most_bytes is None else most_bytes
        self._groups: dict[_Key, DecodedGroup] = {}  # the least recently used first
        self._files: dict[int, GroupFile] = {}  # likewise
        self.num_decoded = 0

    @property
    def num_bytes(self) -> int:
        """Of the groups that are kept."""
        return sum(group.num_bytes for group in self._groups.values())

    def values(self, name: str, format: Format, places: InGroups) -> NDArray[Any] | list[Any]:
        """The values of R records.

        Args:
            name: the field's.
            format: of the files.
            places: where the records are.

        Returns:
            dtype[R, *shape], or a list of R values where they have no common shape.

        Raises:
            ReadError: a group is damaged, or a record in it has no value.
        """
        num_records = len(places.rows)
        result: NDArray[Any] | list[Any] = [None] * num_records
        if places.shape != ANY_LENGTH:
            shape = tuple(size for size in places.shape if size is not None)
            result = np.empty((num_records, *shape), places.dtype)
        order = np.lexsort((places.groups, places.files))
        files, groups = places.files[order], places.groups[order]
        is_first = (np.diff(files, prepend=-1) != 0) | (np.diff(groups, prepend=-1) != 0)
        starts = np.flatnonzero(is_first).tolist()
        for start, stop in zip(starts, [*starts[1:], num_records], strict=True):
            mine = order[start:stop]
            key = name, int(files[start]), int(groups[start])
            taken = self._taken(key, format, places.rows[mine])
            if isinstance(result, np.ndarray):
                result[mine] = taken
            else:
                for row, value in zip(mine.tolist(), taken, strict=True):
                    result[row] = value
        return result

    def close(self) -> None:
        """Closes the files and drops what was kept."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._groups.clear()

    def __enter__(self) -> "GroupReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _taken(
        self, key: _Key, format: Format, rows: NDArray[np.int64]
    ) -> NDArray[Any] | list[Any]:
        """Rows of one group; what is wrong with it becomes an error that names it."""
        try:
            return self._group(key, format).take(rows)
        except (OSError, ValueError) as error:
            raise ReadError(
                f"field {key[0]!r} could not be decoded",
                got=error,
                where=f"{self._paths[key[1]]}, group {key[2]}",
            ) from error

    def _group(self, key: _Key, format: Format) -> DecodedGroup:
        found = self._groups.pop(key, None)
        if found is None:
            name, file, group = key
            found = self._file(file, format).decode(name, group)
            self.num_decoded += 1
            left = self._most_bytes - found.num_bytes
            for old in list(self._groups):
                if self.num_bytes <= left:
                    break
                del self._groups[old]
        self._groups[key] = found
        return found

    def _file(self, file: int, format: Format) -> GroupFile:
        found = self._files.pop(file, None)
        if found is None:
            if len(self._files) >= _MOST_OPEN_FILES:
                self._files.pop(next(iter(self._files))).close()
            found = format.open_groups(self._paths[file])
        self._files[file] = found
        return found
