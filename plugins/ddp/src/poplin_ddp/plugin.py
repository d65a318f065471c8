"""What this package offers. Light: it imports neither torch nor the strategy before it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from poplin import hookimpl, lazy

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator

#: Lookup name → how the processes start. A notebook's processes are forked, as it can't run itself again.
_START_METHODS = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    """``ddp`` and its variants by start method and by what is done about unused parameters."""
    target = "poplin_ddp.strategy:DDPStrategy"
    offers: dict[str, Callable[..., Any]] = {}
    for name, start_method in _START_METHODS.items():
        offers[name] = lazy(target, start_method=start_method)
        for unused in (True, False):
            offers[f"{name}_find_unused_parameters_{str(unused).lower()}"] = lazy(
                target, start_method=start_method, find_unused_parameters=unused
            )
    return offers


@hookimpl
def poplin_select_strategy(accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool) -> str | None:
    """``ddp`` for several devices whose accelerator has a process-group backend; in notebooks ``ddp_notebook``."""
    if num_devices * num_nodes == 1 or accelerator.collective_backend is None:
        return None
    return "ddp_notebook" if interactive and num_nodes == 1 else "ddp"
