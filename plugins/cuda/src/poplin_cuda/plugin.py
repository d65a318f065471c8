"""What this package offers. Light: it imports neither torch nor the accelerator before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from poplin import hookimpl, lazy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator


@hookimpl
def poplin_accelerators() -> Mapping[str, Callable[..., Any]]:
    """``cuda``, for the roles ``auto`` and ``gpu`` too."""
    return {"cuda": lazy("poplin_cuda.accelerator:CUDAAccelerator")}


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    """``dp``."""
    return {"dp": lazy("poplin_cuda.strategy:DataParallelStrategy")}


@hookimpl
def poplin_redirect_strategy(name: str, accelerator: Accelerator) -> str | None:
    """``dp`` splits a batch over several GPUs in one process; on the CPU its work is done by ``ddp``."""
    if name != "dp" or accelerator.device_type != "cpu":
        return None
    from poplin.utilities import rank_zero_warn

    rank_zero_warn(
        "strategy='dp' needs several GPUs in one process. On the CPU 'ddp' is used instead, with one process for each "
        "device; write strategy='ddp' to say so yourself."
    )
    return "ddp"
