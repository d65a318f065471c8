"""Move a module to a device."""

from __future__ import annotations

import torch
from torch import nn


def move_module(module: nn.Module, device: torch.device) -> None:
    """Move ``module`` in place; a parameter that stands in several places stays one.

    torch moves the data of a parameter where the old tensor can hold that of the new device. Where it can't, as from
    the CPU to an out-of-tree device, it makes a new parameter, one at each place: what was tied would come apart.
    """
    shared = _places_of_shared(module)
    module.to(device)
    for (owner, name), *others in shared:
        for other, other_name in others:
            other._parameters[other_name] = owner._parameters[name]


def _places_of_shared(module: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """The places of each parameter that stands in several."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((owner, name))
    return [one for one in places.values() if len(one) > 1]
