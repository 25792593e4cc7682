"""What takes items is given them one by one."""

import threading

import pytest

from headrace.pipeline.turns import Turns


def test_it_goes_as_far_as_the_items_carry():
    """Each item is dealt with before give returns; the function ends with the items."""
    seen = []

    def consume(items):
        seen.append("start")
        for item in items:
            seen.append(item)
        seen.append("end")

    turns = Turns(consume)
    assert seen == ["start"]
    for number in range(3):
        turns.give(number)
        assert seen == ["start", *range(number + 1)]
    turns.end()
    assert seen[-1] == "end"


def test_what_it_raises_comes_to_the_caller():
    """At the item that caused it, with its own traceback; no thread is left."""

    def consume(items):
        for item in items:
            1 / item

    turns = Turns(consume)
    turns.give(1)
    with pytest.raises(ZeroDivisionError):
        turns.give(0)
    turns._thread.join(5)
    assert not turns._thread.is_alive()


def test_it_may_look_ahead():
    """A function that wants two items before it does anything is given two."""
    pairs = []

    def consume(items):
        for first in items:
            pairs.append((first, next(items, None)))

    turns = Turns(consume)
    turns.give(1)
    assert pairs == []
    turns.give(2)
    turns.give(3)
    turns.end()
    assert pairs == [(1, 2), (3, None)]
    assert all(t.name != "headrace-pipeline" for t in threading.enumerate())
