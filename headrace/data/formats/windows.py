"""Text or any bytes as windows of fixed length, which may overlap and never span two files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, final

from headrace.data.formats.format import BYTE, Format
from headrace.data.formats.layout import Layout
from headrace.errors import DataError
from headrace.progress import Progress

__all__ = ["Windows"]


@final
@dataclass(frozen=True)
class Windows(Format):
    """Field "window", and with ahead > 0 field "next": the same windows that many bytes later.

    A file of s bytes has (s - length - ahead) // stride + 1 windows, none if it is shorter than
    length + ahead. What is left at its end belongs to no window.

    Args:
        length: bytes of a window.
        stride: bytes from one window to the next; None is the length.
        ahead: how many bytes later the second field begins; 0 leaves it out.

    Raises:
        DataError: a number that is not whole or too small.
    """

    length: int
    stride: int | None = None
    ahead: int = 0

    name: ClassVar[str] = "windows"
    takes_any_bytes: ClassVar[bool] = True
    is_indexed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        stride = self.length if self.stride is None else self.stride
        for name, value, least in (
            ("length", self.length, 1),
            ("stride", stride, 1),
            ("ahead", self.ahead, 0),
        ):
            if type(value) is not int or value < least:
                raise DataError(
                    f"{name} of the windows is wrong",
                    got=repr(value),
                    expected=f"a whole number of bytes, at least {least}",
                )

    def scan(self, path: Path, progress: Progress) -> Mapping[str, Layout]:
        """From the file's size."""
        stride = self.stride or self.length
        left = path.stat().st_size - self.length - self.ahead
        num_windows = left // stride + 1 if left >= 0 else 0
        layouts = {"window": Layout(BYTE, (self.length,), num_windows, 0, stride)}
        if self.ahead:
            layouts["next"] = Layout(BYTE, (self.length,), num_windows, self.ahead, stride)
        return layouts
