"""The built-in accelerator: the CPU."""

from __future__ import annotations

from typing import Any

import torch

from poplin.accelerators.accelerator import Accelerator
from poplin.errors import ArgumentTypeError, ArgumentValueError

#: More processes than this on one node are a slip of the keyboard.
_MOST_PROCESSES = 10_000


class CPUAccelerator(Accelerator):
    """The CPU: always here, and one "device" for each process that is asked for."""

    device_type = "cpu"
    priority = -1_000_000  # `auto` comes here last, when nothing else is available
    collective_backend = "gloo"

    @staticmethod
    def name() -> str:
        return "cpu"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        return True, "a CPU is always here"

    @classmethod
    def parse_devices(cls, devices: int | str | list[int]) -> int:
        """The number of processes.

        Raises:
            ArgumentTypeError: a list, which would name devices where there is only one.
            ArgumentValueError: not a number, less than one, or more than any machine can run.
        """
        hint = "On the CPU `devices` is the number of processes: an int of at least 1, or 'auto' for one."
        if isinstance(devices, bool) or not isinstance(devices, (int, str)):
            raise ArgumentTypeError(f"devices={devices!r}: {hint}")
        try:
            count = int(devices)
        except ValueError:
            raise ArgumentValueError(f"devices={devices!r}: {hint}") from None
        if count == -1:
            count = cls.auto_device_count()
        if count < 1:
            raise ArgumentValueError(f"devices={devices!r}: {hint}")
        if count > _MOST_PROCESSES:
            raise ArgumentValueError(f"devices={devices!r}: that many processes can't be started on one node. {hint}")
        return count

    @classmethod
    def get_parallel_devices(cls, devices: Any) -> list[torch.device]:
        return [torch.device("cpu")] * cls.parse_devices(devices)

    @classmethod
    def auto_device_count(cls) -> int:
        """One: torch's own threads use the cores."""
        return 1

    def setup_device(self, device: torch.device) -> None:
        """Nothing to make current.

        Raises:
            ArgumentValueError: ``device`` isn't the CPU.
        """
        if device.type != "cpu":
            raise ArgumentValueError(f"{device} is no CPU device, and the accelerator is 'cpu'.")

    def seed(self, seed: int) -> None:
        """Nothing of its own: torch's default generator is seeded with everything else."""

    def rng_state(self) -> torch.Tensor | None:
        """None: torch's default generator is saved with everything else."""
        return None
