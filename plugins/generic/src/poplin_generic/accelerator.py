"""Accelerators of devices that torch itself knows, by ``torch.accelerator`` and ``torch.get_device_module`` alone."""

from __future__ import annotations

from importlib import metadata
from typing import Any, cast

import torch

from poplin import registry
from poplin.accelerators import Accelerator
from poplin_generic.slot import slot_owner

#: Device type → the package that brings it to torch.
_PACKAGES = {"npu": "torch_npu", "hpu": "habana_torch_plugin"}
#: Device types that torch may report and that people call GPUs.
_GPUS = ("cuda", "mps", "xpu")


class _DefaultBackend:
    """The process-group backend that torch's own table has for the device type.

    It is read each time, as packages add to the table.
    """

    def __get__(self, instance: Any, owner: type[Accelerator]) -> str | None:
        distributed = torch.distributed
        if not distributed.is_available():
            return None
        try:
            backend: str = distributed.get_default_backend_for_device(owner.device_type)
        except (ValueError, RuntimeError):  # none for this type; or torch doesn't know the type
            return None
        return backend if backend != "fake" and distributed.is_backend_available(backend) else None


class GenericAccelerator(Accelerator):
    """A device of a type that torch knows, served by what torch offers for every device.

    Other accelerators of the same device come first; only the CPU comes after.
    """

    priority = -1000
    collective_backend = cast("str | None", _DefaultBackend())

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        try:
            module: Any = torch.get_device_module(cls.device_type)
        except (RuntimeError, AttributeError):
            return False, _why_unknown(cls.device_type)
        count = int(module.device_count())
        # `torch.cuda.is_available()` would make this process unfit to be forked; the count, as a rule, does not
        if count < 1 or (cls.device_type != "cuda" and not module.is_available()):
            return False, f"torch ({torch.__version__}) reports no {cls.device_type!r} device here"
        return True, f"torch reports {count} {cls.device_type!r} device(s)"


class XPUAccelerator(GenericAccelerator):
    """Intel GPUs, by torch's own ``xpu``."""

    device_type = "xpu"
    roles = ("auto", "gpu")

    @staticmethod
    def name() -> str:
        return "xpu"


class NPUAccelerator(GenericAccelerator):
    """Ascend NPUs, once the package ``torch_npu`` has brought them to torch."""

    device_type = "npu"

    @staticmethod
    def name() -> str:
        return "npu"


class HPUAccelerator(GenericAccelerator):
    """Gaudi devices in eager mode, once Intel's package has brought them to torch."""

    device_type = "hpu"

    @staticmethod
    def name() -> str:
        return "hpu"


class MTIAAccelerator(GenericAccelerator):
    """Meta's training and inference accelerators, by torch's own ``mtia``."""

    device_type = "mtia"

    @staticmethod
    def name() -> str:
        return "mtia"


def _reported() -> str | None:
    """Type of the accelerator that this process's torch is made for, or that a package brought to it."""
    found = torch.accelerator.current_accelerator(check_available=False)
    return None if found is None else str(found.type)


class _ReportedType:
    """The device type that torch reports; "" where it reports none (such an accelerator is never available)."""

    def __get__(self, instance: Any, owner: type[Accelerator]) -> str:
        return _reported() or ""


class _ReportedRoles:
    """No role where an accelerator of the device's own name is installed: it is the one that was made for it."""

    def __get__(self, instance: Any, owner: type[Accelerator]) -> tuple[str, ...]:
        reported = _reported()
        if reported is not None and reported in registry.names("accelerators"):
            return ()
        return ("auto", "gpu") if reported in _GPUS else ("auto",)


class TorchAccelerator(GenericAccelerator):
    """Whatever accelerator torch reports, an out-of-tree device (PrivateUse1) under its own name included."""

    device_type = cast("str", _ReportedType())
    roles = cast("tuple[str, ...]", _ReportedRoles())

    @staticmethod
    def name() -> str:
        return "torch"

    @classmethod
    def availability(cls) -> tuple[bool, str]:
        if _reported() is None:
            return False, f"this torch ({torch.__version__}) is made for no accelerator, and no package brought it one"
        return super().availability()


def _why_unknown(device_type: str) -> str:
    why = f"this torch ({torch.__version__}) knows no device {device_type!r}"
    owner = slot_owner()
    if owner is not None and device_type not in ("hpu", "xpu", "mtia"):
        return f"{why}: its one slot for out-of-tree devices (PrivateUse1) is taken by {owner}"
    package = _PACKAGES.get(device_type)
    if package is None:
        return why
    try:
        version = metadata.version(package)
    except metadata.PackageNotFoundError:
        return f"{why}: the package that brings it, {package}, is not installed"
    return (
        f"{why}: {package} {version} is installed, and torch has not loaded it. TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps "
        f"it from that; otherwise import {package} before you make a Fabric"
    )
