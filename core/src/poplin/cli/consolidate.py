"""``poplin consolidate``: one file from a sharded checkpoint."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from poplin.cli.torch_import import require_torch

if TYPE_CHECKING:
    from poplin.checkpoint.stored import StoredState


def consolidate(options: argparse.Namespace) -> int:
    """Write the file, and say where it is.

    Raises:
        CheckpointError: the folder can't be read, or the file not be written.
    """
    require_torch()
    from poplin.checkpoint.consolidation import consolidate as write_one_file
    from poplin.checkpoint.consolidation import progress_bar

    stored = _read_by_another(options.folder, not options.unsafe)
    written = write_one_file(
        options.folder,
        options.output_file,
        key=options.key,
        weights_only=not options.unsafe,
        progress=None if options.quiet else progress_bar(sys.stderr),
        stored=stored,
    )
    print(written)
    return 0


def _read_by_another(folder: str, weights_only: bool) -> StoredState | None:
    """What the checkpoint IO of a plugin reads at ``folder``; None if it is a folder of the built-in one's kind."""
    from poplin.checkpoint import ShardedCheckpointIO
    from poplin.checkpoint.held import HeldState
    from poplin.selection import reader_for

    own = ShardedCheckpointIO()
    reader = reader_for(folder, own)
    if reader is own or not reader.sharded:
        return None
    stored = reader.open_checkpoint(folder, weights_only)
    return stored or HeldState(folder, reader.load_checkpoint(folder, weights_only=weights_only))
