"""The demonstration runs in under three minutes and ends with its figures."""

import pytest

from tests.commands import headrace


@pytest.mark.slow
def test_the_demo(tmp_path):
    """Both losses fall far below a guess among 256 bytes, and the pipeline that flows is faster."""
    ended = headrace("demo", "--json", cwd=tmp_path, timeout_s=600)

    assert (ended.status, ended.err) == (0, "")
    figures = ended.results
    assert sorted(figures) == ["async", "flush", "ratio"]
    for name in ("async", "flush"):
        assert figures[name]["loss"] < 3.5  # log(256) = 5.5
        assert figures[name]["samples_per_s"] > 0
    ratio = figures["async"]["samples_per_s"] / figures["flush"]["samples_per_s"]
    assert figures["ratio"] == pytest.approx(ratio, abs=1e-3)
    assert "What to try next" in ended.out and "The model writes" in ended.out
