"""Removing a folder: first what makes it a checkpoint, then the rest, and nothing that isn't part of it."""

from __future__ import annotations

import re

from poplin.checkpoint.folder import Folder
from poplin.checkpoint.folder_manifest import DCP_METADATA, FOLDER_MANIFEST
from poplin.errors import CheckpointError

_PART = re.compile(r"__\d+_\d+(\.[0-9a-f]+)?\.distcp|poplin-values\.[0-9a-f]+\.pt|meta\.pt")


def remove_folder(folder: Folder) -> None:
    """Delete the checkpoint in ``folder``, and the folder if it is empty then.

    Raises:
        CheckpointError: it is no checkpoint, or can't be deleted.
    """
    names = folder.sizes()
    if folder.is_file():
        raise CheckpointError(f"{folder.text} is a file; only a checkpoint that is a folder is removed here.")
    if not names and not folder.is_folder():
        return
    heads = [name for name in (FOLDER_MANIFEST, DCP_METADATA) if name in names]
    if not heads:
        raise CheckpointError(f"{folder.text} is no checkpoint; nothing was removed.")
    try:
        for name in [*heads, *filter(_PART.fullmatch, names)]:
            folder.remove(name)
        folder.remove_empty()
    except OSError as error:
        raise CheckpointError(f"{folder.text} could not be removed: {error.strerror or error}.") from error
