"""The checkpoint IO ``torch``: one file, in the format of :mod:`poplin.checkpoint.format`."""

from __future__ import annotations

import contextlib
import difflib
import errno
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import IO, Any

import torch

from poplin.checkpoint.checkpoint_io import CheckpointIO, StoragePath
from poplin.checkpoint.file_state import FileState
from poplin.checkpoint.format import CORRUPT, read_manifest, verify, write_archive
from poplin.checkpoint.safetensors_file import (
    FOREIGN_MARK,
    HEAD,
    SafetensorsState,
    is_safetensors,
    safetensors_metadata,
)
from poplin.checkpoint.storage import Location, locate
from poplin.checkpoint.stored import StoredState
from poplin.errors import (
    ArgumentTypeError,
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    UnsafeCheckpointError,
)

_ZIP_MAGIC = b"PK\x03\x04"
_PICKLE_MAGIC = b"\x80"


class TorchCheckpointIO(CheckpointIO):
    """Writes and reads one file, locally or through fsspec.

    It also reads what ``torch.save`` wrote without Poplin, plain dictionaries and the files of Lightning Fabric, and
    weights in the safetensors format.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Write ``checkpoint`` to ``path``, whole or not at all.

        Missing folders are made. A symbolic link is followed. Of tensors that view a larger storage only what they
        show is written.

        Args:
            checkpoint: state dicts and plain values.
            path: a local path or an fsspec URL.
            storage_options: a dictionary of arguments for the fsspec file system.

        Raises:
            CheckpointError: it could not be written (a full disk, say); what stood at ``path`` before still stands.
        """
        if not isinstance(checkpoint, dict):
            raise ArgumentTypeError(f"A checkpoint is a dictionary, and this is a {type(checkpoint).__name__}.")
        location = locate(path, storage_options)
        if location.is_folder():
            raise CheckpointError(
                f"{location.text} is a folder, and the checkpoint is to be one file. Give the name of a file in it, or "
                "move the folder away. Nothing was written."
            )
        if not location.is_free():
            raise CheckpointError(f"{location.text} is neither a file nor free for one. Nothing was written.")
        try:
            with location.write() as file:
                write_archive(checkpoint, file)
        except CheckpointError:
            raise
        except Exception as error:  # torch, pickle, the system and each fsspec file system have errors of their own
            if (interruption := _interruption(error)) is not None:
                raise interruption from None
            raise CheckpointError(
                f"The checkpoint could not be written to {location.text}: {_describe(error)}. "
                "What stood there before, if anything, still stands."
            ) from error

    def load_checkpoint(
        self, path: StoragePath, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read the checkpoint at ``path``, after every byte of it was compared with its manifest.

        A file without a manifest (plain ``torch.save``, Lightning Fabric) is read as it is.

        Raises:
            CheckpointNotFoundError: nothing is there.
            DamagedCheckpointError: it is cut off, corrupted, or no checkpoint at all.
            UnsafeCheckpointError: it needs ``weights_only=False``, and that was not given.
            CheckpointError: it is a folder, or a later version's.
        """
        location = locate(path)
        if location.is_folder():
            raise CheckpointError(
                f"{location.text} is a folder, and this reader reads single files. A folder is read by the checkpoint "
                "IO that wrote it: plugins='sharded', say."
            )
        if not location.is_file():
            raise CheckpointNotFoundError(f"There is no checkpoint at {location.text}.{_neighbour_hint(location)}")
        try:
            opened = location.read()
            with opened as file:
                if is_safetensors(file.read(HEAD)):
                    state = SafetensorsState(location)
                    whole: dict[str, Any] = state.complete(state.tree)
                    return whole
                return _read(file, location.text, map_location, weights_only is None or bool(weights_only))
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{location.text} could not be read: {_describe(error)}.") from error

    def open_checkpoint(self, path: StoragePath, weights_only: bool | None = None) -> StoredState | None:
        """Map the file into memory, after every byte of it was compared with its manifest.

        Returns:
            None for what can only be read whole: a file of the old format of torch, or none at all.
        """
        location = locate(path)
        if not location.is_file():
            return None
        try:
            with location.read() as file:
                if is_safetensors(file.read(HEAD)):
                    return SafetensorsState(location)
                file.seek(0)
                if file.read(4) != _ZIP_MAGIC:
                    return None
                # a mapping outlives the name of the file: a copy from a store may go when the block ends
                mapped = _read(file, location.text, "cpu", weights_only is None or bool(weights_only), mapped=True)
                return FileState(location.text, mapped)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{location.text} could not be read: {_describe(error)}.") from error

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
        """Whether what stands at ``path`` begins as the files of ``torch.save``, old ones too, or of safetensors.

        A file of safetensors that names another checkpoint IO as its reader is left to that one.
        """
        try:
            location = locate(path)
            if not location.is_file():
                return False
            head = location.head(HEAD)
            if is_safetensors(head):
                return FOREIGN_MARK not in safetensors_metadata(location)
        except Exception:  # asked about anything; the reader that is chosen reports what is wrong
            return False
        return head.startswith((_ZIP_MAGIC, _PICKLE_MAGIC))


def _read(file: IO[bytes], where: str, map_location: Any, weights_only: bool, mapped: bool = False) -> dict[str, Any]:
    _check_before(file, where)
    file.seek(0)
    with _errors_named(file, where, weights_only), warnings.catch_warnings():
        if not weights_only:
            warnings.simplefilter("ignore", FutureWarning)
        source: Any = file.name if mapped else file
        data = torch.load(source, map_location=map_location, weights_only=weights_only, mmap=mapped or None)
    if not isinstance(data, dict):
        raise DamagedCheckpointError(f"{where} is no checkpoint: it holds a {type(data).__name__}, not a dictionary.")
    return data


def _check_before(file: IO[bytes], where: str) -> None:
    """Find what is wrong with the file without unpickling any of it."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(4)
    if size == 0:
        raise DamagedCheckpointError(f"{where} is empty: the process that wrote it was cut off. {_USE_ANOTHER}")
    if head == _ZIP_MAGIC:
        _check_archive(file, where)
    elif head[:1] != _PICKLE_MAGIC:
        raise DamagedCheckpointError(
            f"{where} is no checkpoint: it begins with {head!r}, which neither Poplin nor torch.save writes."
        )


def _check_archive(file: IO[bytes], where: str) -> None:
    try:
        archive = _open_archive(file)
    except CORRUPT as error:
        raise DamagedCheckpointError(
            f"{where} is damaged: its end, where its table of contents stands, is missing or broken, or does "
            f"not fit the rest; most likely a part was cut off. {_USE_ANOTHER}"
        ) from error
    with archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
        manifest = read_manifest(archive, where)
        if manifest is not None:
            verify(archive, manifest, where)
        elif "constants.pkl" in names:
            raise DamagedCheckpointError(
                f"{where} is no checkpoint: it is a TorchScript archive, which is a program. Read it with "
                "torch.jit.load."
            )
        elif "data.pkl" not in names:
            raise DamagedCheckpointError(
                f"{where} is no checkpoint: it is a zip archive without the data that torch.save writes."
            )


def _open_archive(file: IO[bytes]) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(file)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise zipfile.BadZipFile("its table of contents would stand before its beginning") from error
    if any(info.header_offset < 0 for info in archive.infolist()):
        raise zipfile.BadZipFile("it is shorter than its table of contents says")
    return archive


_USE_ANOTHER = "Nothing was loaded. Use an earlier checkpoint."


@contextlib.contextmanager
def _errors_named(file: IO[bytes], where: str, weights_only: bool) -> Iterator[None]:
    """Turn what torch.load raises into our errors."""
    try:
        yield
    except pickle.UnpicklingError as error:
        if weights_only and (unsafe := _unsafe_globals(file, error)):
            raise UnsafeCheckpointError(
                f"{where} holds {unsafe}, which a safe load refuses, because reading it could execute code. Nothing "
                "was loaded. If you trust whoever made the file, pass weights_only=False, or allow these classes with "
                "torch.serialization.add_safe_globals([...])."
            ) from error
        raise DamagedCheckpointError(f"{where} can't be read: {_describe(error)}. {_USE_ANOTHER}") from error
    except MemoryError:
        raise
    except Exception as error:  # a corrupted pickle raises whatever its bytes happen to mean
        raise DamagedCheckpointError(f"{where} can't be read: {_describe(error)}. {_USE_ANOTHER}") from error


def _unsafe_globals(file: IO[bytes], error: BaseException) -> str:
    """What a safe load refuses in this file, for a message; empty if that is not what went wrong."""
    try:
        file.seek(0)
        found = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # it reads only the zip format; what torch.load said is the next best
        found = []
    if found:
        return "objects of " + ", ".join(sorted(found)[:5]) + (", ..." if len(found) > 5 else "")
    blocked = re.search(r"unsupported (?:global|class):? (\S+)", str(error), re.IGNORECASE)
    return f"an object of {blocked.group(1)}" if blocked else ""


def _interruption(error: BaseException) -> BaseException | None:
    """The Ctrl-C or SIGTERM in whose course ``error`` was raised: torch's writer complains when it is cut short."""
    context = error.__context__
    while context is not None and isinstance(context, Exception):
        context = context.__context__
    return context


def _neighbour_hint(location: Location) -> str:
    name = location.text.rstrip("/").rpartition("/")[2]
    close = difflib.get_close_matches(name, location.neighbours(), n=3)
    return f" In the same folder: {', '.join(close)}." if close else ""


def _describe(error: BaseException) -> str:
    """An error in one line; an OSError behind it, a full disk say, says more than what torch made of it."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, OSError) and behind.strerror:
            return behind.strerror
        behind = behind.__cause__ or behind.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = next((line for line in lines if "WeightsUnpickler error" in line), lines[0] if lines else "")
    return f"{type(error).__name__}: {told}" if told else type(error).__name__
