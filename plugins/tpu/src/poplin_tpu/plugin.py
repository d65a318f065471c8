"""What this package offers. Light: it imports neither torch nor a runtime before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from poplin import hookimpl, lazy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator

Offers = Mapping[str, Callable[..., Any]]

#: torch_xla moves whole graphs: torch's own strategies do not work there, and these do their work.
_UNDER_TORCH_XLA = {"ddp": "xla", "fsdp": "xla_fsdp", "single_device": "single_xla"}
#: TorchTPU is an ordinary eager device: the general strategies serve it.
_UNDER_TORCH_TPU = {
    "xla": "ddp",
    "xla_fsdp": "fsdp",
    "single_xla": "single_device",
    "single_tpu": "single_device",
}


@hookimpl
def poplin_accelerators() -> Offers:
    """``tpu``, on whichever runtime is here, and ``xla``: every device of torch_xla's, when it is asked for."""
    return {
        "tpu": lazy("poplin_tpu.accelerator:TPUAccelerator"),
        "xla": lazy("poplin_tpu.accelerator:XLAAccelerator"),
    }


@hookimpl
def poplin_strategies() -> Offers:
    """The strategies of torch_xla."""
    return {
        "xla": lazy("poplin_tpu.strategy:XLAStrategy"),
        "single_xla": lazy("poplin_tpu.strategy:SingleDeviceXLAStrategy"),
        "single_tpu": lazy("poplin_tpu.strategy:SingleDeviceXLAStrategy"),
        "xla_fsdp": lazy("poplin_tpu.fsdp:XLAFSDPStrategy"),
        "xla_spmd": lazy("poplin_tpu.spmd:XLASPMDStrategy"),
    }


@hookimpl
def poplin_precisions() -> Offers:
    """The precisions of torch_xla, which its strategies also make of the usual names."""
    return {
        f"xla-{name}": lazy("poplin_tpu.precision:XLAPrecision", precision=name)
        for name in ("32-true", "bf16-true", "16-true")
    }


@hookimpl
def poplin_launchers() -> Offers:
    """``xla``."""
    return {"xla": lazy("poplin_tpu.launcher:XLALauncher")}


@hookimpl
def poplin_environments() -> Offers:
    """``xla``: ranks from torch_xla's runtime."""
    return {"xla": lazy("poplin_tpu.environment:XLAEnvironment")}


@hookimpl
def poplin_checkpoint_ios() -> Offers:
    """``xla``: files as ``torch`` writes them, of tensors that were brought to the host first."""
    return {"xla": lazy("poplin_tpu.checkpoint:XLACheckpointIO")}


@hookimpl
def poplin_select_strategy(accelerator: Accelerator, num_devices: int, num_nodes: int) -> str | None:
    """torch_xla's own strategies on its devices; TorchTPU's are served by the general ones."""
    if accelerator.device_type != "xla":
        return None
    return "xla" if num_devices * num_nodes > 1 else "single_xla"


@hookimpl
def poplin_redirect_strategy(name: str, accelerator: Accelerator) -> str | None:
    """Each runtime has strategies of its own for the same work."""
    if accelerator.device_type == "xla":
        return _UNDER_TORCH_XLA.get(name)
    if accelerator.device_type == "tpu":
        return _UNDER_TORCH_TPU.get(name)
    return None
