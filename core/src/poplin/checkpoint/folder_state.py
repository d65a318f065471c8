"""Opening a folder for reading: one of ours, one that torch's own DCP wrote, or one of Lightning's.

Everything that can be known without reading the tensors is checked here: the state and the version of the manifest,
that every file is there with all its bytes, that the parts of each tensor make a whole, that nothing would execute.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, MetadataIndex

from poplin.checkpoint.dcp_metadata import check_whole, read_dcp_metadata, stored_tensors
from poplin.checkpoint.folder import Folder
from poplin.checkpoint.folder_manifest import (
    DCP_METADATA,
    FOLDER_MANIFEST,
    WHOLE,
    FolderManifest,
    StoredTensor,
    read_folder_manifest,
)
from poplin.checkpoint.folder_reader import errors_named, load_errors_named, read_boxes
from poplin.checkpoint.skeleton import read_skeleton
from poplin.checkpoint.stored import Request, StoredState
from poplin.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
)

#: The file in which Lightning keeps the plain values beside DCP's folder.
LIGHTNING_VALUES = "meta.pt"


class FolderState(StoredState):
    """A folder that was checked, and can be read."""

    def __init__(
        self, folder: Folder, tree: dict[str, Any], names: dict[int, str], tensors: Mapping[str, StoredTensor]
    ) -> None:
        super().__init__(folder.text, tree, names)
        self.folder, self.tensors = folder, tensors

    def read(self, requests: Iterable[Request]) -> None:
        """Read boxes of tensors; the CRC-32 of every part that is touched is compared, where there is one."""
        read_boxes(self.folder, self.tensors, requests)


def is_checkpoint_folder(folder: Folder) -> bool:
    """Whether a folder of ours, or of DCP's, stands there, whole or not."""
    names = folder.sizes()
    return FOLDER_MANIFEST in names or DCP_METADATA in names


def open_folder(folder: Folder, weights_only: bool) -> FolderState:
    """Check the folder, and read its plain values.

    Raises:
        CheckpointNotFoundError: nothing is there.
        DamagedCheckpointError: it is incomplete, cut off or corrupted.
        UnsafeCheckpointError: it would execute something.
        CheckpointError: it is of a later version, or no folder.
    """
    if folder.is_file():
        raise CheckpointError(f"{folder.text} is a file, and this reader reads folders: plugins='torch' reads files.")
    sizes = folder.sizes()
    with errors_named(folder, FOLDER_MANIFEST):
        manifest = read_folder_manifest(folder) if FOLDER_MANIFEST in sizes else None
        if manifest is not None:
            return _open_own(folder, manifest, sizes, weights_only)
    if DCP_METADATA not in sizes:
        if not folder.is_folder():
            raise CheckpointNotFoundError(f"There is no checkpoint at {folder.text}.")
        raise DamagedCheckpointError(
            f"{folder.text} is no checkpoint: it has neither {FOLDER_MANIFEST}, which Poplin writes, nor "
            f"{DCP_METADATA}, which torch.distributed.checkpoint writes last."
        )
    with errors_named(folder, DCP_METADATA):
        return _open_foreign(folder, sizes, weights_only)


# --- ours


def _open_own(folder: Folder, manifest: FolderManifest, sizes: Mapping[str, int], weights_only: bool) -> FolderState:
    if manifest.state != WHOLE:
        raise DamagedCheckpointError(
            f"{folder.text} is incomplete: a save into it has begun and not ended (its manifest says "
            f"{manifest.state!r}); most likely the process was killed. Nothing was loaded. Use an earlier checkpoint."
        )
    if manifest.values is None:
        raise DamagedCheckpointError(f"{folder.text} is damaged: its manifest names no plain values.")
    _check_sizes(folder, {**manifest.files, manifest.values[0]: manifest.values[1]}, sizes)
    for name, tensor in manifest.tensors.items():
        check_whole(name, tensor, folder.text)
    file, size, crc = manifest.values
    data = folder.get(file)
    if (len(data), zlib.crc32(data)) != (size, crc):
        raise DamagedCheckpointError(
            f"{folder.text} is damaged: {file} is not what was written. Nothing was loaded. Use an earlier checkpoint."
        )
    with load_errors_named(f"{folder.text}: {file}"):
        tree, names = read_skeleton(data, weights_only)
    unknown = [name for name in names.values() if name not in manifest.tensors]
    if unknown or not isinstance(tree, dict):
        raise DamagedCheckpointError(
            f"{folder.text} is damaged: its manifest has no {', '.join(unknown[:5])}. Nothing was loaded."
        )
    return FolderState(folder, tree, names, manifest.tensors)


def _check_sizes(folder: Folder, expected: Mapping[str, int], found: Mapping[str, int]) -> None:
    bad = []
    for name, size in expected.items():
        if name not in found:
            bad.append(f"{name} is missing")
        elif found[name] != size:
            bad.append(f"{name} has {found[name]} of {size} bytes")
    if bad:
        more = f"; and {len(bad) - 5} more" if len(bad) > 5 else ""
        raise DamagedCheckpointError(
            f"{folder.text} is damaged: {'; '.join(bad[:5])}{more}. Nothing was loaded. Use an earlier checkpoint."
        )


# --- DCP's own, Lightning's among them


def _open_foreign(folder: Folder, sizes: Mapping[str, int], weights_only: bool) -> FolderState:
    metadata = read_dcp_metadata(folder, weights_only)
    tensors = stored_tensors(metadata, folder.text)
    ends: dict[str, int] = {}
    for info in (metadata.storage_data or {}).values():
        ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
    nested = {name for name in ends if "/" in name or "\\" in name}  # sizes() lists the folder itself only
    short = {name: end for name, end in ends.items() if name not in nested and sizes.get(name, -1) < end}
    _check_sizes(folder, short, {name: size for name, size in sizes.items() if name in short})
    values: dict[str, Any] = dict(_byte_items(folder, metadata, weights_only))
    names: dict[int, str] = {}
    for name, tensor in tensors.items():
        values[name] = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        names[id(values[name])] = name
    tree = _nested(values, metadata.planner_data, folder.text)
    if LIGHTNING_VALUES in sizes:
        tree = {**_lightning_values(folder, weights_only), **tree}
    return FolderState(folder, tree, names, tensors)


def _byte_items(folder: Folder, metadata: Metadata, weights_only: bool) -> Iterator[tuple[str, Any]]:
    """The values that are no tensors, each of them an archive of ``torch.save`` in a data file."""
    items: dict[str, list[tuple[int, int, str]]] = {}
    for name, entry in metadata.state_dict_metadata.items():
        if isinstance(entry, BytesStorageMetadata):
            info = (metadata.storage_data or {}).get(MetadataIndex(name))
            if info is None:
                raise DamagedCheckpointError(f"{folder.text} is damaged: {name} stands in no file.")
            items.setdefault(info.relative_path, []).append((info.offset, info.length, name))
    for file_name, places in items.items():
        with errors_named(folder, file_name), folder.open(file_name) as file:
            for offset, length, name in sorted(places):
                file.seek(offset)
                data = _read_exactly(file, length)
                with load_errors_named(f"{folder.text}: {name}"):
                    yield name, torch.load(io.BytesIO(data), map_location="cpu", weights_only=weights_only)


def _read_exactly(file: Any, length: int) -> bytes:
    pieces = []
    while length > 0:
        piece = file.read(length)
        if not piece:
            break
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)


def _lightning_values(folder: Folder, weights_only: bool) -> dict[str, Any]:
    with load_errors_named(f"{folder.text}: {LIGHTNING_VALUES}"):
        values = torch.load(io.BytesIO(folder.get(LIGHTNING_VALUES)), map_location="cpu", weights_only=weights_only)
    return dict(values) if isinstance(values, Mapping) else {}


def _nested(values: Mapping[str, Any], paths: Any, where: str) -> dict[str, Any]:
    """The tree that was flattened: DCP keeps each name's path, in which an int is a place in a list."""
    root: dict[Any, Any] = {}
    lists: set[int] = set()
    for name, value in values.items():
        path = paths.get(name) if isinstance(paths, Mapping) else None
        path = tuple(path) if isinstance(path, (tuple, list)) and path else (name,)
        node = root
        for key, following in zip(path, [*path[1:], None], strict=True):
            if following is None:
                node[key] = value
                break
            child = node.setdefault(key, {})
            if not isinstance(child, dict):
                raise DamagedCheckpointError(f"{where} is damaged: {name} has no place in it.")
            if type(following) is int:
                lists.add(id(child))
            node = child
    tree: dict[str, Any] = _with_lists(root, lists)
    return tree


def _with_lists(node: Any, lists: set[int]) -> Any:
    if type(node) is not dict:
        return node
    done = {key: _with_lists(item, lists) for key, item in node.items()}
    if id(node) in lists:
        return [done[key] for key in sorted(done, key=lambda key: (not isinstance(key, int), str(key).zfill(12)))]
    if set(done) <= {"state", "param_groups"} and isinstance(done.get("param_groups"), list):
        # DCP leaves out an empty dict, and makes text of the numbers under which a plain optimizer keeps its states
        done.setdefault("state", {})
        done["state"] = {int(key) if str(key).isdigit() else key: item for key, item in done["state"].items()}
    return done
