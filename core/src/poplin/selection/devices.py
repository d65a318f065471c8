"""Which devices of the accelerator, on how many nodes."""

from __future__ import annotations

from typing import Any

import torch

from poplin.accelerators.accelerator import Accelerator
from poplin.environments.environment import ClusterEnvironment
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BrokenPluginError,
    HardwareAbsentError,
    PoplinError,
)
from poplin.selection import torch_devices
from poplin.selection.carried import Carried
from poplin.selection.common import because, guarded, label_of
from poplin.selection.request import Request, contradiction, describe
from poplin.selection.trace import Trace
from poplin.utilities.unwinding import let_through


def resolve_devices(
    request: Request,
    carried: Carried,
    accelerator: Accelerator,
    environment: ClusterEnvironment,
    interactive: bool,
    trace: Trace,
) -> tuple[tuple[torch.device, ...], int]:
    """The devices of this node, one for each of its processes, and the number of nodes.

    Raises:
        ArgumentTypeError, ArgumentValueError: what was written can't be meant, or asks for more than is here.
        ContradictionError: the argument and the strategy object differ.
        SelectionError: the environment provides something else.
    """
    source, own = request.explicit("devices"), carried.source("parallel_devices")
    num_nodes, nodes_reason = request.num_nodes, because(request, "num_nodes", request.explicit("num_nodes"))
    if source is not None:
        devices = _parse(accelerator, source.value)
        reason = because(request, "devices", source)
        if own is not None and not _equal(devices, own.value):
            raise contradiction("devices", source, own)
    if own is not None:
        devices, reason = tuple(own.value), own.origin
    elif source is None:
        per_node, reason = _from_environment(environment)
        if per_node is None:
            per_node, reason = _from_accelerator(accelerator, environment, interactive)
        elif request.explicit("num_nodes") is None:
            num_nodes, nodes_reason = _nodes_from_environment(environment, per_node)
        reason = because(request, "devices", None, reason)
        devices = _parse(accelerator, per_node)
    trace.note("devices", summary(devices), reason, label_of(accelerator))
    if num_nodes > 1 or nodes_reason:
        trace.note("num_nodes", num_nodes, nodes_reason)
    guarded(f"{label_of(environment)}: validate_settings()", environment.validate_settings, len(devices), num_nodes)
    return devices, num_nodes


def summary(devices: tuple[torch.device, ...]) -> str:
    """A short text for a list of devices."""
    if len(set(devices)) == 1 and len(devices) > 1:
        return f"{len(devices)} × {devices[0]}"
    return ", ".join(str(device) for device in devices)


def _from_environment(environment: ClusterEnvironment) -> tuple[int | None, str]:
    """How many processes whoever started them put on this node."""
    who = label_of(environment)
    if not guarded(f"{who}: creates_processes_externally", lambda: environment.creates_processes_externally):
        return None, ""
    count = guarded(f"{who}: local_world_size()", environment.local_world_size)
    if count is None:
        return None, ""
    return count, f"nothing was asked for, and {type(environment).__name__} says {count} process(es) on this node"


def _nodes_from_environment(environment: ClusterEnvironment, per_node: int) -> tuple[int, str]:
    world_size = guarded(f"{label_of(environment)}: world_size()", environment.world_size)
    if world_size <= per_node or world_size % per_node:
        return 1, ""
    return world_size // per_node, f"{type(environment).__name__} says {world_size} processes, {per_node} on each node"


def _from_accelerator(accelerator: Accelerator, environment: ClusterEnvironment, interactive: bool) -> tuple[int, str]:
    who = label_of(accelerator)
    name = accelerator.name()
    try:
        count = guarded(f"{who}: auto_device_count()", accelerator.auto_device_count)
    except BrokenPluginError as error:
        raise _unknown_type(accelerator) or error from error.__cause__
    if count < 1:
        raise HardwareAbsentError(f"devices='auto': the accelerator {name!r} counts {count} devices here.")
    if interactive and count > 1:
        return 1, (
            f"nothing was asked for; {name!r} has {count}, and an interactive session takes one unless told otherwise"
        )
    return count, f"nothing was asked for, and {count} is what {name!r} takes then"


def _parse(accelerator: Accelerator, value: Any) -> tuple[torch.device, ...]:
    """The accelerator's own reading of what the user wrote."""
    said = f"devices={describe(value)}: the accelerator {accelerator.name()!r} can't use it"
    try:
        devices = accelerator.get_parallel_devices(accelerator.parse_devices(value))
    except PoplinError:
        raise
    except TypeError as error:
        raise ArgumentTypeError(f"{said} ({error}).") from error
    except BaseException as error:
        let_through(error)
        if (unknown := _unknown_type(accelerator)) is not None:
            raise unknown from error
        raise ArgumentValueError(f"{said} ({type(error).__name__}: {error}).") from error
    if not isinstance(devices, (list, tuple)) or not all(isinstance(device, torch.device) for device in devices):
        raise BrokenPluginError(
            f"{label_of(accelerator)}: get_parallel_devices() returned {describe(devices)}, no list of torch.device."
        )
    if not devices:
        raise ArgumentValueError(f"devices={describe(value)}: at least one device is needed; -1 means all of them.")
    return tuple(devices)


def _unknown_type(accelerator: Accelerator) -> HardwareAbsentError | None:
    """The error where something failed because torch can have no such device; what was asked for is not at fault."""
    device_type = accelerator.device_type
    if torch_devices.is_known(device_type):
        return None
    return HardwareAbsentError(
        f"The accelerator {accelerator.name()!r} ({label_of(accelerator)}) says that its devices are here, and this "
        f"torch {torch.__version__} knows no device type {device_type!r}. {torch_devices.what_makes_known(device_type)}"
    )


def _equal(devices: tuple[torch.device, ...], own: list[torch.device]) -> bool:
    """Whether both are the same devices; one without an index is the first."""
    return [(d.type, d.index or 0) for d in devices] == [(d.type, d.index or 0) for d in own]
