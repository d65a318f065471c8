"""``poplin explain``: what a run with these options would be made of, and why. Starts no process."""

from __future__ import annotations

import argparse


def explain(options: argparse.Namespace) -> int:
    """Select as ``Fabric`` would, print the trace, and let go of everything again.

    Raises:
        SelectionError: no run can be made of the options; the message says why and what to write instead.
    """
    from poplin.cli.names import check_names

    check_names(options.accelerator, options.strategy, options.precision)
    from poplin.selection import Request, select

    selection = select(
        Request.read(
            accelerator=options.accelerator or "auto",
            strategy=options.strategy or "auto",
            devices=options.devices or "auto",
            num_nodes=options.num_nodes,
            precision=options.precision,
        )
    )
    parts = (
        selection.accelerator,
        selection.environment,
        selection.strategy,
        selection.precision,
        selection.checkpoint_io,
        selection.launcher,
    )
    try:
        print(selection.trace.render())
    finally:
        for part in reversed(parts):
            if part is not None:
                part.teardown()
    return 0
