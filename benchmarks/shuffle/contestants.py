"""Those who shuffle: which order each gives, and what it needs beforehand."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sources import Direct, Source, Stream, whole
from stored import LAYOUTS, rewrite

import headrace

__all__ = ["CONTESTANTS", "Contestant", "OURS"]

OURS = "RandomOrder"
_NUM_BLOCKS = 10  # as much memory as a queue of 10 %

Prepare = Callable[[Path, int], Source]
"""(the layout's file, seed) -> the source; what the contestant needs beforehand is done in it."""


@dataclass(frozen=True)
class Contestant:
    """One way to shuffle.

    Args:
        name: as results have it.
        prepare: gives its source.
        layouts: those that it takes part in.
        is_queue: whether it is a shuffle queue over the data as it lies.
    """

    name: str
    prepare: Prepare
    layouts: tuple[str, ...] = LAYOUTS
    is_queue: bool = False


def random_order(path: Path, seed: int) -> Source:
    """Random shuffling by index."""
    return Direct(path, headrace.RandomOrder(seed))


def page_order(path: Path, seed: int) -> Source:
    """Neighbours that share a page come together."""
    order = headrace.PageOrder.for_pages(headrace.open(path), "data", seed=seed, page_bytes=4096)
    return Direct(path, order)


def block_order(path: Path, seed: int) -> Source:
    """Block minimisation: blocks are dealt and written, then each is read in one piece."""
    order = headrace.BlockOrder(seed, _NUM_BLOCKS)
    num_records = len(headrace.open(path))
    members = whole(order, num_records, 0)  # a block after another
    target = path.with_name(f"{path.stem}-blocks-{seed}.npy")
    setup_s = rewrite(path, target, members)
    return Stream(
        target,
        order,
        num_records // _NUM_BLOCKS,
        setup_s=setup_s,
        stored=members,
        block_records=num_records // _NUM_BLOCKS,
    )


def queue(percent: int, *, is_shuffled_before: bool = False) -> Prepare:
    """A sequential read through a queue of so many per cent of the data."""

    def prepare(path: Path, seed: int) -> Source:
        num_records = len(headrace.open(path))
        size = num_records * percent // 100
        order = headrace.BufferOrder(seed, size)
        if not is_shuffled_before:
            return Stream(path, order, size)
        members = np.random.default_rng(seed).permutation(num_records)
        target = path.with_name(f"{path.stem}-shuffled-{percent}-{seed}.npy")
        return Stream(target, order, size, setup_s=rewrite(path, target, members), stored=members)

    return prepare


CONTESTANTS = (
    Contestant(OURS, random_order),
    Contestant("PageOrder, 5 records", page_order),
    Contestant("blocks of 10 %, written", block_order),
    *(
        Contestant(f"queue of {percent} %", queue(percent), is_queue=True)
        for percent in (1, 5, 10, 50)
    ),
    *(
        Contestant(
            f"queue of {percent} %, pre-shuffled",
            queue(percent, is_shuffled_before=True),
            LAYOUTS[:1],
        )
        for percent in (10, 50)
    ),
)
