"""A folder whose files are the records, whole, labelled by the sub-folder that they lie in."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.formats.column import Column, Files, Values
from headrace.data.formats.extensions import value_of
from headrace.data.formats.format import Format, bytes_of
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Folder"]

_Found = tuple[str, int, int]
"""A file's path in the folder, its bytes, and when it was last written, in ns."""


@final
@dataclass(frozen=True)
class Folder(Format):
    """Field "file", the bytes of a file; where there are sub-folders also "label", int64.

    Classes are the sub-folders in sorted order, and records.fields["label"].about["classes"] names
    them. Records are the files of the first class, then of the next; within a class in the sorted
    order of their paths, however deep. Hidden files and folders are passed over; so are files
    beside the sub-folders, which have no class. Links are followed.

    Args:
        decoded: files are images, and their values uint8[height, width, 3]; needs Pillow.
        suffixes: of the files that are records, such as (".jpg", ".png"); () takes all.

    Source: torchvision's ImageFolder.
    """

    decoded: bool = False
    suffixes: tuple[str, ...] = ()

    name: ClassVar[str] = "folder"
    takes_folders: ClassVar[bool] = True
    takes_any_bytes: ClassVar[bool] = True
    is_indexed: ClassVar[bool] = False

    @classmethod
    def matches(cls, path: Path, head: bytes) -> bool:
        """Any folder."""
        return path.is_dir()

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Column]:
        """From the names and sizes of all files; none is opened.

        Raises:
            DataError: no folder, no files in it, a link that leads nowhere or back.
        """
        if not path.is_dir():
            raise DataError("not a folder", got=path, remedy="give the folder, not its files")
        entries = sorted(_visible(path), key=lambda entry: entry.name)
        classes = [entry.name for entry in entries if entry.is_dir()]
        if not classes:
            return {"file": self._files(path, sorted(self._below(path, "", ())))}
        others = len(entries) - len(classes)
        if others:
            progress.say(f"{others} files in {path} lie beside its classes and are left out")
        found: list[_Found] = []
        stops = []
        for name in classes:
            found += sorted(self._below(path / name, f"{name}/", (_identity(path),)))
            stops.append(len(found))
        labels = np.repeat(np.arange(len(classes)), np.diff([0, *stops]))
        return {
            "file": self._files(path, found),
            "label": Values(labels.astype(np.int64), {"classes": classes}),
        }

    def decode(self, field: str, record: NDArray[np.uint8], about: Mapping[str, Any]) -> Any:
        """Bytes, or an image, whose kind its first bytes tell.

        Raises:
            ValueError: they are no image.
            RunError: Pillow is missing.
        """
        return value_of("jpg", record.tobytes()) if self.decoded else record.tobytes()

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

    def _files(self, path: Path, found: list[_Found]) -> Files:
        if not found:
            kinds = f" whose names end in {' or '.join(self.suffixes)}" if self.suffixes else ""
            raise DataError(f"the folder has no files{kinds}", where=path)
        names, sizes, changed_ns = zip(*found, strict=True)
        return Files(path, names, np.array(sizes, np.int64), np.array(changed_ns, np.int64))

    def _below(
        self, folder: Path, prefix: str, above: tuple[tuple[int, int], ...]
    ) -> Iterator[_Found]:
        """The files in a folder and those below it; `above` are the folders that it lies in."""
        here = _identity(folder)
        if here in above:
            raise DataError("a link leads back to a folder that it lies in", where=folder)
        for entry in _visible(folder):
            if entry.is_dir():
                yield from self._below(
                    folder / entry.name, f"{prefix}{entry.name}/", (*above, here)
                )
            elif self.suffixes and not entry.name.lower().endswith(self.suffixes):
                continue
            elif entry.is_file():
                status = entry.stat()
                yield f"{prefix}{entry.name}", status.st_size, status.st_mtime_ns
            elif entry.is_symlink():
                raise DataError("a link leads nowhere", where=folder / entry.name)


def _visible(folder: Path) -> Iterator["os.DirEntry[str]"]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith("."):
                yield entry


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino
