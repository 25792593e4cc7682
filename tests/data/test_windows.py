"""Windows: every slice of a file's bytes that fits, and no other."""

import numpy as np
import pytest

import headrace
from headrace.data.formats.windows import Windows
from headrace.errors import DataError
from headrace.progress import Silent


def slices(content, layout):
    """The records of a layout, each the bytes at its place."""
    assert (layout.dtype, layout.record_bytes) == (np.uint8, layout.shape[0])
    starts = [layout.start_bytes + i * layout.stride_bytes for i in range(layout.num_records)]
    return [content[start : start + layout.record_bytes] for start in starts]


@pytest.mark.parametrize("size_bytes", [0, 1, 2, 3, 4, 5, 6, 7, 8, 20, 23])
@pytest.mark.parametrize(
    "length, stride, ahead", [(1, None, 0), (4, None, 0), (4, 2, 1), (3, 5, 2)]
)
def test_windows_are_slices(tmp_path, size_bytes, length, stride, ahead):
    """Every slice that fits with the bytes ahead, and no other."""
    path = tmp_path / "a.txt"
    content = bytes(range(size_bytes))
    path.write_bytes(content)
    options = {"length": length, "stride": stride, "ahead": ahead}

    layouts = Windows(**options).scan(path, Silent())

    step = stride or length
    starts = [s for s in range(0, size_bytes, step) if s + length + ahead <= size_bytes]
    expected = {"window": [content[s : s + length] for s in starts]}
    if ahead:
        expected["next"] = [content[s + ahead : s + ahead + length] for s in starts]
    found = {name: slices(content, layout) for name, layout in layouts.items()}
    assert found == expected


@pytest.mark.parametrize(
    "options, message",
    [
        ({}, 'format "windows" needs length='),
        (
            {"length": 0},
            "length of the windows is wrong: got 0, expected a whole number of bytes, ",
        ),
        ({"length": 2.0}, "length of the windows is wrong: got 2.0"),
        ({"length": "4"}, "length of the windows is wrong: got '4'"),
        ({"length": None}, "length of the windows is wrong: got None"),
        ({"length": True}, "length of the windows is wrong: got True"),
        ({"length": 4, "stride": 0}, "stride of the windows is wrong: got 0, .*at least 1"),
        ({"length": 4, "ahead": -1}, "ahead of the windows is wrong: got -1, .*at least 0"),
        ({"length": 4, "step": 1}, "no such option: got step, expected length, stride, ahead"),
    ],
)
def test_wrong_windows(tmp_path, options, message):
    """Whole numbers of bytes, large enough, under their right names."""
    (tmp_path / "a.txt").write_text("some text")

    with pytest.raises(DataError, match=message):
        headrace.open(tmp_path / "a.txt", format="windows", **options)


def test_formats_without_options(tmp_path):
    """length= is of windows only."""
    np.save(tmp_path / "a.npy", np.zeros(3))

    with pytest.raises(
        DataError, match='format "npy" has no such option: got length, expected non'
    ):
        headrace.open(tmp_path / "a.npy", length=3)
