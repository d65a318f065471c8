"""The user's names for what is in an engine's module, and the parameters behind them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from poplin.strategies import parameter_names


class Names:
    """Names of one module, as they are at setup.

    Args:
        module: the user's.
        user_state: its state dict under the user's names, in torch's order.
    """

    def __init__(self, module: nn.Module, user_state: Mapping[str, Any]) -> None:
        own = list(module.state_dict())
        #: torch's name → the user's, for whatever a state dict has.
        self.user: dict[str, str] = dict(zip(own, user_state, strict=True))
        by_own = dict(module.named_parameters(remove_duplicate=False))
        #: The user's name → parameter; a tied one stands under each of its names.
        self.parameters: dict[str, nn.Parameter] = {
            self.user[name]: parameter for name, parameter in by_own.items() if name in self.user
        }
        #: Parameter → its first name.
        self.first: dict[nn.Parameter, str] = parameter_names({"": module})

    def count(self, parameter: nn.Parameter) -> int:
        """How many names a parameter has."""
        return sum(other is parameter for other in self.parameters.values())

    def user_name(self, name: str) -> str:
        """The user's name for what the engine calls ``name``: it has a dispatcher around the module."""
        own = name.removeprefix("module.")
        return self.user.get(own, own)


def full_shape(parameter: nn.Parameter) -> torch.Size:
    """The shape of the whole parameter, partitioned or not."""
    return torch.Size(getattr(parameter, "ds_shape", parameter.shape))


def local_part(value: Tensor, parameter: nn.Parameter, rank: int) -> Tensor:
    """What ``rank`` holds of ``value`` at stage 3: flat parts of equal size, the last one padded with zeros."""
    size = parameter.ds_tensor.ds_numel  # type: ignore[attr-defined]
    flat = value.reshape(-1)
    part = flat.new_zeros(size)
    found = flat[rank * size : (rank + 1) * size]
    part[: found.numel()] = found
    return part
