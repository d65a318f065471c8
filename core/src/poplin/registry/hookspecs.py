"""Every hook that a plugin can implement, and one typed function to call each.

A hook of a kind (``poplin_strategies`` and so on) returns what the plugin offers: names and what makes the objects.
Selection hooks are asked while a Fabric is made. Lifecycle hooks are told what became of it; none is ever called
on the per-step path.

A plugin may take fewer arguments than the specification has. Mark a hook that only a later core knows with
``@hookimpl(optionalhook=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from poplin.registry.markers import hookspec
from poplin.registry.records import Answer, Provider
from poplin.registry.service import REGISTRY

if TYPE_CHECKING:
    from poplin.accelerators import Accelerator
    from poplin.fabric import Fabric
    from poplin.selection import Selection

Offers = Mapping[str, Callable[..., Any]]

# --- offers: one hook for each kind


@hookspec
def poplin_accelerators() -> Offers:  # type: ignore[empty-body]
    """Accelerators that this plugin offers.

    Returns:
        name → a class, a function, or ``lazy("module:Class", **presets)``; the names are those that the metadata
        declares under the group ``poplin.accelerators``, roles aside.
    """


@hookspec
def poplin_strategies() -> Offers:  # type: ignore[empty-body]
    """Strategies that this plugin offers; as :func:`poplin_accelerators`, for the group ``poplin.strategies``."""


@hookspec
def poplin_precisions() -> Offers:  # type: ignore[empty-body]
    """Precisions that this plugin offers; as :func:`poplin_accelerators`, for the group ``poplin.precisions``."""


@hookspec
def poplin_launchers() -> Offers:  # type: ignore[empty-body]
    """Launchers that this plugin offers; as :func:`poplin_accelerators`, for the group ``poplin.launchers``."""


@hookspec
def poplin_environments() -> Offers:  # type: ignore[empty-body]
    """Environments that this plugin offers; as :func:`poplin_accelerators`, for the group ``poplin.environments``."""


@hookspec
def poplin_loggers() -> Offers:  # type: ignore[empty-body]
    """Loggers that this plugin offers; as :func:`poplin_accelerators`, for the group ``poplin.loggers``."""


@hookspec
def poplin_checkpoint_ios() -> Offers:  # type: ignore[empty-body]
    """Checkpoint IOs that this plugin offers; as :func:`poplin_accelerators`, group ``poplin.checkpoint_ios``."""


# --- selection


@hookspec
def poplin_select_strategy(accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool) -> str | None:
    """Name the strategy that ``strategy="auto"`` is.

    Asked are plugins that declare the role ``auto`` under ``poplin.strategies``, ambient plugins and what the script
    registered: first those marked tryfirst, last those marked trylast, and otherwise by the name of the distribution.
    Each is asked, and the first answer counts; with none it is the built-in single device. A ``wrapper=True`` of an
    ambient plugin is yielded the list of answers, and returns a list or one name.

    Args:
        accelerator: the chosen accelerator.
        num_devices: number of its devices on this node.
        num_nodes: number of nodes.
        interactive: whether this is a notebook or a Python prompt.

    Returns:
        A name, or None to leave it to others.
    """


@hookspec
def poplin_redirect_strategy(name: str, accelerator: Accelerator) -> str | None:
    """Replace the strategy that was asked for by name by the one that does its work on this accelerator.

    Asked are the plugin of the accelerator, then that of the strategy, then ambient ones; the first answer counts.
    Objects are never redirected.

    Args:
        name: the name, as it is registered.
        accelerator: the chosen accelerator.

    Returns:
        Another name, or None.
    """


@hookspec
def poplin_check_selection(selection: Selection) -> None:
    """Veto a combination. For ambient plugins: a backend's own veto is its ``check``.

    Args:
        selection: the complete selection; nothing is bound yet.

    Raises:
        SelectionError: with what to do instead. (Any other error is taken as a fault of the plugin.)
    """


# --- lifecycle


@hookspec
def poplin_fabric_created(fabric: Fabric) -> None:
    """A Fabric exists. A plugin that is loaded later is told of those that are alive.

    Args:
        fabric: it; keep no strong reference.
    """


@hookspec
def poplin_processes_launched(fabric: Fabric) -> None:
    """The processes of a Fabric exist, and their process group is up. Called in each of them.

    Args:
        fabric: it; keep no strong reference.
    """


@hookspec
def poplin_fabric_closed(fabric: Fabric) -> None:
    """A Fabric is about to give back what it took.

    Args:
        fabric: it; keep no strong reference.
    """


# --- one typed function to call each of the selection and lifecycle hooks


def select_strategy(
    *, accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool
) -> tuple[str | None, list[Answer]]:
    """Ask which strategy ``auto`` is.

    Returns:
        The name that counts or None, and each plugin's answer in the order of asking, errors included.
    """
    outcome, answers = REGISTRY.conversation.ask(
        "poplin_select_strategy",
        REGISTRY.role_providers("strategies", "auto") + REGISTRY.ambient_providers(),
        accelerator=accelerator,
        num_devices=num_devices,
        num_nodes=num_nodes,
        interactive=interactive,
    )
    return _first_name(outcome), answers


def redirect_strategy(
    name: str, accelerator: Accelerator, providers: Iterable[Provider | None] = ()
) -> tuple[str | None, list[Answer]]:
    """Ask whether ``name`` is another strategy on this accelerator.

    Args:
        name: the strategy's name.
        accelerator: the chosen accelerator.
        providers: whose plugins to ask ahead of the ambient ones: the accelerator's, then the strategy's.

    Returns:
        The other name or None, and each plugin's answer in the order of asking, errors included.
    """
    known = [provider for provider in providers if provider is not None]
    outcome, answers = REGISTRY.conversation.ask(
        "poplin_redirect_strategy", known + REGISTRY.ambient_providers(), name=name, accelerator=accelerator
    )
    return _first_name(outcome), answers


def check_selection(selection: Selection) -> list[Answer]:
    """Let ambient plugins veto.

    Returns:
        Who was asked.

    Raises:
        SelectionError: one of them did.
    """
    return REGISTRY.conversation.ask("poplin_check_selection", REGISTRY.ambient_providers(), selection=selection)[1]


def fabric_created(fabric: Fabric) -> list[Answer]:
    """Tell every loaded plugin. What one raises is a warning that names it."""
    return REGISTRY.conversation.tell("poplin_fabric_created", fabric)


def processes_launched(fabric: Fabric) -> list[Answer]:
    """Tell every loaded plugin. What one raises is a warning that names it."""
    return REGISTRY.conversation.tell("poplin_processes_launched", fabric)


def fabric_closed(fabric: Fabric) -> list[Answer]:
    """Tell every loaded plugin. What one raises is a warning that names it."""
    return REGISTRY.conversation.tell("poplin_fabric_closed", fabric)


def _first_name(outcome: Any) -> str | None:
    names = [outcome] if isinstance(outcome, str) else list(outcome or ())
    return next((name for name in names if name is not None), None)
