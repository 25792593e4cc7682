"""A model's weights as safetensors, keyed by the plain model's own names, whatever the stages.

The files have the names that others know: `model-00001-of-00002.safetensors` and so on, one a
stage, and `model.safetensors.index.json` that says which weight is where.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from headrace.errors import DataError
from headrace.files import appearing, write_json

__all__ = ["INDEX", "Shard", "load_model", "write_index", "write_shard"]

INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Shard:
    """What one stage has written."""

    file: str
    names: tuple[str, ...]
    num_bytes: int


def write_shard(
    folder: Path, state: Mapping[str, torch.Tensor], number: int, num_shards: int
) -> Shard:
    """Writes the weights and buffers of one stage.

    Args:
        state: name -> tensor; two names may share one tensor, each is then written.
        number: the shard's, counted from 0.
    """
    file = f"model-{number + 1:05}-of-{num_shards:05}.safetensors"
    seen: set[int] = set()
    tensors = {}
    for name, tensor in state.items():
        tensor = tensor.detach().cpu().contiguous()
        address = tensor.untyped_storage().data_ptr()
        # safetensors refuses tensors that share memory
        tensors[name] = tensor.clone() if address in seen else tensor
        seen.add(address)
    with appearing(folder / file) as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    return Shard(file, tuple(tensors), sum(t.nbytes for t in tensors.values()))


def write_index(folder: Path, shards: list[Shard]) -> None:
    """Writes which weight is in which shard. Comes after the shards: no index, no checkpoint."""
    weight_map = {name: shard.file for shard in shards for name in shard.names}
    total = sum(shard.num_bytes for shard in shards)
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def load_model(folder: Path | str) -> dict[str, torch.Tensor]:
    """The weights of a finished run: name -> tensor, for the plain model's `load_state_dict`.

    Raises:
        DataError: no weights there, or files that are damaged or do not belong together.
    """
    index = Path(folder) / INDEX
    try:
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
        shards = {file: load_file(Path(folder) / file) for file in set(weight_map.values())}
        return {name: shards[file][name] for name, file in weight_map.items()}
    except FileNotFoundError as error:
        raise DataError(
            "no weights in the folder",
            got=f"no file {Path(error.filename).name if error.filename else error}",
            where=folder,
            remedy="they are written when the run ends",
        ) from error
    except (ValueError, TypeError, AttributeError, KeyError, SafetensorError) as error:
        raise DataError("damaged weights", got=f"{error!r}", where=folder) from error
