"""Reads the headers of one member of a tar archive, whatever kind of archive wrote them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from headrace.errors import DataError

__all__ = ["Archive", "Member"]

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_MOST_EXTENDED_BYTES = 1 << 20  # of a name or an extended header; more is not worth reading

# Kinds of members; all others but files are passed over.
_FILES, _LINKS = (b"0", b"7", b"\0"), (b"1", b"2")
_WITHOUT_DATA = (*_LINKS, b"3", b"4", b"5", b"6")


@dataclass(frozen=True)
class Member:
    """One member of an archive.

    Args:
        name: as its headers have it, in bytes; nothing after the archive's end.
        header: where its first header begins.
        offset: where its data begins.
        size: of the data in bytes.
        following: where the next member's first header begins, or the file ends.
        is_file: whether it is an ordinary file.
        is_link: whether it is a link to another member or file.
    """

    name: bytes
    header: int
    offset: int
    size: int
    following: int
    is_file: bool
    is_link: bool


@final
class Archive:
    """An archive's headers, as they are asked for.

    Attributes:
        common: of global headers, what they say of the name or size of all that follows.

    Source: POSIX.1-2024, pax, "ustar Interchange Format" and "pax Extended Header"; the manual of
    GNU tar, "Basic Tar Format".
    """

    def __init__(self, path: Path, descriptor: int, size_bytes: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size_bytes = size_bytes
        self.common: dict[bytes, bytes] = {}

    def member(self, position: int) -> Member | None:
        """The member whose first header begins at a byte; None at the archive's end.

        Raises:
            DataError: a header is damaged, the file ends within the member, or it is one that does
                not lie in the file in one piece.
        """
        header, own = position, dict[bytes, bytes]()
        while True:
            block = self._read(position, _BLOCK, header, own.get(b"path", b""))
            if block == _ZEROS:
                if position > header:
                    raise self._damaged(header, "an extended header without a member")
                return None
            self._check(block, position)
            kind = block[156:157]
            size = self._number(block[124:136], "size", position)
            if kind not in (b"x", b"X", b"g", b"L", b"K"):
                break
            if size > _MOST_EXTENDED_BYTES:
                raise self._damaged(position, f"an extended header of {size} bytes")
            text = self._read(position + _BLOCK, size, header, b"")
            if kind == b"L":
                own[b"path"] = text.partition(b"\0")[0]
            elif kind == b"g":
                self.common |= self._records(text, position)
            elif kind != b"K":
                own |= self._records(text, position)
            position += _BLOCK + _padded(size)
        extended = {key: value for key, value in {**self.common, **own}.items() if value}
        return self._from(block, header, position, extended)

    def require_zeros(self, position: int) -> None:
        """Makes sure that nothing follows the archive's end.

        Raises:
            DataError: something does.
        """
        while piece := os.pread(self._descriptor, 1 << 20, position):
            if any(piece):
                place = position + len(piece) - len(piece.lstrip(b"\0"))
                raise DataError(
                    "something follows the end of the archive",
                    got=f"byte {piece[place - position]:#04x} at byte {place}",
                    expected="zeros",
                    where=self._path,
                    remedy="if archives were joined, unpack it with tar -i and pack it again",
                )
            position += len(piece)

    def _from(
        self, block: bytes, header: int, position: int, extended: Mapping[bytes, bytes]
    ) -> Member:
        kind, name = block[156:157], extended.get(b"path") or _own_name(block)
        if kind in (b"S", b"M") or any(key.startswith(b"GNU.sparse.") for key in extended):
            what = "continues in another file" if kind == b"M" else "is sparse"
            raise DataError(
                f"a member of the archive {what}, so it cannot be read in place",
                got=_text(name),
                where=f"{self._path}, at byte {header}",
                remedy="unpack the archive and pack it again without --sparse or --multi-volume",
            )
        size = self._number(block[124:136], "size", position)
        if b"size" in extended:
            if not extended[b"size"].isdigit():
                raise self._damaged(position, f"a size of {_text(extended[b'size'])}")
            size = int(extended[b"size"])
        is_folder = kind == b"\0" and name.endswith(b"/")  # as it was before POSIX
        offset = position + _BLOCK
        following = offset
        if kind not in _WITHOUT_DATA and not is_folder:
            if offset + size > self._size_bytes:
                raise self._cut(offset + size, header, name)
            following += _padded(size)
        is_file = kind in _FILES and not is_folder
        return Member(name, header, offset, size, following, is_file, kind in _LINKS)

    def _read(self, position: int, size: int, header: int, name: bytes) -> bytes:
        content = os.pread(self._descriptor, size, position)
        if len(content) < size:
            if position == header and not any(content):
                return _ZEROS  # the end, without its blocks or with less than one
            raise self._cut(position + size, header, name)
        return content

    def _check(self, block: bytes, position: int) -> None:
        """The sum of a header's bytes, its own eight taken for blanks; old ones are signed."""
        stored = self._number(block[148:156], "checksum", position)
        rest = block[:148] + block[156:]
        unsigned = 256 + sum(rest)
        if stored not in (unsigned, unsigned - 256 * sum(byte > 127 for byte in rest)):
            raise self._damaged(position, f"the checksum {stored:o}", f"{unsigned:o} in octal")

    def _number(self, text: bytes, meaning: str, position: int) -> int:
        """Octal digits, or GNU's 0x80 and then a number of base 256."""
        if text[0] == 0x80:
            return int.from_bytes(text[1:], "big")
        digits = text.partition(b"\0")[0].strip(b" ")
        if digits.strip(b"01234567"):
            raise self._damaged(position, f"a {meaning} of {text.hex(' ')}")
        return int(digits or b"0", 8)

    def _records(self, text: bytes, position: int) -> dict[bytes, bytes]:
        """What an extended header says of the name, the size and how the data lie."""
        found, at = dict[bytes, bytes](), 0
        while at < len(text) and text[at]:
            digits, _, _ = text[at : at + 20].partition(b" ")
            end = at + int(digits) if digits.isdigit() else at
            key, equals, value = text[at + len(digits) + 1 : end - 1].partition(b"=")
            if not equals or end > len(text) or text[end - 1 : end] != b"\n":
                raise self._damaged(position, f"an extended header with {text[at : at + 40]!r}")
            if key in (b"path", b"size") or key.startswith(b"GNU.sparse."):
                found[key] = value
            at = end
        return found

    def _damaged(self, position: int, got: str, expected: str | None = None) -> DataError:
        if position == 0:
            what, remedy = "not a tar archive, or one whose first header is damaged", None
        else:
            what, remedy = "a header of the archive is damaged", "copy or write it again"
        where = f"{self._path}, at byte {position}"
        return DataError(what, got=got, expected=expected, where=where, remedy=remedy)

    def _cut(self, expected_bytes: int, header: int, name: bytes) -> DataError:
        whose = f"member {_text(name)}, which begins" if name else "the member that begins"
        return DataError(
            "the archive is truncated",
            got=f"{self._size_bytes} bytes",
            expected=f"at least {expected_bytes} for {whose} at byte {header}",
            where=self._path,
            remedy="copy or write it again; all members before that one are whole",
        )


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _own_name(block: bytes) -> bytes:
    """A member's name, with the prefix that POSIX puts elsewhere."""
    name, prefix = (part.partition(b"\0")[0] for part in (block[:100], block[345:500]))
    return prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name
