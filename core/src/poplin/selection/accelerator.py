"""Which accelerator, and which of its devices."""

from __future__ import annotations

from typing import Any

import torch

from poplin import registry
from poplin.accelerators.accelerator import Accelerator
from poplin.errors import (
    BlockedNameError,
    BrokenPluginError,
    HardwareAbsentError,
    LookupFailedError,
    NotInstalledError,
    PoplinError,
    SelectionError,
)
from poplin.registry import Failure, Found, known
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold
from poplin.selection import torch_devices
from poplin.selection.carried import Carried
from poplin.selection.common import (
    because,
    blamed,
    choose,
    created,
    first_line,
    guarded,
    instance_of,
    kept_out,
    label,
    label_of,
)
from poplin.selection.request import Request, Source, contradiction
from poplin.selection.trace import PassedOver, Trace
from poplin.utilities.unwinding import let_through

_KIND = "accelerators"
_HERE_INSTEAD = "Run it where there is such a device, or use accelerator='auto' or another one"
#: The same, for who has asked for a role.
_OTHER_HERE = "Run it where there is such a device, or name an accelerator that is here"


def resolve_accelerator(request: Request, carried: Carried, trace: Trace) -> Accelerator:
    """The accelerator of the run.

    Raises:
        ContradictionError: argument, environment and strategy object differ.
        HardwareAbsentError: it is installed, and has no device here.
        BrokenPluginError: it, or a candidate for the role that was asked for, can't be loaded.
        NotInstalledError: torch sees a device that no installed plugin serves.
    """
    source = choose("accelerator", (*request.all_explicit("accelerator"), carried.source("accelerator")), _same)
    devices = carried.source("parallel_devices")
    if source is None and devices is not None:
        accelerator = _of_device_type(_device_type(devices), devices, trace)
    elif source is None:
        accelerator = _of_role("auto", because(request, "accelerator", None, "nothing was asked for"), trace)
    elif not isinstance(source.value, str):
        accelerator = _of_object(source, because(request, "accelerator", source), trace)
    elif (role := fold(source.value)) in KINDS[_KIND].roles:
        accelerator = _of_role(role, because(request, "accelerator", source), trace)
    else:
        accelerator = _of_name(source.value, because(request, "accelerator", source), trace)
    if devices is not None and source is not None and _device_type(devices) != accelerator.device_type:
        raise contradiction("accelerator", source, devices)
    return accelerator


def _same(one: Any, other: Any) -> bool:
    """Whether two explicit accelerators are one: equal names, or an object and its own name or role."""
    if isinstance(one, str) and isinstance(other, str):
        return fold(one) == fold(other)
    if isinstance(one, str) or isinstance(other, str):
        name, value = (one, other) if isinstance(one, str) else (other, one)
        if not isinstance(value, Accelerator):
            return False
        return fold(name) in {fold(guarded(label_of(value), value.name)), *(set(value.roles) & {"gpu"})}
    return one is other


def _of_object(source: Source, reason: str, trace: Trace) -> Accelerator:
    accelerator = instance_of(source.value, Accelerator, source.origin)
    name = guarded(label_of(accelerator), accelerator.name)
    available, why = _availability(accelerator, label_of(accelerator))
    if not available:
        raise HardwareAbsentError(f"The accelerator {name!r} has no device here: {why}. {_instead(accelerator)}")
    trace.note("accelerator", name, f"{reason}; {why}", label_of(accelerator))
    return accelerator


def _of_name(name: str, reason: str, trace: Trace) -> Accelerator:
    return _of_found(registry.find(_KIND, name), reason, trace)


def _of_found(found: Found, reason: str, trace: Trace) -> Accelerator:
    offer = _class_of(found)
    available, why = _availability(offer, label(found.provider))
    if not available:
        raise HardwareAbsentError(
            f"The accelerator {found.name!r} ({label(found.provider)}) is installed, and has no device here: {why}. "
            f"{_instead(offer)}"
        )
    trace.note("accelerator", found.name, f"{reason}; {why}", found.provider)
    return created(found, Accelerator)


def _availability(accelerator: Any, who: str) -> tuple[bool, str]:
    answer = guarded(f"{who}: availability() of its accelerator", accelerator.availability)
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise BrokenPluginError(f"{who}: availability() returned {answer!r} and not (available, reason).")
    return bool(answer[0]), str(answer[1])


def _instead(accelerator: Any) -> str:
    """What to do where ``accelerator`` has no device."""
    device_type = getattr(accelerator, "device_type", None)
    if isinstance(device_type, str) and device_type and not torch_devices.is_known(device_type):
        return torch_devices.what_makes_known(device_type)
    return f"{_HERE_INSTEAD}."


def _class_of(found: Found) -> Any:
    """The class behind an offer, for queries without an object; of an offer that is a function, the object."""
    target = found.target_class()
    return target if isinstance(target, type) else created(found, Accelerator)


# --- roles


def _of_role(role: str, reason: str, trace: Trace) -> Accelerator:
    """The available candidate of highest priority.

    A broken candidate is an error: it may be the one that was meant, and the CPU must not take its place in silence.
    """
    available, absent, unfit, served = _candidates(role)
    if not available:
        raise _nothing_available(role, absent)
    passed_over = [*absent, *unfit]
    available.sort(key=lambda item: -item[0])  # stable: among equals the order of the registry, which is fixed
    priority, found, why = available[0]
    for lower, other, _ in available[1:]:
        passed_over.insert(
            0, PassedOver(f"{other.name} ({label(other.provider)})", f"priority {lower} against {priority}")
        )
    accelerator = created(found, Accelerator)
    if role == "auto" and accelerator.device_type == "cpu":
        _refuse_unserved(served)
    why = f"{reason}; of the available ones it has the highest priority ({priority}); {why}"
    trace.note("accelerator", found.name, why, found.provider, passed_over)
    return accelerator


def _candidates(role: str) -> tuple[list[tuple[int, Found, str]], list[PassedOver], list[PassedOver], set[str]]:
    """The available candidates with priority and reason, absent ones, unfit ones, and the device types served."""
    available: list[tuple[int, Found, str]] = []
    absent: list[PassedOver] = []
    unfit: list[PassedOver] = []
    broken: list[tuple[str, BaseException]] = []
    served: set[str] = set()
    for candidate in registry.role_candidates(_KIND, role):
        if isinstance(candidate, Failure):
            broken.append((label(candidate.provider), candidate.error))
            continue
        who = f"{candidate.name} ({label(candidate.provider)})"
        try:
            offer = _class_of(candidate)
            if role not in offer.roles:
                unfit.append(PassedOver(who, f"doesn't take the role {role!r}: it must be asked for by name"))
                continue
            here, why = _availability(offer, label(candidate.provider))
            priority = int(offer.priority)
            served.add(offer.device_type)
        except BaseException as error:
            let_through(error)
            broken.append((who, error))
            continue
        if here:
            available.append((priority, candidate, why))
        else:
            absent.append(PassedOver(who, why))
    if broken:
        raise _broken_candidates(role, broken)
    return available, absent, unfit, served


def _broken_candidates(role: str, broken: list[tuple[str, BaseException]]) -> BrokenPluginError:
    names = "; ".join(f"{who}: {first_line(error)}" for who, error in broken)
    error = BrokenPluginError(
        f"accelerator={role!r} can't be decided, because an installed accelerator plugin is broken: {names}. "
        "It may serve the device that is meant, so another is not taken in its place. Repair or uninstall it, "
        "block it (POPLIN_DISABLE_PLUGINS), or name the accelerator (accelerator='cpu')."
    )
    error.__cause__ = broken[0][1]
    return error


def _nothing_available(role: str, absent: list[PassedOver]) -> PoplinError:
    if absent:
        reasons = "; ".join(f"{what}: {why}" for what, why in absent)
        blocked = kept_out(_KIND)
        let_in = f" Installed, and kept out by a control, are {blocked}: let them in, or name an accelerator."
        instead = let_in if blocked else f" {_OTHER_HERE if role == 'auto' else _HERE_INSTEAD}."
        return HardwareAbsentError(f"accelerator={role!r}: no device is here. {reasons}.{instead}{_never_asked(role)}")
    packages = known.packages_for_role(_KIND, role)
    if blocked := kept_out(_KIND):
        return BlockedNameError(
            f"accelerator={role!r}: no plugin takes this role. Installed, and kept out, are {blocked}. Let them in, or "
            f"name an accelerator.{_never_asked(role)}"
        )
    hint = f"Install the one for your device: pip install {' or '.join(packages)}" if packages else "Name one"
    return NotInstalledError(f"accelerator={role!r}: no installed plugin takes this role. {hint}.{_never_asked(role)}")


def _never_asked(role: str) -> str:
    """What there is to say of plugins, loaded for ``auto``, whose class takes ``role`` and whose metadata doesn't."""
    told = []
    for candidate in registry.role_candidates(_KIND, "auto") if role != "auto" else ():
        try:
            if isinstance(candidate, Found) and role in registry.undeclared_roles(candidate):
                told.append(f"{candidate.name!r} of {label(candidate.provider)}")
        except BaseException as error:  # a broken one is told of where it is asked for
            let_through(error)
            continue
    if not told:
        return ""
    return (
        f" Never asked was {' or '.join(told)}: the class takes the role {role!r}, and the plugin's metadata has no "
        "entry point of that name. Ask for it by name, and tell its authors."
    )


def _refuse_unserved(served: set[str]) -> None:
    """Never the CPU in silence where torch itself sees another device."""
    seen = torch_devices.visible_device_type(served)
    if seen is None:
        return
    offered = [name for name in registry.names(_KIND) if fold(name) == fold(seen)]
    if offered:
        what = f"The installed accelerator {offered[0]!r} must be asked for: accelerator={offered[0]!r}"
    elif blocked := kept_out(_KIND):
        what = f"Installed, and kept out, are plugins that may serve it: {blocked}. Let them in"
    elif package := known.package_for_device(seen):
        what = f"Install the plugin for it: pip install {package}"
    else:
        what = f"Install a plugin that offers an accelerator for torch's device type {seen!r}"
    raise NotInstalledError(
        f"torch sees an accelerator here ({seen!r}), and no installed plugin serves it for accelerator='auto'. "
        f"{what}. To train on the CPU all the same: accelerator='cpu'."
    )


def _of_device_type(device_type: str, devices: Source, trace: Trace) -> Accelerator:
    """The accelerator for the devices that a strategy object carries."""
    reason = f"{devices.origin}, so it is the accelerator of device type {device_type!r}"
    for candidate in registry.role_candidates(_KIND, "auto"):
        if isinstance(candidate, Found) and getattr(_class_of(candidate), "device_type", None) == device_type:
            return _of_found(candidate, reason, trace)
    try:
        return _of_name(device_type, reason, trace)
    except LookupFailedError as error:
        raise blamed(error, devices.origin) from error


def _device_type(devices: Source) -> str:
    given = devices.value if isinstance(devices.value, list) else []
    types = {device.type if isinstance(device, torch.device) else None for device in given}
    if len(types) != 1 or None in types:
        raise SelectionError(
            f"{devices.origin}: this is no list of torch devices of one type. Give torch.device objects."
        )
    return str(types.pop())
