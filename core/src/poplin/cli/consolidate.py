"""``poplin consolidate``: one file from a sharded checkpoint."""

from __future__ import annotations

import argparse
import sys

from poplin.cli.torch_import import require_torch


def consolidate(options: argparse.Namespace) -> int:
    """Write the file, and say where it is.

    Raises:
        CheckpointError: the folder can't be read, or the file not be written.
    """
    require_torch()
    from poplin.checkpoint.consolidation import consolidate as write_one_file
    from poplin.checkpoint.consolidation import progress_bar

    written = write_one_file(
        options.folder,
        options.output_file,
        key=options.key,
        weights_only=not options.unsafe,
        progress=None if options.quiet else progress_bar(sys.stderr),
    )
    print(written)
    return 0
