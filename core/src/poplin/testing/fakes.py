"""Fakes for what isn't here. Everything about them is real but the hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from poplin.accelerators import Accelerator


def fake_accelerator(
    name: str = "fake",
    *,
    devices: int = 2,
    available: bool = True,
    reason: str = "",
    device_type: str = "cpu",
    roles: Sequence[str] = (),
    priority: int = 0,
    collective_backend: str | None = "gloo",
) -> type[Accelerator]:
    """The class of an accelerator whose devices do not exist.

    With ``device_type="cpu"`` tensors are the CPU's, so everything computes for real; with ``"meta"`` nothing does, and
    what is placed on a device can be seen to be there. What is done to it is noted in ``calls``, a list of
    ``(method, argument)`` of the class.

    Args:
        name: what it is looked up by, once it is registered: ``poplin.register("accelerators", name, cls)``.
        devices: how many there are.
        available: whether they are here.
        reason: why, or why not.
        device_type: torch's type of its tensors.
        roles: the roles that it takes.
        priority: among those that take them.
        collective_backend: name of the process-group backend.
    """

    class FakeAccelerator(Accelerator):
        """An accelerator of a test."""

        calls: list[tuple[str, Any]] = []  # noqa: RUF012 - each class has its own

        @classmethod
        def availability(cls) -> tuple[bool, str]:
            here = f"{devices} fake device(s)" if available else "no fake driver"
            return available, reason or here

        @classmethod
        def auto_device_count(cls) -> int:
            return devices if available else 0

        @classmethod
        def get_parallel_devices(cls, devices: Any) -> list[torch.device]:
            indexed = device_type != "cpu"
            return [torch.device(device_type, index if indexed else 0) for index in devices]

        def setup_device(self, device: torch.device) -> None:
            self.calls.append(("setup_device", device))

        def seed(self, seed: int) -> None:
            self.calls.append(("seed", seed))

        def rng_state(self) -> torch.Tensor | None:
            return None

        def synchronize(self) -> None:
            self.calls.append(("synchronize", None))

        def empty_cache(self) -> None:
            self.calls.append(("empty_cache", None))

        def memory(self) -> dict[str, int]:
            return {}

        def teardown(self) -> None:
            self.calls.append(("teardown", None))

    made: Any = type(
        "FakeAccelerator",
        (FakeAccelerator,),
        {
            "name": staticmethod(lambda: name),
            "device_type": device_type,
            "roles": tuple(roles),
            "priority": priority,
            "collective_backend": collective_backend,
            "calls": [],
        },
    )
    accelerator: type[Accelerator] = made
    return accelerator
