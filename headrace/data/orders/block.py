"""Block minimisation: random blocks, dealt once for all epochs, one after another."""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.order import Identity, Order, checked_positions, require_whole
from headrace.data.permutation import hashed, keyed_bijection, keys_of, permuted

__all__ = ["BlockOrder"]


@final
@dataclass(frozen=True)
class BlockOrder(Order):
    """Records are dealt to B blocks once; an epoch shuffles the blocks, and the records in each.

    The order of the block minimisation framework (Yu, Hsieh, Chang and Lin, KDD 2010), which holds
    one block in memory at a time. What is lost: the members of a block meet in every epoch, those
    of different blocks never within one block's share of it.

    Block sizes differ by at most 1. A call takes memory for the positions and for B numbers.

    Args:
        seed: a whole number, at least 0.
        num_blocks: B, at least 1.

    Raises:
        DataError: they are something else.
    """

    seed: int = 0
    num_blocks: int = 1
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_whole("the seed", self.seed, 0)
        require_whole("num_blocks", self.num_blocks, 1)

    @property
    def identity(self) -> Identity:
        """Kind, version, seed and number of blocks."""
        return {
            "kind": "block",
            "version": self.version,
            "seed": self.seed,
            "num_blocks": self.num_blocks,
        }

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order."""
        positions = checked_positions(self, positions, num_records, epoch)
        text = f"headrace block order {self.version}, seed {self.seed}"
        size, num_larger = divmod(num_records, self.num_blocks)
        number = np.arange(self.num_blocks)
        sizes = size + (number < num_larger)
        blocks = permuted(number, self.num_blocks, keys_of(f"{text}, epoch {epoch}"))
        stops = np.cumsum(sizes[blocks])
        place = np.searchsorted(stops, positions, side="right")
        mine = blocks[place]
        within = positions - (stops - sizes[blocks])[place]
        within = _shuffled(within, mine, sizes[mine], keys_of(f"{text}, within, epoch {epoch}"))
        dealt = mine * size + np.minimum(mine, num_larger) + within
        return permuted(dealt, num_records, keys_of(f"{text}, blocks"))


def _shuffled(
    within: NDArray[np.int64],
    blocks: NDArray[np.int64],
    sizes: NDArray[np.int64],
    keys: NDArray[np.uint64],
) -> NDArray[np.int64]:
    """Each block by a bijection of its own, all blocks of a size at once."""
    found = np.empty_like(within)
    for size in np.unique(sizes).tolist():
        some = sizes == size
        theirs = hashed(blocks[some].astype(np.uint64), keys[:, np.newaxis])
        found[some] = keyed_bijection(within[some], size, theirs)
    return found
