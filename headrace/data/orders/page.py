"""Page-aware shuffling: neighbours that share a page of the disk come together."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.order import Identity, Order, checked_positions, require_whole
from headrace.data.permutation import keys_of, permuted
from headrace.errors import DataError

if TYPE_CHECKING:
    from headrace.data.records import Records

__all__ = ["PageOrder"]

_NUM_LOOKED_AT = 64


@final
@dataclass(frozen=True)
class PageOrder(Order):
    """Groups of g consecutive records in a random order; the records of a group one after another.

    The page-aware shuffle of LIRS (arXiv 1810.04509), for records much smaller than a page: one
    read serves a whole group. If the batch size is a multiple of g, every group comes within one
    batch, where the order of the rows means nothing to the gradient; so it is the file's. What is
    lost: the records of a group always train together, and a batch holds batch_size / g independent
    choices instead of batch_size.

    If g does not divide the number of records, the last group is short; the place that it leaves
    free is filled from one other group, another one each epoch, whose rest ends the epoch.

    Args:
        seed: a whole number, at least 0.
        group_size: g, at least 1; 1 shuffles all records.

    Raises:
        DataError: they are something else.
    """

    seed: int = 0
    group_size: int = 1
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_whole("the seed", self.seed, 0)
        require_whole("group_size", self.group_size, 1)

    @classmethod
    def for_pages(
        cls, records: "Records", field: str, page_bytes: int = 4096, seed: int = 0
    ) -> "PageOrder":
        """The order whose groups are what a page holds of a field's records, on average.

        Groups begin with the first record, pages with the file: where a record's size does not
        divide a page's, or the file has a header, groups touch two pages. Pages of several times
        4096 bytes make that matter less. Records of a file each are groups of their own.

        Args:
            records: what will be read.
            field: one whose records lie one after another.
            page_bytes: of a page, or of any block that is to be read at once.
            seed: of the order.

        Raises:
            DataError: no such field, or its records do not lie so, such as those of a random split.
        """
        require_whole("page_bytes", page_bytes, 1)
        firsts = np.unique(np.linspace(0, max(0, len(records) - 2), _NUM_LOOKED_AT).astype(int))
        firsts = firsts[firsts < len(records) - 1]
        spans, following = records.spans(firsts, field), records.spans(firsts + 1, field)
        pieces = len(spans.offsets) - len(firsts)
        distances = np.zeros(1) if pieces else following.offsets - spans.offsets
        if not pieces:
            distances = distances[following.files == spans.files]
        if (distances <= 0).any():
            raise DataError(
                "records do not lie one after another",
                where=f"field {field!r}",
                remedy="choose the group_size of a PageOrder yourself",
            )
        return cls(seed, max(1, int(page_bytes // distances.mean())) if len(distances) else 1)

    def independent_records(self, batch_size: int, correlation: float) -> float:
        """As how many records, drawn independently, a batch counts for the mean of its gradients.

        The variance of that mean is sigma^2 / b (1 + (g - 1) rho), where that of independent ones
        is sigma^2 / n.

        Args:
            batch_size: b, a multiple of g.
            correlation: rho, between the gradients of two records of a group: 1 where neighbours in
                the file are all alike, such as on a sorted one, 0 where they are no more alike than
                any two.

        Source: Kish (1965), "Survey Sampling", section 5.4: the design effect of clusters.
        """
        return batch_size / (1 + (min(self.group_size, batch_size) - 1) * correlation)

    @property
    def identity(self) -> Identity:
        """Kind, version, seed and group size."""
        return {
            "kind": "page",
            "version": self.version,
            "seed": self.seed,
            "group_size": self.group_size,
        }

    def indices(
        self, positions: NDArray[np.int64], num_records: int, epoch: int
    ) -> NDArray[np.int64]:
        """See Order."""
        positions = checked_positions(self, positions, num_records, epoch)
        if not num_records:
            return positions.copy()
        keys = keys_of(f"headrace page order {self.version}, seed {self.seed}, epoch {epoch}")
        num_groups = -(-num_records // self.group_size)
        places, within = np.divmod(positions, self.group_size)
        # The group at the last place is the one that fills up the short one, unless it is that.
        places = np.append(places, num_groups - 1)
        *groups, filling = np.split(permuted(places, num_groups, keys), [len(positions)])
        found: NDArray[np.int64] = groups[0] * self.group_size + within
        return np.where(found < num_records, found, filling * self.group_size + within)
