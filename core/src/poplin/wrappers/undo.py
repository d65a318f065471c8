"""Put a module back as it was, if setup fails."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class ModuleBackup:
    """Which parameters, buffers and children the parts of a module have, with the very tensors behind them.

    Nothing is copied: a tensor that setup leaves as it is costs nothing, one that it moves or converts stays until
    setup is done.

    Args:
        module: the user's module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._parts = [(part, type(part), _contents(part), part.training) for part in module.modules()]
        self._tensors = [(parameter, parameter.data, parameter.requires_grad) for parameter in module.parameters()]

    def restore(self) -> None:
        """Put it back, as far as torch lets us."""
        for part, kind, contents, training in self._parts:
            if type(part) is not kind:
                try:
                    part.__class__ = kind
                except TypeError:
                    continue  # what the strategy made of it can't be undone
            for name, entries in contents.items():
                registry = part.__dict__[name]
                registry.clear()
                registry.update(entries)
            part.training = training
        for parameter, data, requires_grad in self._tensors:
            _restore_tensor(parameter, data, requires_grad)


def _contents(part: nn.Module) -> dict[str, dict[str, Any]]:
    return {name: dict(part.__dict__[name]) for name in _REGISTRIES if isinstance(part.__dict__.get(name), dict)}


def _restore_tensor(parameter: nn.Parameter, data: Tensor, requires_grad: bool) -> None:
    try:
        if parameter.data_ptr() != data.data_ptr() or parameter.dtype != data.dtype or parameter.device != data.device:
            parameter.data = data
        parameter.requires_grad_(requires_grad)
    except (RuntimeError, TypeError, NotImplementedError, ValueError):
        pass  # a tensor without storage (lazy, fake, sharded): there is nothing to put back
