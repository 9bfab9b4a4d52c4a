"""Reading sharded checkpoints without letting the file decide what code runs."""

import pickle
import warnings
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.state_dict_loader import load

from mpdeploy.errors import ModelError, MpdeployError, UsageError

_METADATA = ".metadata"
# What torch.distributed.checkpoint itself writes into the metadata: plain records and enumerations.
_ALLOWED = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "pathlib": {"PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"},
}


class SafeReader(FileSystemReader):
    """Reads the shards in a folder; its metadata, which is a pickle, may name only what torch writes there."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._folder = folder

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the metadata; raise ``ModelError`` if it asks for other Python objects."""
        path = self._folder / _METADATA
        try:
            with path.open("rb") as stream:
                metadata = _Unpickler(stream, str(path)).load()
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError, LookupError) as error:
            raise UsageError("the sharded state is damaged", where=str(path)) from error
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise UsageError("the sharded state is damaged", where=str(path))
        for info in metadata.storage_data.values():
            if Path(info.relative_path).name != str(info.relative_path):
                raise UsageError(f"a shard lies outside the folder: {info.relative_path}", where=str(path))
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


def fill(tensors: dict[str, Any], reader: SafeReader, folder: Path) -> None:
    """Read the shards of ``tensors`` into them; raise ``UsageError`` if one is damaged.  Nothing is executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of its own use of deprecated names
            load(tensors, storage_reader=reader, no_dist=True)
    except CheckpointException as error:  # no Exception of Python's; it holds what each process met
        met = next((failure[0] for failure in error.failures.values()), error)
        if isinstance(met, MpdeployError):
            raise met from error
        raise UsageError(
            f"a shard cannot be read: {type(met).__name__}: {str(met)[:200]}",
            where=str(folder),
            remedy="copy all files of the checkpoint again",
        ) from error


def _member(kind: Any, name: Any) -> Any:
    """Stands for ``getattr`` in a pickle: returns an enumeration's member, and nothing else."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise pickle.UnpicklingError(f"{kind!r} is not an enumeration")
    return kind.__members__[name]


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: Any, where: str) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        """Return what torch writes there by itself; raise ``ModelError`` for anything else."""
        if (module, name) == ("builtins", "getattr"):
            return _member  # how Python up to 3.11.3 pickles an enumeration's member
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not dtype and name not in _ALLOWED.get(module, ()):
            raise ModelError(
                f"the sharded state asks for Python objects that could run code: {module}.{name}",
                where=self._where,
                remedy="do not trust it",
            )
        return super().find_class(module, name)
