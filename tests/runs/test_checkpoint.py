"""Weights are safetensors under the plain model's names, and no pickle is ever read."""

import json
import pickle

import pytest
import torch
from safetensors import safe_open
from torch import nn

from headrace.errors import DataError
from headrace.runs.checkpoint import Shard, load_model, write_index, write_shard


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 2)))


def save_in_two(folder, state):
    """The first two tensors in one shard, the rest in another."""
    items = list(state.items())
    shards = [
        write_shard(folder, dict(items[:2]), 0, 2),
        write_shard(folder, dict(items[2:]), 1, 2),
    ]
    write_index(folder, shards)
    return shards


def test_the_plain_model_loads_them(tmp_path, monkeypatch):
    """Weights and buffers of all shards, bit for bit; nothing is unpickled."""
    state = model().state_dict()
    save_in_two(tmp_path, state)

    def refuse(*_, **__):
        raise AssertionError("a pickle was read")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    loaded = load_model(str(tmp_path))

    fresh = model()
    assert fresh.load_state_dict(loaded).missing_keys == []
    assert loaded.keys() == state.keys()
    for name, tensor in fresh.state_dict().items():
        assert tensor.dtype == state[name].dtype
        assert torch.equal(tensor, state[name])


def test_the_files_are_those_that_others_know(tmp_path):
    """Names, index and format as the safetensors library and transformers have them."""
    first, second = save_in_two(tmp_path, model().state_dict())

    assert first == Shard("model-00001-of-00002.safetensors", ("0.weight", "0.bias"), 4 * 16)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["0.bias"] == "model-00001-of-00002.safetensors"
    assert index["weight_map"]["1.0.running_var"] == second.file
    # weights and running statistics of float32, and the number of batches as int64
    assert index["metadata"]["total_size"] == 4 * (16 + 8 + 8 + 10) + 8
    with safe_open(tmp_path / second.file, "numpy") as shard:
        assert shard.metadata() == {"format": "pt"}
        assert set(shard.keys()) == set(second.names)


def test_tensors_that_share_memory_and_views(tmp_path):
    """Each name gets its own values."""
    tensor = torch.arange(12.0).reshape(3, 4)
    write_index(
        tmp_path,
        [write_shard(tmp_path, {"a": tensor, "b": tensor, "c": tensor.T, "d": tensor[1]}, 0, 1)],
    )

    loaded = load_model(tmp_path)

    assert torch.equal(loaded["a"], tensor) and torch.equal(loaded["b"], tensor)
    assert torch.equal(loaded["c"], tensor.T) and torch.equal(loaded["d"], tensor[1])


def test_no_weights(tmp_path):
    """A folder without an index, which is written last, has none."""
    write_shard(tmp_path, model().state_dict(), 0, 1)

    with pytest.raises(
        DataError, match="no weights in the folder: got no file model.safetensors.index.json"
    ):
        load_model(tmp_path)


def test_damaged_weights(tmp_path):
    """A shard that is cut off, that is gone, or that lacks a name; an index that is no index."""
    first, second = save_in_two(tmp_path, model().state_dict())
    whole = (tmp_path / second.file).read_bytes()
    (tmp_path / second.file).write_bytes(whole[:-1])
    with pytest.raises(DataError, match="damaged"):
        load_model(tmp_path)
    (tmp_path / second.file).unlink()
    with pytest.raises(DataError, match=second.file):
        load_model(tmp_path)
    (tmp_path / second.file).write_bytes((tmp_path / first.file).read_bytes())
    with pytest.raises(DataError, match="1.0.weight"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(DataError, match="damaged"):
        load_model(tmp_path)
