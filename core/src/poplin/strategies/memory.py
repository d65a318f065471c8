"""How many bytes one process of a run holds: parameters, gradients, optimizer states. Activations are not in it.

Counted on a module whose parameters are real, on the meta device, or DTensors (of which this process's part counts).
The optimizer states are those that the optimizer itself makes: it steps once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError

#: Makes an optimizer of a list of parameters; ``torch.optim.AdamW`` is one.
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]


@dataclass(frozen=True)
class Memory:
    """Bytes that one process of a run holds from its first step on, without activations.

    Attributes:
        parameters: of the module, on the device.
        buffers: of the module, on the device.
        gradients: one for each parameter that is trained, on the device.
        optimizer: states of the optimizer, on the device.
        communication: what the strategy adds on the device at its peak: buckets, parameters gathered for a layer...
        host: what lies in the machine's memory instead, because it is offloaded.
    """

    parameters: int = 0
    buffers: int = 0
    gradients: int = 0
    optimizer: int = 0
    communication: int = 0
    host: int = 0

    @property
    def device(self) -> int:
        """The sum of all that is on the device."""
        return self.parameters + self.buffers + self.gradients + self.optimizer + self.communication

    def offloaded(self, *what: str) -> Memory:
        """The same with the named parts on the host."""
        return replace(self, host=self.host + sum(getattr(self, name) for name in what), **dict.fromkeys(what, 0))

    def __add__(self, other: Memory) -> Memory:
        return Memory(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


def memory_of(module: nn.Module, make_optimizer: MakeOptimizer | None = None) -> Memory:
    """What ``module`` needs in this process when it is trained.

    Args:
        module: real, on the meta device, or sharded. A tensor that stands in several places counts once.
        make_optimizer: makes the optimizer of its trained parameters; None leaves optimizer states out.

    Raises:
        ArgumentValueError: the optimizer can't be made, or can't step.
    """
    parameters = list(module.parameters())
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    return Memory(
        parameters=nbytes(parameters),
        buffers=nbytes(module.buffers()),
        gradients=nbytes(trained),
        optimizer=planned_states(trained, make_optimizer) if make_optimizer is not None and trained else 0,
    )


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of ``tensors``, of which only this process's parts count, and each one once."""
    distinct = {id(tensor): tensor for tensor in tensors}
    return sum(part.numel() * part.element_size() for part in map(local_part, distinct.values()))


def states_of(optimizer: Optimizer) -> int:
    """Bytes of the states that ``optimizer`` has now in this process."""
    return nbytes(_tensors(optimizer.state))


def planned_states(parameters: Iterable[nn.Parameter], make_optimizer: MakeOptimizer) -> int:
    """Bytes of the states that an optimizer of this process's parts of ``parameters`` will have after its first step.

    Raises:
        ArgumentValueError: the optimizer can't be made, or can't step.
    """
    parts = [local_part(parameter) for parameter in parameters]
    try:
        return _stepped(parts, make_optimizer, "meta")
    except Exception:  # some look at values, as Adafactor does
        pass
    alike = Counter((part.shape, part.dtype) for part in parts)
    try:  # one of a shape at a time: all of them may be more than this machine has
        return sum(
            count * _stepped([torch.empty(shape, dtype=dtype, device="meta")], make_optimizer, "cpu")
            for (shape, dtype), count in alike.items()
        )
    except Exception as error:  # the user's own function, or an optimizer of somebody's
        raise ArgumentValueError(
            f"The states of the optimizer can't be planned: {type(error).__name__}: {error}. It must be made by "
            "calling it with a list of parameters, and step without a closure."
        ) from error


def _stepped(parts: list[Tensor], make_optimizer: MakeOptimizer, device: str) -> int:
    parameters = [nn.Parameter(torch.zeros_like(part, device=device)) for part in parts]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = make_optimizer(parameters)
    optimizer.step()
    return states_of(optimizer)


def local_part(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` that this process holds: all of it, unless it is a DTensor."""
    from torch.distributed.tensor import DTensor

    part = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # to_local() would be differentiated
    return part.detach()


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
