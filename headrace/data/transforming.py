"""What becomes of decoded records before they are a batch: the user's transform and collate."""

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from headrace.data.samples import Sample, samples_of, stacked
from headrace.errors import DataError, HeadraceError, RunError

__all__ = ["Collate", "Transform", "Transforming", "generator_of", "wants_generator"]

Transform = Callable[..., Mapping[str, Any] | None]
"""(sample) or (sample, generator) -> sample; None leaves the record out."""

Collate = Callable[[list[Sample]], Mapping[str, Any]]
"""(samples) -> batch, one row a sample."""


@final
@dataclass(frozen=True)
class Transforming:
    """The samples of a batch through the transform and the collate function.

    Args:
        transform: or None.
        collate: or None, which stacks what is of one shape; see stacked.
        seed: of the generators that the transform gets.
    """

    transform: Transform | None
    collate: Collate | None
    seed: int

    @property
    def may_filter(self) -> bool:
        """Whether records may be left out."""
        return self.transform is not None

    def __call__(
        self,
        batch: Mapping[str, Any],
        indices: NDArray[np.int64],
        positions: NDArray[np.int64],
        epoch: int,
    ) -> tuple[dict[str, Any], NDArray[np.int64]]:
        """A batch of R records.

        Args:
            batch: their fields.
            indices: int64[R], the records, for messages.
            positions: int64[R], where in the epoch they come.
            epoch: counted from 0.

        Returns:
            The new batch, and which of the R rows it has; {} if none.

        Raises:
            RunError: one of the functions raised; names the record.
        """
        samples = samples_of(batch, len(indices))
        stay = np.arange(len(indices))
        if self.transform is not None:
            kept = []
            draws = wants_generator(self.transform)
            for row, sample in enumerate(samples):
                random = (generator_of(self.seed, epoch, int(positions[row])),) if draws else ()
                made = self._transformed(sample, random, int(indices[row]))
                if made is not None:
                    kept.append((row, dict(made)))
            stay = np.array([row for row, _ in kept], np.int64)
            samples = [sample for _, sample in kept]
        return (self._collated(samples) if samples else {}), stay

    def _transformed(
        self, sample: Sample, random: tuple[np.random.Generator, ...], index: int
    ) -> Any:
        assert self.transform is not None
        try:
            made = self.transform(sample, *random)
        except HeadraceError:
            raise
        except Exception as error:
            raise RunError(
                "the transform failed", got=repr(error), where=f"record {index}"
            ) from error
        if made is not None and not isinstance(made, Mapping):
            raise DataError(
                "the transform returned no sample",
                got=type(made).__name__,
                expected="a dict of field -> value, or None to leave the record out",
                where=f"record {index}",
            )
        return made

    def _collated(self, samples: list[Sample]) -> dict[str, Any]:
        if self.collate is None:
            return stacked(samples)
        try:
            batch = self.collate(samples)
        except HeadraceError:
            raise
        except Exception as error:
            raise RunError("the collate function failed", got=repr(error)) from error
        for name, values in batch.items():
            if not hasattr(values, "__len__") or len(values) != len(samples):
                raise DataError(
                    "the collate function returned another number of rows",
                    got=len(values) if hasattr(values, "__len__") else repr(values),
                    expected=f"{len(samples)}, one a sample",
                    where=f"field {name!r}",
                )
        return dict(batch)


def generator_of(seed: int, epoch: int, position: int) -> np.random.Generator:
    """The random generator of one record of an epoch: a function of these three numbers alone.

    Keys come from blake2b, so no two records share a stream, whatever workers there are.
    """
    text = f"headrace transform 1, seed {seed}, epoch {epoch}, position {position}"
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest, "little")))


def wants_generator(transform: Callable[..., Any]) -> bool:
    """Whether it takes a second argument without a default."""
    try:
        parameters = inspect.signature(transform).parameters.values()
    except (TypeError, ValueError):  # of compiled functions nothing is known
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [one for one in parameters if one.kind in positional and one.default is one.empty]
    return len(needed) == 2
