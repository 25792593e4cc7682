"""The package's surface is designed, not accreted."""

import pytest

import headrace

NAMES = """
    Batch BlockOrder BucketOrder BufferOrder DOUBLE_BUFFER FLUSH FORECAST FORECAST_LEAN Format
    HeadraceError Loader Mesh PREDICT Padding PageOrder Pipeline RandomOrder Records Run
    SPECTRAIN STALE STASH SequentialOrder Strategy WeightedOrder __version__ mix open train
""".split()


def test_the_public_names() -> None:
    """`__all__` is exactly these, sorted."""
    assert headrace.__all__ == NAMES == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_public_name_is_there(name: str) -> None:
    """The lazy table finds each of them."""
    assert getattr(headrace, name) is not None
    assert name in dir(headrace)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As from any module."""
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Pipelin'"):
        _ = headrace.Pipelin  # type: ignore[attr-defined]
