"""Which layers each stage has, decided once by measuring them."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from headrace.pipeline.graph import Layer, require_untied
from headrace.pipeline.partition import partition
from headrace.pipeline.profile import profile
from headrace.runs.config import Run
from headrace.runs.feed import sample_of
from headrace.runs.prepare import Prepared

__all__ = ["Part", "Placement", "place"]


@dataclass(frozen=True)
class Part:
    """The layers of one stage.

    Args:
        first: the name of its first layer in the model.
        last: the name of its last layer.
        num_layers: how many.
        num_parameters: trained and frozen ones.
        share: of the measured time of all layers, 0 to 1; None where the cuts were given.
    """

    first: str
    last: str
    num_layers: int
    num_parameters: int
    share: float | None


@dataclass(frozen=True)
class Placement:
    """The layers of all stages. Prints as a table.

    Args:
        cuts: the first layer of each stage but the first.
        parts: one a stage.
    """

    cuts: tuple[int, ...]
    parts: tuple[Part, ...]

    def to_json(self) -> dict[str, object]:
        """As JSON, for the run's folder and the other processes."""
        return {"cuts": list(self.cuts), "parts": [asdict(part) for part in self.parts]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Placement":
        """The reverse of `to_json`."""
        return cls(tuple(value["cuts"]), tuple(Part(**part) for part in value["parts"]))

    def __str__(self) -> str:
        rows = [("stage", "layers", "parameters", "share of time")]
        for stage, part in enumerate(self.parts):
            names = part.first if part.num_layers == 1 else f"{part.first} to {part.last}"
            share = "given" if part.share is None else f"{part.share:.0%}"
            rows.append(
                (str(stage), f"{part.num_layers}: {names}", f"{part.num_parameters:,}", share)
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                (
                    cells[0].rjust(widths[0]),
                    cells[1].ljust(widths[1]),
                    cells[2].rjust(widths[2]),
                    cells[3].rjust(widths[3]),
                )
            )
            for cells in rows
        )


def place(
    run: Run, prepared: Prepared, *, cuts: tuple[int, ...] | None, device: torch.device
) -> Placement:
    """Cuts the model so that the slowest stage is as fast as can be.

    Args:
        run: how many stages and threads.
        prepared: the layers, and the records whose first ones the layers are measured on.
        cuts: those given or stored; None measures.
        device: where the stages will compute.

    Raises:
        ModelError: the cuts that were measured part two uses of one tensor.
    """
    seconds = None
    if cuts is None and run.stages > 1:
        seconds = _measured(run, prepared, device)
        cuts = partition(seconds, run.stages)
        require_untied(prepared.layers, cuts)
    return _placement(prepared.layers, cuts or (), seconds)


def _measured(run: Run, prepared: Prepared, device: torch.device) -> list[float]:
    """Seconds of each layer for a micro-batch, measured with a stage's number of threads."""
    inputs = sample_of(run, prepared.records).to(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(run.threads_per_stage)
    try:
        _move(prepared.layers, device)
        return [cost.total_s for cost in profile(prepared.layers, inputs)]
    finally:
        _move(prepared.layers, torch.device("cpu"))
        torch.set_num_threads(threads)


def _move(layers: Sequence[Layer], device: torch.device) -> None:
    for layer in layers:
        layer.module.to(device)


def _placement(
    layers: Sequence[Layer], cuts: tuple[int, ...], seconds: Sequence[float] | None
) -> Placement:
    parts = []
    for start, stop in pairwise((0, *cuts, len(layers))):
        chosen = layers[start:stop]
        parts.append(
            Part(
                first=chosen[0].name,
                last=chosen[-1].name,
                num_layers=len(chosen),
                num_parameters=sum(p.numel() for la in chosen for p in la.module.parameters()),
                share=None if seconds is None else sum(seconds[start:stop]) / sum(seconds),
            )
        )
    return Placement(cuts, tuple(parts))
