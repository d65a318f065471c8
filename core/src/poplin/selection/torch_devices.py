"""What torch itself says about devices, asked only where no installed plugin could tell."""

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


def is_known(device_type: str) -> bool:
    """Whether this torch has heard of the type, built in or from somebody's library. It needs no device for that."""
    try:
        torch.device(device_type)
    except RuntimeError:
        return False
    return True


def what_makes_known(device_type: str) -> str:
    """What to do where :func:`is_known` says no."""
    return (
        f"A device type that torch doesn't know, as {device_type!r} here, comes with the library that registers it (by "
        "torch.utils.rename_privateuse1_backend, and an entry point in the group torch.backends, by which `import "
        "torch` loads the library), or with another build of torch. Install that, or use accelerator='auto' or "
        "another one."
    )
