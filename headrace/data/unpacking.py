"""Compressed files of a data set, unpacked for a while into a folder of their own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.data.formats import FORMATS
from headrace.data.formats.compressed import HEAD_BYTES, compression_of, name_of, unpacking
from headrace.data.refusals import reading
from headrace.progress import Progress

__all__ = ["unpacked"]

_PIECE_BYTES = 1 << 20


@contextmanager
def unpacked(
    paths: Sequence[Path], format: str | None, beside: Path, progress: Progress
) -> Iterator[list[Path]]:
    """The files, those that are compressed as a whole replaced by what they hold.

    What is unpacked lies in a folder beside a path until the end of the block.

    Args:
        paths: files, or folders, which are left as they are.
        format: of the files, if it is given; where any bytes may be a file of it, only those are
            compressed that look so and whose name says so.
        beside: whose disk has room for them.
        progress: is told ``bytes`` of the compressed files read so far and ``num_bytes``.

    Raises:
        DataError: a file is damaged or cannot be read.
        RunError: a package that unpacks it is missing.
    """
    kind = FORMATS.get(format or "")
    by_name = kind is not None and kind.takes_any_bytes
    packed = [path for path in paths if reading(path, _is_packed, path, by_name)]
    if not packed:
        yield list(paths)
        return
    num_bytes, num_done = sum(path.stat().st_size for path in packed), 0
    beside.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f".{beside.name}.", dir=beside.parent) as folder:
        found: dict[Path, Path] = {}
        for number, path in enumerate(packed):
            found[path] = Path(folder) / str(number) / name_of(path)
            found[path].parent.mkdir()
            with path.open("rb") as file, unpacking(file) as source, found[path].open("wb") as new:
                while piece := source.read(_PIECE_BYTES):
                    new.write(piece)
                    progress.update({"bytes": num_done + file.tell(), "num_bytes": num_bytes})
                num_done += file.tell()
        yield [found.get(path, path) for path in paths]


def _is_packed(path: Path, by_name: bool) -> bool:
    if path.is_dir() or (by_name and name_of(path) == path.name):
        return False
    with path.open("rb") as file:
        return compression_of(file.read(HEAD_BYTES)) is not None
