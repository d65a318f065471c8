"""What torch_xla's engine has made of a module's parameters: which shard is whose, and how it becomes whole again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import UsageError

#: What the engine puts into names.
_WRAPPERS = ("_fsdp_wrapped_module.", "_fpw_module.", "_checkpoint_wrapped_module.")


class Shards:
    """The shards of a module.

    Args:
        module: the user's, before it is sharded.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.optimizers: list[Optimizer] = []
        #: Every name of the state dict, in order.
        self.order = [_plain(name) for name in module.state_dict()]
        named = {_plain(name): p for name, p in module.named_parameters(remove_duplicate=False)}
        self.shapes = {name: tuple(parameter.shape) for name, parameter in named.items()}
        first: dict[int, str] = {}
        for name, parameter in named.items():
            first.setdefault(id(parameter), name)
        #: A further name of a tied parameter → its first.
        self.tied = {name: first[id(p)] for name, p in named.items() if first[id(p)] != name}
        self._name_of = first
        self._kept = list(named.values())  # ids are theirs as long as they live
        self.by_name: dict[str, nn.Parameter] = {}

    def attach(self, engine: nn.Module) -> None:
        """Find the shards in the engine, and forget the whole parameters.

        Raises:
            UsageError: some parameter has no shard of its own.
        """
        for prefix, owner in engine.named_modules():
            for parameter in owner._parameters.values():
                inner = getattr(parameter, "_orig_name", None)
                if inner is not None:
                    self.by_name[_plain(f"{prefix}.{inner}" if prefix else inner).removeprefix("module.")] = parameter
        for name, first in self.tied.items():
            if first not in self.by_name and name in self.by_name:
                self.by_name[first] = self.by_name.pop(name)
            self.by_name.pop(name, None)
        missing = [name for name in self.shapes if name not in self.by_name and name not in self.tied]
        if missing:
            raise UsageError(
                f"torch_xla's engine has made no shard of its own of {', '.join(missing)}. Leave "
                f"flatten_parameters out, "
                "and untie what is tied across modules that are wrapped one by one."
            )
        self.shards = {key: self.by_name[self.tied.get(name, name)] for key, name in self._name_of.items()}

    def shard_of(self, parameter: Tensor) -> Tensor:
        """What stands in the place of one of the module's parameters; the same, if it is none of them."""
        return self.shards.get(id(parameter), parameter)

    def part(self, value: Any, shard: Tensor, rank: int, world_size: int) -> Tensor:
        """This rank's part of a whole value: flat, filled up, and cut as the engine cuts."""
        flat = value.detach().to("cpu", shard.dtype).reshape(-1)
        padded = torch.zeros(shard.numel() * world_size, dtype=shard.dtype)
        padded[: flat.numel()] = flat
        return padded[rank * shard.numel() : (rank + 1) * shard.numel()].to(shard.device)

    def whole(self, name: str, parts: Sequence[Tensor]) -> Tensor:
        """The whole value of every rank's part."""
        shape = self.shapes[name]
        return torch.cat([part.reshape(-1) for part in parts])[: torch.Size(shape).numel()].reshape(shape).clone()


def _plain(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name
