"""File formats: which one a file has, and one made from its name and options."""

import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from headrace.data.formats.arrow import Arrow
from headrace.data.formats.compressed import HEAD_BYTES, compression_of, head_of, name_of
from headrace.data.formats.csr import CSR
from headrace.data.formats.csv import CSV
from headrace.data.formats.folder import Folder
from headrace.data.formats.format import Format
from headrace.data.formats.idx import Idx
from headrace.data.formats.jsonl import JSONLines
from headrace.data.formats.libsvm import LibSVM
from headrace.data.formats.lines import Lines
from headrace.data.formats.mds import Mds
from headrace.data.formats.npy import Npy
from headrace.data.formats.npz import Npz
from headrace.data.formats.parquet import Parquet
from headrace.data.formats.raw import Raw
from headrace.data.formats.tar import Tar
from headrace.data.formats.tfrecord import TFRecord
from headrace.data.formats.windows import Windows
from headrace.errors import DataError

__all__ = ["FORMATS", "detect", "make", "refuse_compressed"]

FORMATS: Mapping[str, type[Format]] = {
    kind.name: kind
    for kind in (
        Npy,
        CSR,
        Npz,
        Arrow,
        Parquet,
        Mds,
        Idx,
        Lines,
        JSONLines,
        CSV,
        LibSVM,
        Windows,
        Raw,
        Tar,
        TFRecord,
        Folder,
    )
}
"""All formats that have a name; their order is the one in which files are tried."""

_PACKED_AS: Mapping[str, str] = {
    "npy": "npy",
    "npz": "npy",
    "idx": "npy",
    "tar": "tar",
    "libsvm": "csr",
}
"""What to write of the records of a format; tfrecord goes for all others."""

_RIEGELI = bytes.fromhex("83af70d10d884a3f")  # the first block header of every Riegeli file


def detect(path: Path) -> str:
    """The name of the format that a file's name and first bytes tell, or what is in a folder.

    Raises:
        DataError: none; the file may be empty, compressed, or an ArrayRecord.
    """
    if path.is_dir():
        folders = (name for name, kind in FORMATS.items() if kind.takes_folders)
        return next(name for name in folders if FORMATS[name].matches(path, b""))
    head = refuse_compressed(path)
    name = _matching(path, head)
    if name is not None:
        return name
    if not head:
        raise DataError("the file is empty", got="0 bytes", where=path)
    if head.startswith(_RIEGELI):
        raise DataError(
            "ArrayRecord files cannot be read in place",
            got="Riegeli's chunks: compressed, or cut by the headers of its blocks",
            where=path,
            remedy="write the records as TFRecord",
        )
    raise DataError(
        "the file's format is not known",
        got=f"the first bytes {head[:8].hex(' ')}",
        expected=", ".join(FORMATS),
        where=path,
        remedy='give format=; for any text or bytes format="windows" and length=',
    )


def refuse_compressed(path: Path) -> bytes:
    """The first bytes of a file that is not compressed as a whole.

    Raises:
        DataError: it is.
    """
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    compression = compression_of(head)
    if compression is not None:
        inner = path.with_name(name_of(path))
        format = _matching(inner, head_of(path))
        to = _PACKED_AS.get(format or "", "tfrecord")
        raise DataError(
            "the file is compressed, so its records cannot be read in place",
            got=compression,
            where=path,
            remedy=f"rewrite it: headrace pack {shlex.quote(str(path))} --to {to} --out NEW",
        )
    return head


def _matching(path: Path, head: bytes) -> str | None:
    """The first format that a file's name and first bytes go with."""
    return next((name for name, kind in FORMATS.items() if kind.matches(path, head)), None)


def make(name: str, options: Mapping[str, Any]) -> Format:
    """A format by its name.

    Raises:
        DataError: no such format; an option that it does not have, or lacks, or that is wrong.
    """
    kind = FORMATS.get(name)
    if kind is None:
        raise DataError("unknown format", got=repr(name), expected=", ".join(map(repr, FORMATS)))
    known = {option.name: option for option in fields(kind)}  # type: ignore[arg-type]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise DataError(
            f'format "{name}" has no such option',
            got=", ".join(unknown),
            expected=", ".join(known) or "none",
        )
    for option in known.values():
        if option.default is MISSING and option.name not in options:
            raise DataError(f'format "{name}" needs {option.name}=')
    return kind(**options)
