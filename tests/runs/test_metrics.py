"""metrics.jsonl has a line for each batch and each epoch; the results are made of them."""

import json

import pytest
import torch

from headrace.pipeline.pipeline import Summary
from headrace.runs.metrics import Meter, overall, read_metrics


class Watcher:
    """Remembers the newest figures that it was told."""

    def __init__(self):
        self.updates = []

    def say(self, text):
        raise AssertionError("a meter says nothing")

    def update(self, facts):
        self.updates.append(facts)


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_batches_and_epochs(tmp_path):
    """In order; what the file held is gone."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("old\n")
    meter = Meter(path, Watcher(), 2, dict)
    meter.start_epoch(1)
    meter.on_batch(0, torch.tensor(2.0), 8)
    meter.on_batch(1, torch.tensor(1.0), 4)
    summary = Summary(2, 12, 0, 5 / 3, 0.5, {0: 0.9})
    line = meter.end_epoch(summary, {0: (0.123456, 96), 1: (0.5, 12)}, {"accuracy": 0.75})
    meter.start_epoch(2)
    meter.on_batch(2, torch.tensor(0.5), 8)
    meter.close()

    first, second, epoch, third = lines_of(path)
    assert {**first, "seconds": 0} == {
        "kind": "batch", "epoch": 1, "batch": 0, "loss": 2.0, "records": 8, "seconds": 0,
    }  # fmt: skip
    assert (second["batch"], second["loss"], second["records"]) == (1, 1.0, 4)
    assert 0 < first["seconds"] < second["seconds"]
    assert epoch == {
        "kind": "epoch",
        "epoch": 1,
        "batches": 2,
        "records": 12,
        "left_out": 0,
        "loss": 5 / 3,
        "seconds": 0.5,
        "samples_per_s": 24.0,
        "busy": {"0": 0.1235, "1": 0.5},
        "bytes_read": {"0": 96, "1": 12},
        "accuracy": 0.75,
    }
    assert {"kind": "epoch", **line} == epoch
    assert (third["epoch"], third["batch"]) == (2, 2)
    assert read_metrics(tmp_path, "epoch") == [epoch]
    assert read_metrics(tmp_path, "batch") == [first, second, third]


def test_who_watches_is_told(tmp_path, monkeypatch):
    """At most twice a second: the mean loss since the last time, the records per second so far."""
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    watcher = Watcher()
    meter = Meter(tmp_path / "metrics.jsonl", watcher, 4, lambda: {0: 0.5, 1: 0.25})
    meter.start_epoch(1)
    for number, (second, loss, records) in enumerate(
        [(100.25, 4.0, 6), (100.75, 1.0, 2), (101.0, 9.0, 8), (101.5, 5.0, 8)]
    ):
        now[0] = second
        meter.on_batch(number, torch.tensor(loss), records)

    first = {"epoch": 1, "batch": 2, "batches": 4, "busy": {0: 0.5, 1: 0.25}}
    assert watcher.updates == [
        {**first, "loss": (4.0 * 6 + 1.0 * 2) / 8, "samples_per_s": 8 / 0.75},
        {**first, "batch": 4, "loss": 7.0, "samples_per_s": 24 / 1.5},
    ]
    assert len(lines_of(tmp_path / "metrics.jsonl")) == 4  # written each time
    meter.close()


def test_the_results_of_a_run():
    """Sums over the epochs; the last one's loss, busy and metrics."""
    first = {
        "epoch": 1, "batches": 7, "records": 200, "left_out": 3, "loss": 1.0, "seconds": 2.0,
        "samples_per_s": 100, "busy": {"0": 0.5}, "bytes_read": {"0": 10, "1": 0}, "accuracy": 0.5,
    }  # fmt: skip
    second = {**first, "epoch": 2, "loss": 0.5, "seconds": 3.0, "accuracy": 0.75}

    assert overall([first, second]) == {
        "epochs": 2,
        "batches": 14,
        "records": 400,
        "left_out": 6,
        "loss": 0.5,
        "seconds": 5.0,
        "samples_per_s": 80.0,
        "busy": {"0": 0.5},
        "bytes_read": {"0": 20, "1": 0},
        "accuracy": 0.75,
    }
    assert overall([first])["samples_per_s"] == pytest.approx(100)
