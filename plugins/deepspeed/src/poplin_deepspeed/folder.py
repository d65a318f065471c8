"""Checkpoint folders: ZeRO files in a folder of their own for each save, and a manifest that says which one counts.

    CHECKPOINT/poplin-deepspeed.json  the manifest: replacing it is the moment in which a save becomes the checkpoint
    CHECKPOINT/latest                 the same for DeepSpeed's own tools (of a checkpoint of one engine)
    CHECKPOINT/TAG/*.pt               the files of one engine; those of a further one are in TAG-2, and so on
    CHECKPOINT/zero_to_fp32.py        DeepSpeed's script

What was there before a save is removed when the manifest names the new one; a save that is cut off leaves the old one.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import stat
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from poplin.errors import CheckpointError, DamagedCheckpointError
from poplin_deepspeed import __version__

MANIFEST = "poplin-deepspeed.json"
LATEST = "latest"
FORMAT = "poplin-deepspeed"
VERSION = 1
#: File with what the user saved beside the engines.
CLIENT = "poplin_state.pt"
_TAG = re.compile(r"step\d+-[0-9a-f]{8}(-\d+)?")
_CHUNK = 1 << 20


class Engine(NamedTuple):
    """One engine in a checkpoint."""

    #: Under the checkpoint.
    folder: str
    #: Where the module stands in the state, and the optimizer, if it was saved.
    module: tuple[str | int, ...]
    optimizer: tuple[str | int, ...] | None
    #: Names in the optimizer's groups; None if only the files can tell.
    groups: list[list[str]] | None


class Manifest(NamedTuple):
    """What a checkpoint consists of."""

    engines: list[Engine]
    #: The file with the rest of the state, or None.
    client: str | None
    #: Name under the checkpoint → (bytes, CRC-32); empty where DeepSpeed alone wrote it.
    files: dict[str, tuple[int, int]]


def new_tag(step: int) -> str:
    """A name for the folder of one save."""
    return f"step{step}-{secrets.token_hex(4)}"


# --- writing


def check_place(path: Path) -> None:
    """A checkpoint may be put here.

    Raises:
        CheckpointError: a file stands here, or a folder with something else in it.
    """
    try:
        mode = path.stat().st_mode  # once: another rank may be making it now
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        raise CheckpointError(
            f"{path} is a file, and DeepSpeed writes a folder. Give another name. Nothing was written."
        )
    if any(path.iterdir()) and not is_checkpoint(path) and not _only_leftovers(path):
        raise CheckpointError(
            f"{path} is a folder with other things in it. Give a folder of its own, a new one say. Nothing was written."
        )


def _only_leftovers(path: Path) -> bool:
    """Whether all that is there is of saves that were cut off."""
    return all(_TAG.fullmatch(entry.name) or entry.name == "zero_to_fp32.py" for entry in path.iterdir())


def write_file(path: Path, content: Any) -> tuple[int, int]:
    """Write one file, and see that it is on the disk.

    Returns:
        Its size in bytes, and the CRC-32 of its content.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        torch.save(_compact(content), file)
        file.flush()
        os.fsync(file.fileno())
    return path.stat().st_size, checksum(path)


def _compact(content: Any) -> Any:
    """Tensors that show a part of a larger storage are copied: torch would write the whole of it."""
    if isinstance(content, torch.Tensor):
        partial = content.numel() * content.element_size() < content.untyped_storage().nbytes()
        return content.clone() if partial else content
    if isinstance(content, dict):
        for key, value in content.items():
            content[key] = _compact(value)
        return content
    if isinstance(content, (list, tuple)) and not isinstance(content, torch.Size):
        return type(content)(_compact(value) for value in content)
    return content


def checksum(path: Path) -> int:
    """CRC-32 of a file's content."""
    crc = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
    return crc


def commit(path: Path, manifest: Manifest) -> None:
    """Make ``manifest`` the checkpoint at ``path``, and remove what was there before."""
    missing = [name for name, (size, _) in manifest.files.items() if not _has_size(path / name, size)]
    if missing:
        raise CheckpointError(
            f"{path}: {missing[0]} was written by another process and is not to be seen here. DeepSpeed's checkpoints "
            "need a file system that all machines share."
        )
    text = json.dumps(
        {
            "format": FORMAT,
            "version": VERSION,
            "poplin-deepspeed": __version__,
            "engines": [engine._asdict() for engine in manifest.engines],
            "client": manifest.client,
            "files": manifest.files,
        }
    )
    _replace(path / MANIFEST, text)
    folders = {engine.folder for engine in manifest.engines}
    if len(folders) == 1:
        _replace(path / LATEST, next(iter(folders)))
    else:
        (path / LATEST).unlink(missing_ok=True)
    kept = {Path(name).parts[0] for name in manifest.files} | folders
    for entry in path.iterdir():
        if entry.is_dir() and _TAG.fullmatch(entry.name) and entry.name not in kept:
            shutil.rmtree(entry, ignore_errors=True)


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _has_size(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


# --- reading


def is_checkpoint(path: Path) -> bool:
    """Whether a checkpoint of DeepSpeed's stands here, written by this package or by DeepSpeed alone."""
    return path.is_dir() and ((path / MANIFEST).is_file() or _foreign_folder(path) is not None)


def read_manifest(path: Path) -> Manifest:
    """The manifest at ``path``; of what DeepSpeed alone wrote, one that is made up.

    Raises:
        DamagedCheckpointError: it is corrupt, or there is nothing.
        CheckpointError: a later version wrote it.
    """
    if not (path / MANIFEST).is_file():
        folder = _foreign_folder(path)
        if folder is None:
            raise DamagedCheckpointError(f"{path} holds no whole checkpoint of DeepSpeed's.")
        return Manifest([Engine(folder, ("model",), ("optimizer",), None)], None, {})
    try:
        content = json.loads((path / MANIFEST).read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r}")
        if content["version"] > VERSION:
            raise CheckpointError(f"{path} was written by a later version of poplin-deepspeed. Update it to read this.")
        return Manifest(
            [
                Engine(
                    one["folder"],
                    tuple(one["module"]),
                    tuple(one["optimizer"]) if one["optimizer"] is not None else None,
                    one["groups"],
                )
                for one in content["engines"]
            ],
            content["client"],
            {str(name): (int(size), int(crc)) for name, (size, crc) in content["files"].items()},
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedCheckpointError(f"{path / MANIFEST} is corrupt ({type(error).__name__}: {error}).") from error


def verify(path: Path, manifest: Manifest) -> None:
    """Compare every file with the manifest.

    Raises:
        DamagedCheckpointError: names what is missing or corrupt.
    """
    bad = []
    for name, (size, crc) in manifest.files.items():
        if not _inside(path, name):
            bad.append(f"{name} (outside of the folder)")
        elif not (path / name).is_file():
            bad.append(f"{name} (missing)")
        elif not _has_size(path / name, size) or checksum(path / name) != crc:
            bad.append(f"{name} (corrupt)")
    if bad:
        shown = "; ".join(bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "")
        raise DamagedCheckpointError(f"{path} is damaged: {shown}. Nothing was loaded. Use an earlier checkpoint.")


def _inside(path: Path, name: str) -> bool:
    return not os.path.isabs(name) and ".." not in Path(name).parts


def _foreign_folder(path: Path) -> str | None:
    """Where the files are in a folder that DeepSpeed (or Lightning, which calls its tag ``checkpoint``) wrote."""
    latest = path / LATEST
    try:
        tag = latest.read_text().strip() if latest.is_file() else ""
    except (OSError, UnicodeDecodeError):
        tag = ""
    for folder in (tag, "checkpoint", "."):
        if folder and _inside(path, folder) and any((path / folder).glob("*_optim_states.pt")):
            return folder
    return None
