"""Ctrl-C: whatever a command is doing, it ends with one word and one status."""

import signal
import sys
from threading import Timer, main_thread
from types import FrameType, TracebackType
from typing import Self, final

__all__ = ["INTERRUPTED", "Interrupted", "Interrupts"]

INTERRUPTED = 130
"""The exit status of what SIGINT ended, as shells have it."""
AGAIN_S = 0.05


class Interrupted(KeyboardInterrupt):
    """Ctrl-C. Python itself ends by the signal, at its very end and whatever was made of it in
    between, once a KeyboardInterrupt has passed through a text that it runs; one of these may."""


@final
class Interrupts:
    """Around a command: SIGINT raises `Interrupted` in it, and is all that is said of its end.

    A process that was started to ignore SIGINT goes on ignoring it.
    """

    def __init__(self) -> None:
        self.came = False

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._interrupt)
            sys.unraisablehook = self._ignored
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType
    ) -> None:
        is_whole = isinstance(error, SystemExit) and not error.code
        if self.came and not is_whole:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            from headrace.cli.speaking import say

            say("interrupted")
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            raise SystemExit(INTERRUPTED)
        self.leave()

    def leave(self) -> None:
        """From now on SIGINT ends this process at once, in silence: what a process with a launcher
        should do, whose peers would be sent half of a message if it tidied up."""
        sys.unraisablehook = sys.__unraisablehook__
        if signal.getsignal(signal.SIGINT) == self._interrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        raise Interrupted

    def _ignored(self, ignored: "sys.UnraisableHookArgs") -> None:
        """An interrupt that came where nothing can be raised, as in a finaliser, comes again."""
        if not issubclass(ignored.exc_type, Interrupted):
            sys.__unraisablehook__(ignored)
            return
        main = main_thread().ident
        assert main is not None
        again = Timer(AGAIN_S, signal.pthread_kill, args=[main, signal.SIGINT])
        again.daemon = True
        again.start()
