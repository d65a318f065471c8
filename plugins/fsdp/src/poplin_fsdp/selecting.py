"""Which modules a policy means: module classes, functions, or the policy objects of torch.distributed.fsdp.wrap."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from poplin.errors import ArgumentTypeError

#: Module classes (one, or several), a function of a module, or a policy object of torch's.
Policy = Any


def as_policy(policy: Policy, argument: str) -> Policy:
    """``policy``, once it is certain that it can be meant; classes as a tuple.

    Args:
        policy: None, a module class or several, a function, or a policy object of torch's.
        argument: its name, for the message.

    Raises:
        ArgumentTypeError: it is something else.
    """
    if isinstance(policy, type):
        policy = (policy,)
    if isinstance(policy, (set, frozenset, list, tuple)):
        others = [one for one in policy if not (isinstance(one, type) and issubclass(one, nn.Module))]
        if others:
            raise ArgumentTypeError(f"{argument} takes module classes, and {others[0]!r} is none.")
        return tuple(policy)
    if policy is None or callable(policy) or hasattr(policy, "_run_policy"):
        return policy
    raise ArgumentTypeError(
        f"{argument} takes module classes ({{Block}}), a function of a module that returns whether it is meant, or a "
        f"policy of torch.distributed.fsdp.wrap, and got a {type(policy).__name__}."
    )


def selected(module: nn.Module, policy: Policy) -> list[nn.Module]:
    """The submodules of ``module`` that ``policy`` means, without ``module`` itself, outermost first.

    Args:
        module: the user's.
        policy: what :func:`as_policy` returned.
    """
    if policy is None:
        return []
    if isinstance(policy, tuple):
        chosen: Iterable[nn.Module] = [child for child in module.modules() if isinstance(child, policy)]
    elif hasattr(policy, "_run_policy"):
        chosen = policy._run_policy(module, set(), {})
    elif _asks_for_sizes(policy):
        chosen = _by_size(module, policy)
    else:
        chosen = [child for child in module.modules() if policy(child)]
    wanted = {id(child) for child in chosen}
    return [child for child in module.modules() if child is not module and id(child) in wanted]


def _asks_for_sizes(policy: Callable[..., Any]) -> bool:
    """Whether it is a function as FSDP1 takes them: ``policy(module, recurse, nonwrapped_numel)``."""
    try:
        return "recurse" in inspect.signature(policy).parameters
    except (TypeError, ValueError):
        return False


def _by_size(root: nn.Module, policy: Callable[..., bool]) -> list[nn.Module]:
    """What FSDP1's recursion selects: from the inside out, with the number of elements that are still in no unit."""
    chosen: list[nn.Module] = []
    seen: set[int] = set()

    def visit(module: nn.Module) -> int:
        """The number of elements below ``module`` that are in a unit."""
        seen.add(id(module))
        numel = sum(parameter.numel() for parameter in module.parameters())
        if not policy(module=module, recurse=True, nonwrapped_numel=numel):
            return 0
        inside = sum(visit(child) for child in module.children() if id(child) not in seen)
        if policy(module=module, recurse=False, nonwrapped_numel=numel - inside):
            chosen.append(module)
            return numel
        return inside

    visit(root)
    return chosen


def paths(module: nn.Module, inside: tuple[nn.Module, ...] = ()) -> Iterator[tuple[nn.Module, tuple[nn.Module, ...]]]:
    """Every place at which a module stands below ``module``: ``(module, those around it, outermost first)``.

    A module that stands in two places comes twice.
    """
    yield module, inside
    for child in module.children():
        if not any(child is outer for outer in (*inside, module)):
            yield from paths(child, (*inside, module))
