"""Which strategy: an object, a name (perhaps redirected), or whatever a plugin answers for ``auto``."""

from __future__ import annotations

from collections.abc import Sequence

from poplin import registry
from poplin.accelerators.accelerator import Accelerator
from poplin.errors import ArgumentValueError, LookupFailedError, NotInstalledError, SelectionError
from poplin.registry import Answer, Found, hookspecs, known
from poplin.registry.names import fold, parse_reference
from poplin.selection.common import because, blamed, created, first_line, instance_of, kept_out, label, label_of
from poplin.selection.request import Request
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
    try:
        return _by_name(name, accelerator, because(request, "strategy", None, reason), passed_over, trace)
    except (LookupFailedError, ArgumentValueError) as error:
        raise blamed(error, f"strategy='auto' became {name!r} ({reason})") from error


def check_strategy_object(request: Request) -> None:
    """Refuse what is neither a name nor a strategy, before anything is read off it."""
    source = request.explicit("strategy")
    if source is not None and not isinstance(source.value, str):
        instance_of(source.value, Strategy, source.origin)


# --- by name, with redirects


def _by_name(name: str, accelerator: Accelerator, reason: str, passed_over: list[PassedOver], trace: Trace) -> Strategy:
    found, story = _follow(name, accelerator, passed_over)
    trace.note("strategy", found.name, f"{reason}; {story}" if story else reason, found.provider, passed_over)
    return created(found, Strategy)


def _follow(name: str, accelerator: Accelerator, passed_over: list[PassedOver]) -> tuple[Found, str]:
    """The offer that ``name`` leads to, and by which redirects.

    Raises:
        LookupFailedError: a name on the way can't be had, and nothing redirects it.
        SelectionError: the redirects go in a circle, or on and on.
    """
    path = [name]
    steps: list[str] = []
    while True:
        found = _find(path[-1])
        answer = _ask_for_redirect(path[-1], found, accelerator, passed_over)
        story = f"redirected: {', then '.join(steps)}" if steps else ""
        if answer is None:
            if isinstance(found, Found):
                return found, story
            raise blamed(found, story) if story else found
        target, who = answer
        route = " -> ".join(repr(step) for step in [*path, target])
        if _key(target) in {_key(step) for step in path}:
            raise SelectionError(
                f"The redirects of strategy={name!r} go in a circle: {route} (the last by {who}). "
                "Give a strategy object, which is never redirected, or block one of the plugins."
            )
        if len(path) > MAX_REDIRECTS:
            raise SelectionError(
                f"strategy={name!r} was redirected more than {MAX_REDIRECTS} times: {route}. "
                "Name the strategy that is meant, give an object, or block one of the plugins."
            )
        steps.append(f"{path[-1]!r} is {target!r} on this accelerator by {who}")
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
    plain = found.name if isinstance(found, Found) else parse_reference(name).name
    providers = [registry.provider_of(accelerator), found.provider if isinstance(found, Found) else None]
    target, answers = hookspecs.redirect_strategy(plain, accelerator, providers)
    for answer in answers:
        if answer.error is not None:
            passed_over.append(
                PassedOver(f"what {label(answer.provider)} redirects to", f"it failed ({first_line(answer.error)})")
            )
        elif answer.value is not None and answer.value != target:
            passed_over.append(
                PassedOver(str(answer.value), f"{label(answer.provider)} redirects to it, and comes later")
            )
    return None if target is None else (target, _who_said(target, answers))


def _who_said(value: str, answers: Sequence[Answer]) -> str:
    """The plugin whose answer counted; a wrapper of an ambient plugin may have put its own in place of all."""
    return next((label(answer.provider) for answer in answers if answer.value == value), "an ambient plugin")


# --- auto


def _automatic(
    accelerator: Accelerator, num_devices: int, num_nodes: int, interactive: bool
) -> tuple[str, str, list[PassedOver]]:
    """``(name, reason, what was passed over)`` for ``strategy="auto"``."""
    passed_over: list[PassedOver] = []
    winner, answers = hookspecs.select_strategy(
        accelerator=accelerator, num_devices=num_devices, num_nodes=num_nodes, interactive=interactive
    )
    for answer in answers:
        who = label(answer.provider)
        if answer.error is not None:
            passed_over.append(PassedOver(f"the answer of {who}", f"it failed ({first_line(answer.error)})"))
        elif answer.value is None:
            passed_over.append(PassedOver(who, "it was asked, and has no strategy for these devices"))
        elif answer.value != winner:
            passed_over.append(PassedOver(str(answer.value), f"{who} says so, and was not the first to answer"))
    if winner is not None:
        return winner, f"nothing was asked for, and {_who_said(winner, answers)} answered first", passed_over
    if num_devices * num_nodes == 1:
        return _LAST, "nothing was asked for, and there is one device", passed_over
    raise _nothing_for_several(accelerator, num_devices, num_nodes, passed_over)


def _nothing_for_several(
    accelerator: Accelerator, num_devices: int, num_nodes: int, passed_over: list[PassedOver]
) -> NotInstalledError:
    asked = "; ".join(f"{what}: {why}" for what, why in passed_over) or "there is none"
    packages = known.packages_for_role(_KIND, "auto")
    if blocked := kept_out(_KIND, ("auto",)):
        hint = f"Installed, and kept out: {blocked}. Let it in"
    elif packages:
        hint = f"Install one: pip install {' or '.join(packages)}"
    else:
        hint = "Install one that does"
    return NotInstalledError(
        f"strategy='auto': {num_devices} device(s) on {num_nodes} node(s) of {accelerator.name()!r} need a strategy "
        f"for several devices, and no plugin that can be asked has one ({asked}). {hint}, name a strategy, or use "
        "devices=1."
    )
