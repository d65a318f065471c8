"""The metadata of torch's DCP: written for other tools, and read without executing anything.

``.metadata`` is a pickle, which can run any program. Here it is unpickled by a reader that knows the dozen classes
that DCP puts there, and refuses all else.
"""

from __future__ import annotations

import collections
import io
import math
import pickle
from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from poplin.checkpoint.folder import Folder
from poplin.checkpoint.folder_manifest import DCP_METADATA, Chunk, FolderManifest, StoredTensor, check_file_name
from poplin.errors import DamagedCheckpointError, UnsafeCheckpointError

#: Modules whose classes of these names DCP's metadata consists of, in this torch and in earlier ones.
_METADATA_MODULES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed._shard.checkpoint.metadata",
    "torch.distributed._shard.checkpoint.filesystem",
    "torch.distributed._shard.sharded_tensor.metadata",
)
_METADATA_CLASSES = {
    "Metadata": metadata.Metadata,
    "TensorStorageMetadata": metadata.TensorStorageMetadata,
    "BytesStorageMetadata": metadata.BytesStorageMetadata,
    "ChunkStorageMetadata": metadata.ChunkStorageMetadata,
    "TensorProperties": metadata.TensorProperties,
    "MetadataIndex": metadata.MetadataIndex,
    "StorageMeta": metadata.StorageMeta,
    "_StorageInfo": filesystem._StorageInfo,
    "_StoragePrefix": filesystem._StoragePrefix,
}
_HARMLESS: dict[tuple[str, str], Any] = {
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
    ("builtins", "set"): set,
}
#: Where the folder stood when it was written: read as text.
_PATHS = {
    (module, name)
    for module in ("pathlib", "pathlib._local")
    for name in ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
}


class _Refused(Exception):
    """A class that DCP's metadata has no business with."""


class _MetadataUnpickler(pickle.Unpickler):
    """Knows DCP's classes. What it hands out is made for one reading: a pickle can set attributes of a class, too."""

    def __init__(self, file: Any) -> None:
        super().__init__(file)
        self._made: dict[str, Any] = {name: type(name, (cls,), {}) for name, cls in _METADATA_CLASSES.items()}
        for name in ("_MEM_FORMAT_ENCODING", "MEM_FORMAT_ENCODING"):
            self._made[name] = lambda value: metadata._MEM_FORMAT_ENCODING(value)

    def find_class(self, module: str, name: str) -> Any:
        if module in _METADATA_MODULES and name in self._made:
            return self._made[name]
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        if (module, name) in _PATHS:
            return lambda *parts: "/".join(map(str, parts))
        if (module, name) == ("torch.serialization", "_get_layout"):
            return lambda layout: torch.serialization._get_layout(layout)
        if module == "torch" and isinstance(found := getattr(torch, name, None), (torch.dtype, torch.layout)):
            return found
        raise _Refused(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused(f"a persistent id, {pid!r}")


def read_dcp_metadata(folder: Folder, weights_only: bool = True) -> Metadata:
    """The metadata of a folder of DCP's.

    Args:
        folder: where it stands.
        weights_only: False unpickles whatever is there.

    Raises:
        FileNotFoundError: it has none.
        UnsafeCheckpointError: it has classes in it that don't belong there; DamagedCheckpointError: it is no metadata.
    """
    data = folder.get(DCP_METADATA)
    try:
        reader = _MetadataUnpickler(io.BytesIO(data)) if weights_only else pickle.Unpickler(io.BytesIO(data))
        found = reader.load()
        _check_types(found)
        found.storage_data = {
            MetadataIndex(index.fqn, index.offset, index.index): info
            for index, info in (found.storage_data or {}).items()
        }
    except _Refused as refused:
        raise UnsafeCheckpointError(
            f"{folder.text}: its {DCP_METADATA} holds {refused}, which a safe load refuses, because reading it could "
            "execute code. Nothing was loaded. If you trust whoever made the folder, pass weights_only=False."
        ) from None
    except MemoryError:
        raise
    except Exception as error:  # corrupted bytes mean anything
        raise DamagedCheckpointError(
            f"{folder.text} is damaged: its {DCP_METADATA} can't be read ({type(error).__name__}: {error}). Nothing "
            "was loaded. Use another checkpoint."
        ) from error
    return found  # type: ignore[no-any-return]


def _check_types(found: Any) -> None:
    """Refuse what was put together wrongly: attributes of an unpickled object can be anything."""
    if not isinstance(found, Metadata) or not isinstance(found.state_dict_metadata, Mapping):
        raise ValueError("no metadata of a checkpoint")
    for name, entry in found.state_dict_metadata.items():
        if not isinstance(name, str) or not isinstance(entry, (TensorStorageMetadata, BytesStorageMetadata)):
            raise ValueError(f"an entry {name!r} of {type(entry).__name__}")
        if isinstance(entry, TensorStorageMetadata):
            if not isinstance(entry.properties.dtype, torch.dtype) or not isinstance(entry.size, tuple):
                raise ValueError(f"{name!r} has no shape or no dtype")
            for chunk in entry.chunks:
                if len(chunk.offsets) != len(entry.size) or len(chunk.sizes) != len(entry.size):
                    raise ValueError(f"the parts of {name!r} have other dimensions than the whole")
    for index, info in (found.storage_data or {}).items():
        if not isinstance(index, MetadataIndex) or not isinstance(info, filesystem._StorageInfo):
            raise ValueError("storage data of another kind of storage")
        check_file_name(info.relative_path)
        if not isinstance(info.offset, int) or not isinstance(info.length, int) or min(info.offset, info.length) < 0:
            raise ValueError(f"{index.fqn!r} stands nowhere")


def stored_tensors(found: Metadata, where: str) -> dict[str, StoredTensor]:
    """The tensors that ``found`` describes.

    Raises:
        DamagedCheckpointError: a part has no place in a file, or the parts of a tensor are not the whole.
    """
    tensors = {}
    for name, entry in found.state_dict_metadata.items():
        if isinstance(entry, TensorStorageMetadata):
            chunks = tuple(_chunk(found, name, chunk, where) for chunk in entry.chunks)
            tensors[name] = StoredTensor(tuple(entry.size), entry.properties.dtype, chunks)
            check_whole(name, tensors[name], where)
    return tensors


def check_whole(name: str, tensor: StoredTensor, where: str) -> None:
    """Refuse a tensor of which a part is missing.

    Raises:
        DamagedCheckpointError: the parts do not fill its shape.
    """
    held = sum(math.prod(chunk.sizes) for chunk in tensor.chunks)
    outside = any(
        offset + size > extent
        for chunk in tensor.chunks
        for offset, size, extent in zip(chunk.offsets, chunk.sizes, tensor.shape, strict=True)
    )
    if outside or held != math.prod(tensor.shape):
        raise DamagedCheckpointError(
            f"{where} is damaged: the parts of {name} hold {held} of its {math.prod(tensor.shape)} values. Nothing was "
            "loaded. Use another checkpoint."
        )


def _chunk(found: Metadata, name: str, chunk: ChunkStorageMetadata, where: str) -> Chunk:
    info = (found.storage_data or {}).get(MetadataIndex(name, chunk.offsets))
    if info is None:
        raise DamagedCheckpointError(f"{where} is damaged: a part of {name} stands in no file. Nothing was loaded.")
    if getattr(info, "transform_descriptors", None):
        raise DamagedCheckpointError(
            f"{where}: {name} went through {', '.join(map(str, info.transform_descriptors))} when it was written, "
            "which can't be undone here. Load it with torch.distributed.checkpoint and save it without extensions."
        )
    return Chunk(info.relative_path, info.offset, info.length, None, None, tuple(chunk.offsets), tuple(chunk.sizes))


def dcp_metadata(manifest: FolderManifest, paths: Mapping[str, tuple[Any, ...]]) -> Metadata:
    """What torch's own DCP reads the tensors of a folder of ours by: all of them, under their names."""
    entries: dict[str, Any] = {}
    storage: dict[MetadataIndex, Any] = {}
    named = {**{name: name for name in manifest.tensors}, **manifest.aliases}
    for name, original in named.items():
        tensor = manifest.tensors[original]
        entries[name] = TensorStorageMetadata(
            TensorProperties(dtype=tensor.dtype),
            torch.Size(tensor.shape),
            [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in tensor.chunks],
        )
        for number, chunk in enumerate(tensor.chunks):
            index = MetadataIndex(name, chunk.offsets, number)
            storage[index] = filesystem._StorageInfo(chunk.file, chunk.offset, chunk.length)
    planner_data = {
        name: tuple(key if isinstance(key, int) else str(key) for key in paths.get(name, (name,))) for name in named
    }
    return Metadata(entries, planner_data=planner_data, storage_data=storage, version="1.0.0")
