"""The checkpoint IO ``safetensors``: one file."""

from __future__ import annotations

import json
import os
import zlib
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint import CheckpointIO, Location, StoragePath, locate, safetensors_metadata, write_safetensors
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
)
from poplin.utilities import import_library
from poplin_safetensors.tree import decode, encode, walk

_NEEDED_BY = "The checkpoint IO 'safetensors'"
_TREE, _CHECKSUMS, _READER = "poplin.tree", "poplin.crc32", "poplin.reader"


class SafetensorsCheckpointIO(CheckpointIO):
    """Writes and reads one file of the safetensors format, locally or through fsspec.

    Every tensor stands in it under its dotted path (``model.layer.weight``), so that other programs read the weights.
    All else (steps, learning rates, the nesting) is a JSON text in the header, and there is a CRC-32 of each tensor
    beside it. Nothing in a file is ever executed. Tied weights are written once, and are tied again when they are
    read. A file that somebody else wrote is read as a flat state dict.

    Raises:
        MissingPackageError: the library is not installed.
    """

    def __init__(self) -> None:
        import_library("safetensors", _NEEDED_BY)  # now, and not when the first checkpoint is due

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``, whole or not at all, one tensor at a time.

        Missing folders are made.

        Args:
            checkpoint: state dicts and plain values.
            path: a local path or an fsspec URL.
            storage_options: a dictionary of arguments for the fsspec file system.

        Raises:
            ArgumentTypeError: it is no dictionary.
            CheckpointError: it holds what the format can't (the key is named), or it could not be written; what
                stood at ``path`` before still stands.
        """
        if not isinstance(checkpoint, dict):
            raise ArgumentTypeError(f"A checkpoint is a dictionary, and this is a {type(checkpoint).__name__}.")
        location = locate(path, storage_options)
        if location.is_folder() or not location.is_free():
            raise CheckpointError(
                f"{location.text} is not free for a file. Give the name of a file. Nothing was written."
            )
        try:
            tree, tensors = encode(checkpoint)
            values = {name: _ready(tensor) for name, tensor in tensors.by_name.items()}
            entries = {name: (shape, dtype) for name, shape, dtype in walk(tensors.by_name)}
            checksums = {name: zlib.crc32(_bytes(values[name]())) for name in entries}
            metadata = {
                **tensors.aliases,
                _READER: "safetensors",
                _TREE: tree,
                _CHECKSUMS: json.dumps(checksums, separators=(",", ":")),
            }
            with location.write() as file:
                write_safetensors(file, entries, lambda name: values[name](), metadata)
        except CheckpointError:
            raise
        except ArgumentValueError as error:
            raise CheckpointError(f"Nothing was written to {location.text}: {error}") from error
        except Exception as error:  # the system and each fsspec file system have errors of their own
            raise CheckpointError(
                f"The checkpoint could not be written to {location.text}: {_describe(error)}. What stood there "
                "before, if anything, still stands."
            ) from error

    def load_checkpoint(
        self, path: StoragePath, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the checkpoint at ``path``; every byte is compared with its checksum, where we wrote the file.

        Args:
            path: a local path or an fsspec URL.
            map_location: the device on which the tensors are to be; None leaves them on the CPU.
            weights_only: makes no difference: there is nothing in such a file that could execute.

        Raises:
            CheckpointNotFoundError: nothing is there.
            DamagedCheckpointError: it is cut off, corrupted, or no file of this format.
            CheckpointError: it is a folder, or can't be read.
        """
        device = _device(map_location)
        location = locate(path)
        if location.is_folder():
            raise CheckpointError(f"{location.text} is a folder, and this reader reads single files.")
        if not location.is_file():
            raise CheckpointNotFoundError(f"There is no checkpoint at {location.text}.")
        try:
            with location.read() as file:
                metadata, tensors = self._read(str(file.name), location)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{location.text} could not be read: {_describe(error)}.") from error
        if _TREE not in metadata:
            return {name: tensor.to(device) for name, tensor in tensors.items()}
        _compare(tensors, metadata, location)
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
        return decode(metadata[_TREE], moved, location.text)

    def remove_checkpoint(self, path: StoragePath) -> None:
        """Delete the file at ``path``; that none is there is fine.

        Raises:
            CheckpointError: it is a folder, or can't be deleted.
        """
        location = locate(path)
        if location.is_folder():
            raise CheckpointError(f"{location.text} is a folder; only a checkpoint that is one file is removed here.")
        try:
            location.remove()
        except FileNotFoundError:
            return
        except OSError as error:
            raise CheckpointError(f"{location.text} could not be removed: {_describe(error)}.") from error

    @classmethod
    def recognises(cls, path: StoragePath) -> bool:
        """Whether a file that this class wrote stands at ``path``. (Others are read by the checkpoint IO ``torch``.)"""
        try:
            location = locate(path)
            return location.is_file() and safetensors_metadata(location).get(_READER) == "safetensors"
        except Exception:  # asked about anything; the reader that is chosen reports what is wrong
            return False

    def _read(self, name: str, location: Location) -> tuple[dict[str, str], dict[str, Tensor]]:
        library = import_library("safetensors", _NEEDED_BY)
        try:
            with library.safe_open(name, framework="pt", device="cpu") as opened:
                return dict(opened.metadata() or {}), {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        except library.SafetensorError as error:
            raise DamagedCheckpointError(
                f"{location.text} is damaged, or no safetensors file: {_describe(error)}. Nothing was loaded. "
                "Use an earlier checkpoint."
            ) from error


def _ready(tensor: Tensor) -> Any:
    """Makes the values of ``tensor`` on the CPU and in C order, when they are asked for."""

    def values() -> Tensor:
        return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()

    return values


def _bytes(tensor: Tensor) -> Any:
    return tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else b""


def _compare(tensors: dict[str, Tensor], metadata: dict[str, str], location: Location) -> None:
    try:
        checksums = {str(name): int(number) for name, number in json.loads(metadata[_CHECKSUMS]).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{location.text} is damaged: its checksums can't be read ({error}).") from error
    bad = [name for name, tensor in tensors.items() if checksums.get(name) != zlib.crc32(_bytes(tensor))]
    bad += [f"{name} (missing)" for name in checksums if name not in tensors]
    if bad:
        shown = ", ".join(bad[:5]) + (", ..." if len(bad) > 5 else "")
        raise DamagedCheckpointError(
            f"{location.text} is damaged: its content is not what was written: {shown}. Nothing was loaded. Use an "
            "earlier checkpoint."
        )


def _device(map_location: Any) -> torch.device:
    if map_location is None:
        return torch.device("cpu")
    if isinstance(map_location, (str, int, torch.device)):
        return torch.device(map_location)
    raise ArgumentTypeError(
        "map_location is a device here ('cpu', 'meta', torch.device(...)), and this is a "
        f"{type(map_location).__name__}."
    )


def _describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if not error.filename else f"{error.strerror}: {os.fspath(error.filename)}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
