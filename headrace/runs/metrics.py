"""What a run measures: `metrics.jsonl`, and the newest figures for whoever watches."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.progress import Progress

if TYPE_CHECKING:
    import torch

    from headrace.pipeline.pipeline import Summary

__all__ = ["Meter", "overall", "read_metrics"]

Shares = Mapping[int, float]
"""stage -> the share of time that it was busy, 0 to 1."""


class Meter:
    """Writes a line for each batch and each epoch, and tells the progress twice a second.

    Lines are JSON objects with a member `kind`: "batch" (epoch, batch, loss, records, seconds since
    the epoch's start) or "epoch" (epoch, batches, records, left_out, loss, seconds, samples_per_s,
    busy and bytes_read by stage, and the evaluation's metrics). Batches are counted from 0 over the
    whole run, epochs from 1. A batch's records are those that were trained on, left_out are the
    others of the epoch's records; a loss of no record is null.

    Args:
        path: the file; what it held is gone.
        progress: told the newest figures.
        num_batches: batches in an epoch.
        busy: the stages' shares of busy time so far in this epoch, as far as known.
    """

    def __init__(
        self, path: Path, progress: Progress, num_batches: int, busy: Callable[[], Shares]
    ) -> None:
        self._file = path.open("w")
        self._progress = progress
        self._num_batches = num_batches
        self._busy = busy
        self._waiting: list[dict[str, object]] = []
        self.start_epoch(1)

    def start_epoch(self, epoch: int) -> None:
        """A new epoch starts now."""
        self._epoch = epoch
        self._start = self._told = time.perf_counter()
        self._batches = self._records = 0

    def on_batch(self, number: int, loss: "torch.Tensor", num_records: int) -> None:
        """Takes what the pipeline says after each update."""
        now = time.perf_counter()
        self._batches += 1
        self._records += num_records
        self._waiting.append(
            {
                "kind": "batch",
                "epoch": self._epoch,
                "batch": number,
                "loss": loss.detach(),  # stays where it is: reading it would stop the device
                "records": num_records,
                "seconds": round(now - self._start, 6),
            }
        )
        if now - self._told > 0.5:
            self._told = now
            self._tell(self._flush(), now - self._start)

    def _tell(self, loss: float | None, seconds: float) -> None:
        """Gives the newest figures to whoever watches."""
        self._progress.update(
            {
                "epoch": self._epoch,
                "batch": self._batches,
                "batches": self._num_batches,
                "samples_per_s": self._records / seconds,
                "loss": loss,
                "busy": self._busy(),
            }
        )

    def _flush(self) -> float | None:
        """Writes the waiting lines; returns the mean loss of their records."""
        total = weight = 0.0
        for line in self._waiting:
            loss, records = float(line["loss"]), int(line["records"])  # type: ignore[arg-type,call-overload]
            total, weight = total + loss * records, weight + records
            self._file.write(json.dumps({**line, "loss": loss if records else None}) + "\n")
        self._file.flush()
        self._waiting.clear()
        return total / weight if weight else None

    def end_epoch(
        self,
        summary: "Summary",
        stages: Mapping[int, tuple[float, int]],
        figures: Mapping[str, float],
    ) -> dict[str, Any]:
        """Writes the epoch's line, and returns it.

        Args:
            summary: of the epoch.
            stages: stage -> share of busy time, bytes read.
            figures: the evaluation's metrics.
        """
        self._flush()
        line = {
            "epoch": self._epoch,
            "batches": summary.num_batches,
            "records": summary.num_records,
            "left_out": summary.num_left_out,
            "loss": summary.loss,
            "seconds": round(summary.seconds, 6),
            "samples_per_s": round(summary.num_records / summary.seconds, 2),
            "busy": {str(stage): round(busy, 4) for stage, (busy, _) in stages.items()},
            "bytes_read": {str(stage): num_bytes for stage, (_, num_bytes) in stages.items()},
            **figures,
        }
        self._file.write(json.dumps({"kind": "epoch", **line}) + "\n")
        self._file.flush()
        return line

    def close(self) -> None:
        """Writes what waits and closes the file."""
        self._flush()
        self._file.close()


def overall(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of a run from the lines of its epochs.

    Sums over the run of what can be summed; of the last epoch the loss, busy and the metrics.
    """
    last = lines[-1]
    summed = ("batches", "records", "left_out", "seconds")
    sums = {name: sum(line[name] for line in lines) for name in summed}
    return {
        "epochs": len(lines),
        **{name: value for name, value in last.items() if name != "epoch"},
        **sums,
        "seconds": round(sums["seconds"], 6),
        "samples_per_s": round(sums["records"] / sums["seconds"], 2),
        "bytes_read": {
            stage: sum(line["bytes_read"][stage] for line in lines) for stage in last["bytes_read"]
        },
    }


def read_metrics(folder: Path, kind: str) -> list[dict[str, Any]]:
    """The lines of one kind ("batch" or "epoch") in a run's folder, in order."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == kind]
