"""Tar archives in WebDataset's convention: members of one name are the fields of one record."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.archive import Archive, Member
from headrace.data.formats.extensions import value_of
from headrace.data.formats.format import Format, Table, bytes_of, of_decoding
from headrace.data.formats.walking import walk_file
from headrace.errors import DataError
from headrace.progress import Progress

# What is compiled is imported where it is used: numba takes a while to load.

__all__ = ["Tar"]

_MOST_FIELDS = 256  # more are a sign of dots in the names of records


@final
@dataclass(frozen=True)
class Tar(Format):
    """A field for each extension: "train/0003.seg.PNG" is field "seg.png" of record "train/0003".

    A member's name is cut at the first dot after its last slash; what follows is the field, in
    small letters. Members of one record may stand anywhere in the archive; records are in the order
    of their first ones. Folders, devices, names without an extension or beginning with a dot, and
    names whose first part is a word in double underscores, are passed over.

    Where this differs from WebDataset: it makes several records of members that share a name but
    are not neighbours; it passes over links, which here are an error; and it takes "a/.b" for field
    "b" of a record "a/".

    Args:
        decoded: values are what the extension says, see value_of in
            headrace.data.formats.extensions; else bytes.

    Source: webdataset.github.io/webdataset, "The WebDataset Format".
    """

    decoded: bool = of_decoding(False)

    name: ClassVar[str] = "tar"

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """By its name, or the magic number that all but the oldest archives have."""
        return path.suffix == ".tar" or head[257:262] == b"ustar"

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Table]:
        """From header to header; of members over 256 KiB only these are read.

        Raises:
            DataError: the archive is damaged or truncated, has two members of one name, links or
                sparse members, more than 256 fields or no record.
        """
        with path.open("rb", buffering=0) as file:
            chain = _Chain(path, file.fileno())
            walk_file(path, chain.step, progress)
            return chain.tables()

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """Bytes, or what the extension says.

        Raises:
            ValueError: they are not what the extension says.
            RunError: Pillow is missing.
        """
        return value_of(field, record.tobytes()) if self.decoded else record.tobytes()

    def decode_batch(
        self,
        field: str,
        memory: NDArray[np.uint8],
        begins: NDArray[np.int64],
        lengths: NDArray[np.int64],
        about: Mapping[str, Any],
    ) -> list[bytes] | None:
        """The bytes, where they are not decoded."""
        return None if self.decoded else bytes_of(memory, begins, lengths)


@final
class _Chain:
    """The members of an archive, as far as it has been walked."""

    def __init__(self, path: Path, descriptor: int) -> None:
        from headrace.data.formats.headers import Members, make_members

        self._path = path
        self._size_bytes = os.fstat(descriptor).st_size
        self._archive = Archive(path, descriptor, self._size_bytes)
        self._places: dict[str, int] = {}  # of the fields
        self._known = np.empty(0, np.uint64)  # hashes of their names in any case of letters
        self._known_places = np.empty(0, np.int64)
        self._found: list[Members] = [make_members(0)]

    def step(self, start: int, piece: NDArray[np.uint8]) -> tuple[int, int]:
        """The members that have their headers in a piece; see headrace.data.formats.walking."""
        from headrace.data.formats.headers import BLOCK_BYTES, make_members, walk

        at, num_headers, end = 0, 0, len(piece)
        found = make_members(end // BLOCK_BYTES)
        while at < end:
            rest, is_odd = piece[at:], True
            if not self._archive.common:
                ahead, num, passed, is_odd = walk(
                    rest, self._size_bytes - start - at, self._known, found
                )
                self._keep(start + at, num, found)
                at, num_headers = at + ahead, num_headers + passed
            if at >= end or (not is_odd and num_headers):
                break  # the rest of a header is in the next piece
            member = self._archive.member(start + at)
            if member is None:
                self._archive.require_zeros(start + at)
                return self._size_bytes, num_headers + 1
            self._take(member)
            at, num_headers = member.following - start, num_headers + 1
        return start + at, num_headers

    def _keep(self, start: int, num: int, found: Any) -> None:
        """Members that compiled code found in a piece."""
        self._found.append(
            type(found)(
                found.keys[:num].copy(),
                self._known_places[found.fields[:num]],
                start + found.headers[:num],
                start + found.offsets[:num],
                found.sizes[:num].copy(),
            )
        )

    def _take(self, member: Member) -> None:
        """One member that compiled code passed on."""
        from headrace.data.formats.headers import Members, identify

        name = np.frombuffer(bytearray(member.name), np.uint8)
        key, part, dot = identify(name, len(name))
        if dot < 0 or not (member.is_file or member.is_link):
            return
        if member.is_link:
            raise DataError(
                "a link in the archive stands where the data of a record should be",
                got=member.name.decode(errors="backslashreplace"),
                where=f"{self._path}, at byte {member.header}",
                remedy="pack the archive again with tar --dereference --hard-dereference",
            )
        field = member.name[dot + 1 :].decode(errors="surrogateescape").lower()
        place = self._places.setdefault(field, len(self._places))
        if place == _MOST_FIELDS:
            raise DataError(
                "too many extensions for fields of records",
                got=", ".join(map(repr, list(self._places)[:5])) + ", ...",
                expected=f"{_MOST_FIELDS} at most",
                where=self._path,
                remedy="a record's name ends at the first dot after the last slash: rename those "
                "that have dots",
            )
        if part not in self._known:
            self._known = np.append(self._known, part)
            self._known_places = np.append(self._known_places, place)
        numbers = [np.array([n]) for n in (place, member.header, member.offset, member.size)]
        self._found.append(Members(np.array([key], np.uint64), *numbers))

    def tables(self) -> dict[str, Table]:
        """A table for each field."""
        keys, fields, headers, offsets, sizes = map(np.concatenate, zip(*self._found, strict=True))
        if not len(keys):
            raise DataError(
                "the archive has no record",
                expected="members with extensions, such as 0001.jpg and 0001.cls",
                where=self._path,
                remedy="leave it out",
            )
        records, num_records = _numbered(keys)
        tables = {}
        for name, place in self._places.items():
            mine = np.flatnonzero(fields == place)
            whose = records[mine]
            places, lengths = np.zeros(num_records, np.int64), np.full(num_records, -1, np.int64)
            places[whose], lengths[whose] = offsets[mine], sizes[mine]
            if np.count_nonzero(lengths >= 0) < len(mine):
                raise self._repeated(whose, headers[mine])
            tables[name] = Table(places, lengths)
        return tables

    def _repeated(self, records: NDArray[np.int64], headers: NDArray[np.int64]) -> DataError:
        order = np.argsort(records, kind="stable")
        again = int(np.flatnonzero(np.diff(records[order]) == 0)[0])
        first, second = headers[order[again : again + 2]].tolist()
        member = self._archive.member(second)
        assert member is not None
        return DataError(
            "two members of the archive have one name",
            got=member.name.decode(errors="backslashreplace"),
            where=f"{self._path}, at bytes {first} and {second}",
            remedy="capital letters do not count in extensions; unpack it, which keeps the last of "
            "them, and pack it again",
        )


def _numbered(keys: NDArray[np.uint64]) -> tuple[NDArray[np.int64], int]:
    """For each member the number of its record, in the order of their first members; how many."""
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    _, firsts, whose = np.unique(keys[starts], return_index=True, return_inverse=True)
    ranks = np.empty(len(firsts), np.int64)
    ranks[np.argsort(firsts)] = np.arange(len(firsts))
    return np.repeat(ranks[whose], np.diff(starts, append=len(keys))), len(firsts)
