"""Progress on a terminal as one live line, elsewhere as a plain line every few seconds."""

import sys
import time
from collections.abc import Mapping
from typing import Self, final

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["LiveLine", "PlainLines", "line", "on_screen"]


def on_screen() -> "LiveLine | PlainLines":
    """The progress that suits where the output goes."""
    return LiveLine() if sys.stdout.isatty() else PlainLines()


def line(facts: Mapping[str, object]) -> str:
    """The newest figures of a run in one line, how busy each stage is among them."""
    parts = [f"epoch {facts['epoch']}", f"batch {facts['batch']}/{facts['batches']}"]
    parts.append(f"{facts['samples_per_s']:,.0f} samples/s")
    if facts["loss"] is not None:
        parts.append(f"loss {facts['loss']:.4f}")
    busy = facts["busy"]
    if isinstance(busy, Mapping) and busy:
        parts.append("busy " + " ".join(f"{share:.0%}" for share in busy.values()))
    return "  ".join(parts)


@final
class LiveLine:
    """One line at the bottom that changes in place; what is said once scrolls above it."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        return self  # nothing yet: of several processes on one terminal only one has figures

    def __exit__(self, *_: object) -> None:
        if self._live.is_started:
            self._live.update(Text(""))
            self._live.stop()

    def say(self, text: str) -> None:
        """One line, or a few, for good."""
        self._console.print(text, markup=False, soft_wrap=True)

    def update(self, facts: Mapping[str, object]) -> None:
        """Replaces the live line."""
        done, all_ = float(str(facts["batch"])), float(str(facts["batches"]))
        filled = round(20 * done / all_) if all_ else 0
        bar = Text("━" * filled, style="green") + Text("━" * (20 - filled), style="bright_black")
        self._live.update(bar + Text("  " + line(facts)))
        if not self._live.is_started:
            self._live.start()


@final
class PlainLines:
    """A line every few seconds, for files and pipes.

    Args:
        interval_s: the least time between two lines of progress.
    """

    def __init__(self, interval_s: float = 10.0) -> None:
        self._interval_s = interval_s
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """One line, or a few."""
        print(text, flush=True)

    def update(self, facts: Mapping[str, object]) -> None:
        """A line, if the last one is long enough ago."""
        if time.monotonic() - self._said >= self._interval_s:
            self._said = time.monotonic()
            print(line(facts), flush=True)
