"""torch's one slot for an out-of-tree device. Nothing here claims it."""

from __future__ import annotations

import torch


def slot_owner() -> str | None:
    """Who has the slot PrivateUse1: the device type that it was renamed to, and its module; None while it is free.

    torch has no public query for it. The name that this one returns is the first argument of the public
    ``torch.utils.rename_privateuse1_backend``.
    """
    name = torch._C._get_privateuse1_backend_name()
    if name == "privateuseone":
        return None
    module = getattr(torch, name, None)
    home = getattr(module, "__name__", None) or (type(module).__module__ if module is not None else None)
    return f"{name!r} ({home})" if home else repr(name)
