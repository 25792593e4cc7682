"""A run's folder is one run's: that is what `claim` looks after."""

import pytest

from headrace.errors import RecipeError
from headrace.runs.folder import Claim, claim, results_of, write_config, write_results

WHO = {"seed": 0, "order": {"kind": "random"}, "stages": 2}


def write(folder):
    write_config(folder, WHO, recipe=None, placement={"cuts": [3], "parts": []})


def test_a_free_folder(tmp_path):
    """Looking writes nothing."""
    assert claim(tmp_path / "new", WHO) == Claim(None, None, is_new=True)
    assert claim(tmp_path, WHO) == Claim(None, None, is_new=True)
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run(tmp_path):
    """It has the cuts that it was split by."""
    write(tmp_path / "a" / "run")

    assert claim(tmp_path / "a" / "run", WHO) == Claim(None, (3,), is_new=False)
    with pytest.raises(RecipeError, match=f"the run has not finished; in {tmp_path}/a/run"):
        results_of(tmp_path / "a" / "run")


def test_a_finished_run(tmp_path):
    """It has results."""
    write(tmp_path)
    write_results(tmp_path, {"loss": 0.5})

    assert claim(tmp_path, WHO) == Claim({"loss": 0.5}, (3,), is_new=False)
    assert results_of(tmp_path) == {"loss": 0.5}


def test_another_run(tmp_path):
    """All that differs is named, a line each; what is the same is not."""
    write(tmp_path)

    with pytest.raises(RecipeError) as caught:
        claim(tmp_path, {"seed": 1, "order": {"kind": "random"}, "stages": 4, "new": "x"})

    assert str(caught.value) == (
        f"{tmp_path} holds a different run; choose another --out, or remove the folder:\n"
        "  - seed: the folder has 0, this run 1\n"
        "  - stages: the folder has 2, this run 4\n"
        '  - new: the folder has null, this run "x"'
    )


def test_a_new_start_takes_away_what_was_left(tmp_path):
    """Weights and errors of an unfinished run; no other files."""
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text("")
    (tmp_path / "error-stage-0.txt").write_text("")
    (tmp_path / "notes.txt").write_text("mine")

    write(tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "notes.txt"]


def test_folders_that_cannot_be_one(tmp_path):
    """A file, a folder under a file, JSON that is damaged or something else."""
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(RecipeError, match="folder is a file; in .*file; choose another --out"):
        claim(file, WHO)
    with pytest.raises(RecipeError, match="cannot be read: got Not a directory; in .*file/under; "):
        claim(file / "under", WHO)
    with pytest.raises(RecipeError, match="cannot be written: got .*; in .*file/under; choose"):
        write(file / "under")
    for text, message in (("{", "a file is not JSON"), ("[]", "not a run's folder: got list")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(RecipeError, match=message):
            claim(tmp_path, WHO)
