"""``poplin explain``: what a run with these options would be made of, and why. Starts and binds nothing."""

from __future__ import annotations

import argparse

from poplin.cli.metadata import torch_backends
from poplin.cli.names import check_names
from poplin.cli.torch_import import require_torch


def explain(options: argparse.Namespace) -> int:
    """Select as ``Fabric`` would, and print the trace: of a refused selection too, as far as it went.

    Raises:
        SelectionError: no run can be made of the options; the message says why and what to write instead.
    """
    check_names(options.accelerator, options.strategy, options.precision)
    require_torch()
    from poplin.selection.explain import explained

    trace, error = explained(
        accelerator=options.accelerator or "auto",
        strategy=options.strategy or "auto",
        devices=options.devices or "auto",
        num_nodes=options.num_nodes,
        precision=options.precision,
    )
    print(trace.render())
    for backend in torch_backends():
        print(f"{backend.described()} (`poplin run --no-torch-autoload` leaves it out)")
    if error is not None:
        raise error
    return 0
