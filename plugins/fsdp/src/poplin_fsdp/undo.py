"""Take back what ``fully_shard`` has done to parts of a module, if it fails at another part."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed import _composable_state


class ShardingBackup:
    """The attributes and hooks of every part of a module. (Parameters and classes are put back by setup itself.)

    Args:
        module: the user's.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = [(part, dict(part.__dict__), _hooks(part)) for part in module.modules()]

    def restore(self) -> None:
        """Put them back."""
        for part, attributes, hooks in self._parts:
            for name in [name for name in part.__dict__ if name not in attributes]:
                del part.__dict__[name]
            for name, entries in hooks.items():
                registry = part.__dict__[name]
                registry.clear()
                registry.update(entries)
            # torch remembers which modules it has sharded, and would refuse them the next time
            _composable_state._module_state_mapping.pop(part, None)


def _hooks(part: nn.Module) -> dict[str, Any]:
    return {name: dict(value) for name, value in part.__dict__.items() if "_hooks" in name and hasattr(value, "items")}
