"""Whether a run can be made with DeepSpeed: asked when every choice is made, before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from poplin.errors import ContradictionError, SelectionError
from poplin.precision import Precision
from poplin_deepspeed.installation import check_installed
from poplin_deepspeed.precision import DTYPES, DeepSpeedPrecision
from poplin_deepspeed.settings import ZERO, get

if TYPE_CHECKING:
    from poplin.selection import Selection

#: torch's device types for which DeepSpeed has an accelerator.
DEVICE_TYPES = ("cuda", "cpu", "xpu", "npu", "hpu", "mps", "mlu", "sdaa", "supa")


def refusal(precision: Precision) -> str | None:
    """None, or why DeepSpeed can't serve this precision."""
    if isinstance(precision, DeepSpeedPrecision) or type(precision) is Precision:
        return None
    return (
        f"DeepSpeed's engine holds the weights itself, and knows {', '.join(DTYPES)}; ask for one of these by name, or "
        "give a DeepSpeedPrecision"
    )


def check(selection: Selection, config: Mapping[str, Any], process_group_backend: str | None) -> None:
    """The library, the device and the precision go together with the config.

    Raises:
        DeepSpeedMissingError: DeepSpeed is missing, or too old.
        SelectionError: a device type, or a precision, that it can't serve.
        ContradictionError: the config asks for another precision.
    """
    check_installed()
    accelerator = selection.accelerator
    device_type = accelerator.device_type
    if device_type not in DEVICE_TYPES:
        raise SelectionError(
            f"DeepSpeed has no accelerator for devices of type {device_type!r}, only for {', '.join(DEVICE_TYPES)}. "
            "Use another strategy."
        )
    if accelerator.collective_backend is None and process_group_backend is None:
        raise SelectionError(
            f"The strategy 'deepspeed' works through a process group, and the accelerator {accelerator.name()!r} names "
            "no backend for it (collective_backend). Give one: DeepSpeedStrategy(process_group_backend=...)."
        )
    _check_precision(selection.precision, device_type, config)


def _check_precision(precision: Precision, device_type: str, config: Mapping[str, Any]) -> None:
    section = precision.section if isinstance(precision, DeepSpeedPrecision) else None
    if section == "fp16" and device_type == "cpu":
        raise SelectionError(
            f"precision={precision.precision!r}: DeepSpeed computes no float16 on the CPU. Use 'bf16-mixed', "
            "'bf16-true' or '32-true'."
        )
    for other in ("fp16", "bf16"):
        enabled = get(config, (other, "enabled"))
        if enabled and other != section:
            names = " or ".join(
                repr(name) for name, dtype in DTYPES.items() if name.startswith(other.lstrip("f").lstrip("p"))
            )
            raise ContradictionError(
                f"The config turns {other} on, and the precision is {precision.precision!r}. Say it in one place: "
                f"precision={names}, and no {other} section that is enabled."
            )
        if enabled is False and other == section:
            raise ContradictionError(
                f"The config turns {other} off, and the precision is {precision.precision!r}. Say it in one place."
            )
    if get(config, ("torch_autocast", "enabled")):
        raise ContradictionError(
            "The config turns torch_autocast on, which is the precision's business: leave the section out."
        )
    stage = get(config, (ZERO, "stage"))
    accumulation = get(config, ("data_types", "grad_accum_dtype"))
    if section == "bf16" and stage == 1 and accumulation in ("fp32", "float32"):
        raise SelectionError(
            "data_types.grad_accum_dtype='fp32' with bfloat16 makes DeepSpeed use another optimizer at stage 1, which "
            "this strategy can't serve. Use stage 2."
        )
