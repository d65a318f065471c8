"""The manifest of a sharded checkpoint: what the folder holds, and whether it is whole.

A folder of Poplin's begins with a manifest in the state "writing", and is whole only when the manifest says so: it is
the commit, and the last thing that is written. Beside it stand ``.metadata``, which torch's own DCP reads, one data
file of each rank in DCP's format, and the plain values. All data files of one save carry its id in their names, so
that a save over an older checkpoint touches nothing of it before the commit.
"""

from __future__ import annotations

import json
import math
import sys
import zlib
from dataclasses import dataclass, field
from typing import Any

import torch

from poplin.checkpoint.folder import Folder
from poplin.checkpoint.format import FORMAT_VERSION, core_version
from poplin.errors import CheckpointError, DamagedCheckpointError

#: Name of the manifest in the folder.
FOLDER_MANIFEST = "poplin.json"
#: Name of DCP's own metadata in the folder.
DCP_METADATA = ".metadata"
WRITING, WHOLE = "writing", "whole"
_FORMAT = "poplin.checkpoint"


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, and where its values stand."""

    file: str
    #: Where DCP's item begins in the file, and its bytes; a ``torch.save`` archive of the box.
    offset: int
    length: int
    #: Where the values themselves begin in the file, in C order; None where that isn't known (DCP's own folders).
    data: int | None
    #: CRC-32 of the values; None where that isn't known.
    crc: int | None
    #: The box's first index in each dimension, and its extent.
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the checkpoint."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    chunks: tuple[Chunk, ...]


@dataclass
class FolderManifest:
    """What stands in the folder."""

    state: str
    #: Of the save; part of the names of its files.
    save_id: str
    world_size: int
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    #: Other names of tensors that are there once (tied weights).
    aliases: dict[str, str] = field(default_factory=dict)
    #: File with the plain values → (bytes, CRC-32).
    values: tuple[str, int, int] | None = None
    #: Data file → bytes.
    files: dict[str, int] = field(default_factory=dict)
    version: int = FORMAT_VERSION
    poplin: str = field(default_factory=core_version)
    torch: str = field(default_factory=lambda: str(torch.__version__))

    def to_json(self) -> bytes:
        """As it stands in the folder."""
        files = list(self.files)
        numbers = {name: number for number, name in enumerate(files)}
        body = {
            "format": _FORMAT,
            "version": self.version,
            "state": self.state,
            "save_id": self.save_id,
            "poplin": self.poplin,
            "torch": self.torch,
            "byteorder": sys.byteorder,
            "world_size": self.world_size,
            "values": list(self.values) if self.values else None,
            "files": [[name, self.files[name]] for name in files],
            "aliases": self.aliases,
            "chunks_are": ["file", "offset", "length", "data", "crc32", "offsets", "sizes"],
            "tensors": [
                {
                    "name": name,
                    "shape": list(tensor.shape),
                    "dtype": str(tensor.dtype).removeprefix("torch."),
                    "nbytes": math.prod(tensor.shape) * tensor.dtype.itemsize,
                    "chunks": [
                        [numbers[c.file], c.offset, c.length, c.data, c.crc, list(c.offsets), list(c.sizes)]
                        for c in tensor.chunks
                    ],
                }
                for name, tensor in self.tensors.items()
            ],
        }
        return _encoded({**body, "checksum": zlib.crc32(_encoded(body))})

    @classmethod
    def from_json(cls, text: bytes, where: str) -> FolderManifest:
        """Read it back.

        Raises:
            CheckpointError: a later version wrote it; DamagedCheckpointError: it makes no sense.
        """
        try:
            body = json.loads(text)
            version, checksum = body["version"], body.pop("checksum")
            if not isinstance(version, int) or body["format"] != _FORMAT:
                raise ValueError("not a manifest")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DamagedCheckpointError(_unreadable(where, error)) from error
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"{where} has the checkpoint format {version}, written by poplin-core {body.get('poplin')}; this is "
                f"poplin-core {core_version()}, which reads up to format {FORMAT_VERSION}. Upgrade: "
                "pip install -U poplin-core"
            )
        if zlib.crc32(_encoded(body)) != checksum:
            raise DamagedCheckpointError(_unreadable(where, ValueError("its checksum is wrong")))
        try:
            return cls._of(body)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise DamagedCheckpointError(_unreadable(where, error)) from error

    @classmethod
    def _of(cls, body: dict[str, Any]) -> FolderManifest:
        if body["byteorder"] != sys.byteorder:
            raise ValueError(f"its numbers are {body['byteorder']}-endian, and this machine is {sys.byteorder}-endian")
        files = [str(name) for name, _ in body["files"]]
        for name in [*files, *(body["values"] or [])[:1]]:
            check_file_name(name)
        return cls(
            state=str(body["state"]),
            save_id=str(body["save_id"]),
            world_size=int(body["world_size"]),
            tensors={
                str(tensor["name"]): StoredTensor(
                    shape=_numbers(tensor["shape"]),
                    dtype=_dtype(tensor["dtype"]),
                    chunks=tuple(
                        Chunk(files[number], offset, length, data, crc, _numbers(offsets), _numbers(sizes))
                        for number, offset, length, data, crc, offsets, sizes in tensor["chunks"]
                    ),
                )
                for tensor in body["tensors"]
            },
            aliases=dict(body["aliases"]),
            values=tuple(body["values"]) if body["values"] else None,
            files={str(name): int(size) for name, size in body["files"]},
            version=body["version"],
            poplin=body["poplin"],
            torch=body["torch"],
        )


def read_folder_manifest(folder: Folder) -> FolderManifest | None:
    """The manifest in ``folder``, or None if Poplin did not write it (or nothing stands there)."""
    try:
        text = folder.get(FOLDER_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return FolderManifest.from_json(text, folder.text)


def check_file_name(name: str) -> None:
    """Refuse a name that leads out of the folder.

    Raises:
        ValueError: it does.
    """
    parts = str(name).replace("\\", "/").split("/")
    if not name or ".." in parts or parts[0] == "" or ":" in parts[0] or "\0" in name:
        raise ValueError(f"the file name {name!r} leads out of the folder")


def _encoded(body: dict[str, Any]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _numbers(values: Any) -> tuple[int, ...]:
    numbers = tuple(int(value) for value in values)
    if any(number < 0 for number in numbers):
        raise ValueError("a negative extent")
    return numbers


def _dtype(name: Any) -> torch.dtype:
    dtype = getattr(torch, str(name), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"an unknown dtype, {name!r}; a later torch may know it")
    return dtype


def _unreadable(where: str, error: BaseException) -> str:
    told = str(error) or type(error).__name__
    return (
        f"{where}: its manifest, {FOLDER_MANIFEST}, can't be read ({told}). Nothing was loaded. Use another checkpoint."
    )
