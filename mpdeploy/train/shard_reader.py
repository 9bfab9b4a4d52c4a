"""Reading sharded checkpoints without letting the file decide what code runs."""

import pickle
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata

from mpdeploy.errors import ModelError, UsageError

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
        except (OSError, EOFError, pickle.UnpicklingError, AttributeError, TypeError, ValueError, IndexError) as error:
            raise UsageError("the sharded state is damaged", where=str(path)) from error
        if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
            raise UsageError("the sharded state is damaged", where=str(path))
        for info in metadata.storage_data.values():
            if Path(info.relative_path).name != str(info.relative_path):
                raise UsageError(f"a shard lies outside the folder: {info.relative_path}", where=str(path))
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: Any, where: str) -> None:
        super().__init__(stream)
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        dtype = module == "torch" and name in ("float32", "float16", "bfloat16", "int64")
        if not dtype and name not in _ALLOWED.get(module, ()):
            raise ModelError(
                f"the sharded state asks for Python objects that could run code: {module}.{name}",
                where=self._where,
                remedy="do not trust it",
            )
        return super().find_class(module, name)
