"""The built-in strategy: one process on one device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from poplin.errors import SelectionError
from poplin.strategies.strategy import Strategy

if TYPE_CHECKING:
    from poplin.accelerators.accelerator import Accelerator
    from poplin.checkpoint.checkpoint_io import CheckpointIO
    from poplin.precision.precision import Precision
    from poplin.selection import Selection


class SingleDeviceStrategy(Strategy):
    """One process on one device.

    Args:
        device: the device, or None for the one that the accelerator and ``devices`` select.
        accelerator, checkpoint_io, precision: as for every strategy.
    """

    def __init__(
        self,
        device: torch.device | str | int | None = None,
        accelerator: Accelerator | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
    ) -> None:
        fixed = None if device is None else [torch.device(device)]
        super().__init__(
            accelerator=accelerator, parallel_devices=fixed, checkpoint_io=checkpoint_io, precision=precision
        )

    @property
    def root_device(self) -> torch.device:
        if not self.parallel_devices:
            raise SelectionError(
                "This SingleDeviceStrategy has no device yet: give it one (device=...), or hand it to Fabric."
            )
        return self.parallel_devices[0]

    def check(self, selection: Selection) -> None:
        """One device on one node."""
        if len(selection.devices) * selection.num_nodes > 1:
            raise SelectionError(
                f"The strategy 'single_device' runs on one device, and {len(selection.devices)} on "
                f"{selection.num_nodes} node(s) were asked for. Use devices=1, or a strategy for several devices."
            )
