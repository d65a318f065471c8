"""What torch itself says about accelerators, asked only where no installed plugin could tell."""

from __future__ import annotations

from collections.abc import Collection

import torch


def visible_device_type(served: Collection[str] = ()) -> str | None:
    """The type of the accelerator that torch sees here, unless it is one of ``served``; None if it sees none.

    Whether a device is present is asked last: that question may wake up a driver.
    """
    compiled = torch.accelerator.current_accelerator(check_available=False)
    if compiled is None or compiled.type in served:
        return None
    return str(compiled.type) if torch.accelerator.is_available() else None
