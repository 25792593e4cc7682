"""The shuffle queue: a sequential read through a buffer that gives out records at random."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.order import Identity, Order, checked_positions, require_whole
from headrace.data.permutation import hashed, keys_of, permuted

__all__ = ["BufferOrder"]

_WINDOW = 1 << 16  # steps that are looked at together, from the last one back


@final
@dataclass(frozen=True)
class BufferOrder(Order):
    """What a queue of Q records gives that a sequential read keeps full.

    It is filled with the first Q records. Each step gives out the record of a random slot and puts
    the next one of the file there; when the file ends, the rest comes in a random order. So do
    tf.data's ``shuffle`` (TFIP, the baseline of LIRS) and Hugging Face's streaming data sets;
    WebDataset begins before its buffer is full, which mixes less. What is lost: the record at
    position p is one of the first p + Q, and most lie within a few Q of p; sorted or grouped data
    stay so.

    A queue seems to need a replay from the epoch's start. But with slots from a counter-based
    generator, what lies in a slot is told by the last step before that chose it, which is Q steps
    back on average: any position costs about Q steps, wherever in the epoch it is. A call takes
    memory for the positions and for Q small numbers, with no state between calls.

    Args:
        seed: a whole number, at least 0.
        buffer_size: Q, at least 1; 1 is the file's order.

    Raises:
        DataError: they are something else.
    """

    seed: int = 0
    buffer_size: int = 1000
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_whole("the seed", self.seed, 0)
        require_whole("buffer_size", self.buffer_size, 1)

    @property
    def identity(self) -> Identity:
        """Kind, version, seed and size of the queue."""
        return {
            "kind": "buffer",
            "version": self.version,
            "seed": self.seed,
            "buffer_size": self.buffer_size,
        }

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order."""
        positions = checked_positions(self, positions, num_records, epoch)
        if not len(positions):
            return positions.copy()
        text = f"headrace buffer order {self.version}, seed {self.seed}, epoch {epoch}"
        queue = _Queue(min(self.buffer_size, num_records), keys_of(text)[0])
        num_steps = num_records - queue.num_slots  # after these, the file has ended
        slots = queue.slots(positions)
        is_rest = positions >= num_steps
        if is_rest.any():
            rest = positions[is_rest] - num_steps
            slots[is_rest] = permuted(rest, queue.num_slots, keys_of(f"{text}, rest"))
        return queue.contents(slots, np.minimum(positions, num_steps))


class _Queue:
    """The slots of a queue, and at each step the one whose record is replaced."""

    def __init__(self, num_slots: int, key: np.uint64) -> None:
        self.num_slots = num_slots
        self._key = key

    def slots(self, steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot that each step chooses."""
        chosen: NDArray[np.uint64] = hashed(steps.astype(np.uint64), self._key)
        chosen %= np.uint64(self.num_slots)
        return chosen.astype(np.int64)

    def contents(self, slots: NDArray[np.int64], steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """The record in each of these slots just before a step.

        Step s puts record Q + s into the slot that it chooses, and slot i begins with record i.
        """
        found = slots.copy()
        open_questions = np.arange(len(slots))
        stops = steps.copy()
        while len(open_questions := open_questions[stops[open_questions] > 0]):
            stop = int(stops[open_questions].max())
            first = max(0, stop - _WINDOW)
            asked = open_questions[stops[open_questions] > first]
            before = self._last_before(slots[asked], stops[asked], first, stop)
            is_found = before >= 0
            found[asked[is_found]] = self.num_slots + before[is_found]
            stops[asked] = np.where(is_found, 0, first)
        return found

    def _last_before(
        self, slots: NDArray[np.int64], stops: NDArray[np.int64], first: int, stop: int
    ) -> NDArray[np.int64]:
        """The last step in [first, stops) that chose the slot, or -1."""
        is_asked = np.zeros(self.num_slots, bool)
        is_asked[slots] = True
        chosen = self.slots(np.arange(first, stop))
        steps = np.flatnonzero(is_asked[chosen])
        width = stop - first + 1
        # Sorted by slot, then by step: the one just below (slot, stop) is the answer if of the slot
        events = np.sort(chosen[steps] * width + steps)
        place = np.searchsorted(events, slots * width + (stops - first)) - 1
        last = events[np.maximum(place, 0)] if len(events) else np.full(len(slots), -1)
        is_answer = (place >= 0) & (last // width == slots)
        return np.where(is_answer, first + last % width, -1)
