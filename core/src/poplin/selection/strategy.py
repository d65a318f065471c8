"""Which strategy: an object, a name (perhaps redirected), or whatever a plugin answers for ``auto``."""

from __future__ import annotations

from typing import Any

from poplin import registry
from poplin.accelerators.accelerator import Accelerator
from poplin.errors import LookupFailedError, NotInstalledError, SelectionError
from poplin.rank_zero import rank_zero_warn
from poplin.registry import Failure, Found, hookspecs, known
from poplin.registry.names import fold, parse_reference
from poplin.selection.common import because, created, first_line, instance_of, label, label_of, passed_over_failure
from poplin.selection.request import Request, Source
from poplin.selection.trace import PassedOver, Trace
from poplin.strategies.strategy import Strategy

_KIND = "strategies"
_LAST = "single_device"
#: One name may lead to another, and that one on; more than this is a mistake of the plugins.
MAX_REDIRECTS = 3


def resolve_strategy(
    request: Request, accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool, trace: Trace
) -> Strategy:
    """The strategy of the run.

    Raises:
        LookupFailedError: a name that can't be had; for ``auto`` with several devices, that nothing serves them.
        SelectionError: redirects that go in a circle.
    """
    source = request.explicit("strategy")
    if source is not None and not isinstance(source.value, str):
        strategy = instance_of(source.value, Strategy, source.origin)
        reason = because(request, "strategy", source)
        trace.note("strategy", type(strategy).__name__, reason, label_of(strategy))
        return strategy
    if source is not None:
        return _by_name(source.value, accelerator, because(request, "strategy", source), [], trace)
    name, reason, passed_over = _automatic(accelerator, num_devices, num_nodes, interactive)
    reason = because(request, "strategy", None, reason)
    return _by_name(name, accelerator, reason, passed_over, trace)


def check_strategy_object(request: Request) -> None:
    """Refuse what is neither a name nor a strategy, before anything is read off it."""
    source = request.explicit("strategy")
    if source is not None and not isinstance(source.value, str):
        instance_of(source.value, Strategy, source.origin)


# --- by name, with redirects


def _by_name(
    name: str, accelerator: Accelerator, reason: str, passed_over: list[PassedOver], trace: Trace
) -> Strategy:
    found = _follow(name, accelerator, passed_over)
    if isinstance(found, _Redirected):
        reason = f"{reason}; {found.story}"
        found = found.found
    trace.note("strategy", found.name, reason, found.provider, passed_over)
    return created(found, Strategy)


class _Redirected:
    def __init__(self, found: Found, story: str) -> None:
        self.found = found
        self.story = story


def _follow(name: str, accelerator: Accelerator, passed_over: list[PassedOver]) -> Found | _Redirected:
    """The offer that ``name`` leads to.

    Raises:
        LookupFailedError: nothing redirects a name that can't be had.
        SelectionError: the redirects go in a circle, or on and on.
    """
    path, story = [name], ""
    while True:
        found = _find(path[-1])
        answer = _ask_for_redirect(path[-1], found, accelerator, passed_over)
        if answer is None:
            if isinstance(found, LookupFailedError):
                raise found
            return _Redirected(found, story) if story else found
        target, who = answer
        route = " -> ".join(repr(step) for step in [*path, target])
        if _key(target) in {_key(step) for step in path}:
            raise SelectionError(
                f"The redirects of strategy={name!r} go in a circle: {route} (the last by {who}). "
                "Name the strategy's distribution ('dist:name'), give an object, or block one of the plugins."
            )
        if len(path) > MAX_REDIRECTS:
            raise SelectionError(
                f"strategy={name!r} was redirected more than {MAX_REDIRECTS} times: {route}. "
                "Name the strategy that is meant, give an object, or block one of the plugins."
            )
        story = f"{story}, then {target!r} by {who}" if story else f"redirected: {path[-1]!r} is {target!r} by {who}"
        path.append(target)


def _find(name: str) -> Found | LookupFailedError:
    try:
        return registry.find(_KIND, name)
    except LookupFailedError as error:
        return error  # another plugin may know what is meant by it


def _key(name: str) -> tuple[str | None, str]:
    reference = parse_reference(name)
    distribution = reference.distribution
    return (fold(distribution) if distribution else None, fold(reference.name))


def _ask_for_redirect(
    name: str, found: Found | LookupFailedError, accelerator: Accelerator, passed_over: list[PassedOver]
) -> tuple[str, str] | None:
    """``(other name, who says so)``, or None. Asked are the accelerator's plugin, the name's, then ambient ones."""
    providers = [registry.provider_of(accelerator), found.provider if isinstance(found, Found) else None]
    plain = parse_reference(name).name
    asked = hookspecs.redirect_strategy(
        name=plain, accelerator=accelerator, providers=[provider for provider in providers if provider is not None]
    )
    winner: tuple[str, str] | None = None
    for answer in asked:
        who = label(answer.provider)
        if answer.error is not None:
            passed_over.append(PassedOver(who, f"its redirect failed ({first_line(answer.error)})"))
        elif answer.value is not None and winner is None:
            winner = (str(answer.value), who)
        elif answer.value is not None:
            passed_over.append(PassedOver(str(answer.value), f"redirected to by {who}, after {winner}"))
    return winner


# --- auto


def _automatic(
    accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool
) -> tuple[str, str, list[PassedOver]]:
    """``(name, reason, what was passed over)`` for ``strategy="auto"``."""
    passed_over: list[PassedOver] = []
    for candidate in registry.role_candidates(_KIND, "auto"):  # loads the plugins that want to be asked
        if isinstance(candidate, Failure):
            passed_over.append(passed_over_failure(candidate))
            rank_zero_warn(
                f"The strategy plugin {label(candidate.provider)} is broken ({first_line(candidate.error)}) and was "
                "not asked what strategy='auto' should be. Repair or uninstall it, or name the strategy."
            )
    answers = hookspecs.select_strategy(
        accelerator=accelerator, num_devices=num_devices, num_nodes=num_nodes, interactive=interactive
    )
    winner: tuple[str, str] | None = None
    for answer in answers:
        who = label(answer.provider)
        if answer.error is not None:
            passed_over.append(PassedOver(who, f"its selection failed ({first_line(answer.error)})"))
        elif answer.value is None:
            passed_over.append(PassedOver(who, "has no answer for these devices"))
        elif winner is None:
            winner = (str(answer.value), who)
        else:
            passed_over.append(PassedOver(str(answer.value), f"the answer of {who}, which comes later"))
    if winner is not None:
        return winner[0], f"nothing was asked for, and {winner[1]} answered first", passed_over
    if num_devices * num_nodes == 1:
        return _LAST, "nothing was asked for, and there is one device", passed_over
    raise _nothing_for_several(accelerator, num_devices, num_nodes, passed_over)


def _nothing_for_several(
    accelerator: Accelerator, num_devices: int, num_nodes: int, passed_over: list[PassedOver]
) -> NotInstalledError:
    asked = "; ".join(f"{what}: {why}" for what, why in passed_over) or "none is installed"
    packages = known.packages_for_role(_KIND, "auto")
    hint = f"Install one: pip install {' or '.join(packages)}" if packages else "Install one that does"
    return NotInstalledError(
        f"strategy='auto': {num_devices} device(s) on {num_nodes} node(s) of {accelerator.name()!r} need a strategy for "
        f"several devices, and no installed plugin offers one ({asked}). {hint}, name a strategy, or use devices=1."
    )
