"""Lets what takes items from an iterator be given them one by one: two threads in turns."""

import threading
from collections.abc import Callable, Iterator
from typing import Any, final

__all__ = ["Turns"]


@final
class Turns:
    """A function that consumes an iterator, run just as far as the items given so far carry it.

    It runs in a thread of its own, and only while the caller waits for it: there is never more than
    one of the two at work, so random numbers and results do not depend on how they are scheduled.

    Args:
        consume: takes the items; runs until they end.
    """

    def __init__(self, consume: Callable[[Iterator[Any]], None]) -> None:
        self._consume = consume
        self._item: Any = None
        self._is_last = False
        self._error: BaseException | None = None
        self._may_go = threading.Semaphore(0)
        self._waits = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="headrace-pipeline", daemon=True)
        self._thread.start()
        self._take_turn()  # until it asks for the first item

    def give(self, item: Any) -> None:
        """Lets the function go on with one more item, until it asks for the next.

        Raises:
            BaseException: what the function raised; it is over then.
        """
        self._item = item
        self._may_go.release()
        self._take_turn()

    def end(self) -> None:
        """Ends the items and waits for the function.

        Raises:
            BaseException: what the function raised.
        """
        self._is_last = True
        self._may_go.release()
        self._take_turn()
        self._thread.join()

    def _take_turn(self) -> None:
        self._waits.acquire()
        if self._error is not None:
            raise self._error

    def _items(self) -> Iterator[Any]:
        while True:
            self._waits.release()
            self._may_go.acquire()
            if self._is_last:
                return
            item, self._item = self._item, None
            yield item
            del item

    def _run(self) -> None:
        try:
            self._consume(self._items())
        except BaseException as error:
            self._error = error
        self._waits.release()
