"""Sharded checkpoints of torch.distributed.checkpoint, as FSDP trainings save them: put together in one process."""

import math
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from mpdeploy.errors import UsageError
from mpdeploy.train.shard_reader import SafeReader, fill


def read_sharded(folder: Path) -> dict[str, Any]:
    """Return the tensors in a folder of shards, nested as they were saved; nothing in it is executed.

    What else was saved beside tensors is left where it is.  Raises ``UsageError`` if the folder is damaged or claims
    more than its files hold, ``ModelError`` if its metadata ask for Python objects.
    """
    reader = SafeReader(folder)
    metadata = reader.read_metadata()
    found = {
        name: entry for name, entry in metadata.state_dict_metadata.items() if isinstance(entry, TensorStorageMetadata)
    }
    held = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    claimed = sum(math.prod(entry.size) * entry.properties.dtype.itemsize for entry in found.values())
    if claimed > held:
        raise UsageError(f"the metadata claim {claimed} bytes, the shards hold {held}", where=str(folder))
    tensors = {name: torch.zeros(entry.size, dtype=entry.properties.dtype) for name, entry in found.items()}
    fill(tensors, reader, folder)
    places = metadata.planner_data if isinstance(metadata.planner_data, dict) else {}
    return _nested({name: (places.get(name, (name,)), tensor) for name, tensor in tensors.items()})


def _nested(tensors: dict[str, tuple[Any, torch.Tensor]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for place, tensor in tensors.values():
        *outer, last = (str(key) for key in place)
        table = whole
        for key in outer:
            inner = table.setdefault(key, {})
            table = inner if isinstance(inner, dict) else {}
        table[last] = tensor
    return whole
