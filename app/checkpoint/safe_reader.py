"""Reads a torch.distributed.checkpoint without executing code that it may contain.

The metadata is a pickle, and torch would also unpickle an entry that the metadata calls bytes. Here the metadata may
name only the classes that it normally consists of, and every entry must be a tensor; torch reads tensors with
weights_only.
"""

import pickle
from enum import Enum
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from common.errors import UserError

METADATA = ".metadata"
ALLOWED_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
ALLOWED_NAMES = {
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "float32"),
    ("torch", "float16"),
    ("torch", "bfloat16"),
    ("torch", "int64"),
    ("torch", "int32"),
    ("torch.serialization", "_get_layout"),
}
ALLOWED_KINDS = {
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "ChunkStorageMetadata",
    "TensorProperties",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
    "_StorageInfo",
    "_StoragePrefix",
}


def _enum_member(kind: Any, name: str) -> Any:
    """Return an enum's member, the only allowed getattr: early Python 3.11 (Debian 12's too) pickles members so."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError(f"it contains {name} of {kind}, which no checkpoint of Clickwork contains")


class SafeReader(FileSystemReader):
    """A FileSystemReader for checkpoints of tensors alone."""

    def __init__(self, checkpoint: Path) -> None:
        super().__init__(checkpoint)
        self._metadata_path = checkpoint / METADATA

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Return the checkpoint's metadata."""
        try:
            with open(self._metadata_path, "rb") as file:
                metadata = _Unpickler(file).load()
        except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, TypeError) as error:
            raise UserError(f"{self._metadata_path}: not loaded: {error}") from error
        if not isinstance(metadata, Metadata):
            raise UserError(f"{self._metadata_path}: not a checkpoint's metadata")
        for key, entry in metadata.state_dict_metadata.items():
            if not isinstance(entry, TensorStorageMetadata):
                raise UserError(f"{self._metadata_path}: not loaded: {key} is not a tensor")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if (module, name) in ALLOWED_NAMES or (module in ALLOWED_MODULES and name in ALLOWED_KINDS):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it contains {module}.{name}, which no checkpoint of Clickwork contains")
