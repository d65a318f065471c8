"""The result of a selection: the live objects of one run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from poplin.accelerators.accelerator import Accelerator
    from poplin.checkpoint.checkpoint_io import CheckpointIO
    from poplin.environments.environment import ClusterEnvironment
    from poplin.extension import Extension
    from poplin.launchers.launcher import Launcher
    from poplin.precision.precision import Precision
    from poplin.selection.request import Request
    from poplin.selection.trace import Trace
    from poplin.strategies.strategy import Strategy


@dataclass(frozen=True, eq=False)
class Selection:
    """What a run consists of. Immutable; only the trace grows.

    Attributes:
        accelerator: the type of device.
        devices: one for each process of this node.
        num_nodes: number of nodes.
        environment: who this process is among all.
        strategy: how the run spreads over devices and processes.
        precision: the number formats.
        checkpoint_io: how checkpoints get to storage.
        launcher: what starts the processes, or None where nothing is ever launched.
        trace: every decision with its reason.
        under_cli: whether the command line started this script.
        interactive: whether this is a notebook or an interactive session.
        request: what was asked for.
    """

    accelerator: Accelerator
    devices: tuple[torch.device, ...]
    num_nodes: int
    environment: ClusterEnvironment
    strategy: Strategy
    precision: Precision
    checkpoint_io: CheckpointIO
    launcher: Launcher | None
    trace: Trace
    under_cli: bool
    interactive: bool
    request: Request

    def parts(self) -> tuple[Extension, ...]:
        """The chosen objects in the order in which they are bound; they are torn down in the reverse order."""
        chosen = (
            self.accelerator,
            self.environment,
            self.strategy,
            self.precision,
            self.checkpoint_io,
            self.launcher,
        )
        return tuple(part for part in chosen if part is not None)
