"""The accelerator: the one GPU of an Apple-silicon Mac, by torch's Metal backend."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import torch

from poplin.accelerators import Accelerator
from poplin.errors import ArgumentValueError, SelectionError

if TYPE_CHECKING:
    from poplin.selection import Selection

#: The oldest macOS that torch's Metal backend runs on, since torch 2.9.
OLDEST_MACOS = 14


class MPSAccelerator(Accelerator):
    """The GPU of a Mac: one device, in one process."""

    device_type = "mps"
    roles = ("auto", "gpu")
    priority = 10

    @staticmethod
    def name() -> str:
        return "mps"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        if torch.backends.mps.is_available():
            return True, "torch reports Metal (MPS)"
        if sys.platform != "darwin":
            return False, f"Metal (MPS) exists on macOS only, and this is {platform.system() or sys.platform}"
        if not torch.backends.mps.is_built():
            return False, (
                f"this torch ({torch.__version__}, for {platform.machine()}) is built without Metal (MPS); install "
                "torch under a Python for arm64"
            )
        version = platform.mac_ver()[0]
        if version and int(version.partition(".")[0]) < OLDEST_MACOS:
            return False, f"Metal (MPS) needs macOS {OLDEST_MACOS} or newer, and this is {version}"
        return False, f"macOS {version} offers torch no Metal device here (a virtual machine may have none)"

    @classmethod
    def auto_device_count(cls) -> int:
        """One: a Mac has no more."""
        return 1

    def check(self, selection: Selection) -> None:
        """One process; and nothing in float64, which Metal hasn't.

        Raises:
            SelectionError: a strategy of several processes, several nodes, or ``64-true``.
        """
        strategy = type(selection.strategy).__name__
        if selection.strategy.needs_launch or selection.num_nodes > 1:
            raise SelectionError(
                f"The accelerator 'mps' is one device, without a way to exchange tensors between processes, and "
                f"{strategy} on {selection.num_nodes} node(s) runs in several. Use strategy='auto' with devices=1; to "
                "try several processes on this machine, accelerator='cpu'."
            )
        if selection.precision.precision.startswith("64"):
            raise SelectionError(
                f"The accelerator 'mps' has no float64, which precision={selection.precision.precision!r} needs. Use "
                "'32-true', or accelerator='cpu'."
            )

    def setup_device(self, device: torch.device) -> None:
        """Nothing to make current, as there is one.

        Raises:
            ArgumentValueError: it is no MPS device.
        """
        if device.type != "mps":
            raise ArgumentValueError(f"{device} is no MPS device, and the accelerator is 'mps'.")

    def seed(self, seed: int) -> None:
        torch.mps.manual_seed(seed)

    def memory(self) -> dict[str, int]:
        """In bytes: ``allocated`` for tensors, and ``reserved`` by the Metal driver for this process."""
        return {
            "allocated": torch.mps.current_allocated_memory(),
            "reserved": torch.mps.driver_allocated_memory(),
        }
