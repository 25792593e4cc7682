"""Files appear whole or not at all."""

import json

import pytest

from headrace.files import appearing, read_json, write_json


def test_a_file_appears_at_the_end(tmp_path):
    """Until then, what was there before is there."""
    path = tmp_path / "file"
    path.write_text("old")

    with appearing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"

    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_the_old_file(tmp_path):
    """And nothing beside it."""
    path = tmp_path / "file"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError), appearing(path) as temporary:
        temporary.write_text("half of the n")
        raise ZeroDivisionError

    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json(tmp_path):
    """Written for people too; a missing file is None, another file an error."""
    path = tmp_path / "value.json"
    assert read_json(path) is None

    write_json(path, {"a": [1, None]})

    assert json.loads(path.read_text()) == read_json(path) == {"a": [1, None]}
    assert path.read_text().endswith("\n}\n")
    path.write_text("{")
    with pytest.raises(json.JSONDecodeError):
        read_json(path)
