"""A plugin as its author would write it, typed; mypy reads it in strict mode, and a test registers it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any

from poplin import hookimpl, lazy
from poplin.errors import SelectionError
from poplin.registry import find, names, register

if TYPE_CHECKING:
    from poplin import Fabric
    from poplin.accelerators import Accelerator
    from poplin.selection import Selection


@hookimpl
def poplin_strategies() -> Mapping[str, Callable[..., Any]]:
    return {"typed": lazy("poplin.strategies:SingleDeviceStrategy")}


@hookimpl(tryfirst=True)
def poplin_select_strategy(accelerator: Accelerator, num_devices: int) -> str | None:
    return "typed" if accelerator.name() == "cpu" and num_devices == 1 else None


@hookimpl(wrapper=True)
def poplin_redirect_strategy(name: str) -> Generator[None, list[str | None], list[str | None]]:
    answers = yield
    return ["typed"] if name == "nothing" else answers


@hookimpl
def poplin_check_selection(selection: Selection) -> None:
    if selection.num_nodes > 1:
        raise SelectionError("This plugin knows one node. Use num_nodes=1.")


@hookimpl
def poplin_fabric_created(fabric: Fabric) -> None:
    assert fabric.strategy is not None


class Counter:
    """A logger by its one method."""

    def __init__(self) -> None:
        self.calls = 0

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls += 1


def register_counter() -> Counter:
    kept: type[Counter] = register("loggers", "typed_counter", Counter)
    assert "typed_counter" in names("loggers")
    made = find("loggers", "typed_counter").create()
    assert isinstance(made, kept)
    return made
