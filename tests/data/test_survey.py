"""What orders cost, and what an order by pages gives up."""

from pathlib import Path

import numpy as np
import pytest

import headrace
from headrace.data.survey import Advice, Survey, Trial


@pytest.mark.parametrize("correlation", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("group_size", [1, 4, 16])
def test_independent_records(group_size: int, correlation: float) -> None:
    """The variance of a batch's mean is that of so many independent records, by simulation.

    Records of a group share a part of their value, whose share of the variance is the correlation.
    """
    num_records, batch_size, num_epochs = 1 << 15, 64, 4
    random = np.random.default_rng(0)
    shared = np.repeat(random.standard_normal(num_records // group_size), group_size)
    own = random.standard_normal(num_records)
    values = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    values = (values - values.mean()) / values.std()
    order = headrace.PageOrder(3, group_size)
    means = np.concatenate(
        [
            values[order.indices(np.arange(num_records), num_records, epoch)]
            .reshape(-1, batch_size)
            .mean(1)
            for epoch in range(num_epochs)
        ]
    )

    expected = order.independent_records(batch_size, correlation)

    # 2048 batches tell their variance to 2 sqrt(2 / 2048) = 6 %.
    assert 1 / means.var() == pytest.approx(expected, rel=0.1)


def trial(rate: float, *, is_direct: bool = True) -> Trial:
    return Trial(int(rate), 1.0, 0, is_direct, "threads")


def test_words() -> None:
    """What it brings, from where on it pays, what it gives up: by arithmetic."""
    advice = Advice(headrace.PageOrder(0, 16), 256, trial(1000), trial(12500))
    assert advice.gain == 12.5
    assert " ".join(str(advice).split()) == (
        "headrace.PageOrder(group_size=16) brings 12,500 records/s, 12.5 times as many as "
        "RandomOrder training that takes fewer than 1,000 records/s never waits in random order "
        "given up: each record comes with its 15 neighbours in the file; a batch of 256 counts as "
        "16 independent records if those are all alike, as 256 if they are no more alike than any"
    )


def test_when_there_is_advice(tmp_path: Path) -> None:
    """For records of which a page holds several, read past the page cache."""
    np.save(tmp_path / "small.npy", np.zeros((200_000, 25), np.float64))
    np.save(tmp_path / "large.npy", np.zeros((500, 4096), np.float64))
    small, large = (headrace.open(tmp_path / f"{name}.npy") for name in ("small", "large"))
    survey = Survey(small, batch_size=200, direct=True)
    random = survey.trial(headrace.RandomOrder(), 0.3)
    assert random.num_records % 200 == 0 and random.num_records > 0
    if not random.is_direct:
        pytest.skip("this file system does not read past the page cache")
    slow = trial(random.records_per_s / 1000)
    advice = survey.advice(slow, 0.2)
    assert advice is not None and advice.order == headrace.PageOrder(0, 20)
    assert advice.page.bytes_read < random.bytes_read * advice.page.num_records
    assert survey.advice(trial(1e12), 0.1) is None
    assert survey.advice(trial(1.0, is_direct=False), 0.1) is None
    assert Survey(large, direct=True).advice(trial(1.0), 0.1) is None
    assert Survey(small[::-1], direct=True).advice(trial(1.0), 0.1) is None


def test_the_loader_asks_for_its_own_batches(tmp_path: Path) -> None:
    """Fields, batch size, engine and way are the loader's; its place stays what it was."""
    np.save(tmp_path / "x.npy", np.zeros((50_000, 25), np.float64))
    records = headrace.open(tmp_path / "x.npy")
    loader = headrace.Loader(records, 500, direct=True)
    next(iter(loader))
    before = loader.state_dict()
    advice = loader.advice(0.1)
    assert loader.state_dict() == before
    if advice is not None:  # a busy machine may say otherwise
        assert (advice.batch_size, advice.order.group_size) == (500, 20)
    assert headrace.Loader(records, 500, direct=False).advice(0.1) is None
