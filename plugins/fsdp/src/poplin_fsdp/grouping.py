"""The groups in which parameters are gathered: one for each selected module, one for the rest, tied ones together."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import nn

from poplin.errors import UsageError
from poplin_fsdp.selecting import paths

#: Attributes by which torch's wrappers hold the one module that they wrap: torch.compile, activation checkpointing.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
#: Modules of one group; the parameters that several of them hold are gathered together.
Group = list[nn.Module]


def groups_of(root: nn.Module, chosen: Sequence[nn.Module]) -> list[Group]:
    """What each call of ``fully_shard`` gets, innermost first; the last one is ``[root]``.

    A parameter (or a module) that stands below two selected modules is one tensor: they become one group. If one of
    the two is the root, or stands around the other, the inner one joins the outer.

    Args:
        root: what runs first.
        chosen: modules below it.

    Raises:
        UsageError: one of them can't be called, so that nothing would gather its parameters.
    """
    for module in chosen:
        if isinstance(module, (nn.ModuleList, nn.ModuleDict)) and type(module).forward is nn.Module.forward:
            raise UsageError(
                f"A {type(module).__name__} has no forward, so it can't be sharded by itself: nothing would gather its "
                "parameters. Name the class of the modules in it."
            )
    places = list(paths(root))
    units = [root, *(_outermost(module, places) for module in chosen)]
    while True:
        owners, around = _owners(places, units)
        together = _joined(units, owners)
        inner = [unit for group in together for unit in group if _joins_another(unit, group, root, around)]
        if not inner:
            break
        dropped = {id(unit) for unit in inner}
        units = [unit for unit in units if id(unit) not in dropped]
    depth: dict[int, int] = {}
    for module, inside in places:
        depth[id(module)] = max(depth.get(id(module), 0), len(inside))
    return sorted(together, key=lambda group: -max(depth[id(unit)] for unit in group))


def _outermost(module: nn.Module, places: Sequence[tuple[nn.Module, tuple[nn.Module, ...]]]) -> nn.Module:
    """The wrapper around ``module`` (compiled, checkpointed), if there is one: what is called is what is hooked."""
    inside = next(outer for one, outer in places if one is module)
    for outer in reversed(inside):
        children = outer._modules
        if len(children) != 1 or next(iter(children)) not in _WRAPPED:
            break
        module = outer
    return module


def _owners(
    places: Sequence[tuple[nn.Module, tuple[nn.Module, ...]]], units: Sequence[nn.Module]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """For each parameter the units that it would fall to; for each module those that stand around it somewhere."""
    known = {id(unit) for unit in units}
    owners: dict[int, set[int]] = {}
    around: dict[int, set[int]] = {}
    for module, inside in places:
        around.setdefault(id(module), set()).update(id(outer) for outer in inside)
        owner = next(id(one) for one in (module, *reversed(inside)) if id(one) in known)
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(owner)
    return owners, around


def _joined(units: Sequence[nn.Module], owners: dict[int, set[int]]) -> list[Group]:
    """The units as groups: two that own one parameter are in one."""
    group_of: dict[int, set[int]] = {id(unit): {id(unit)} for unit in units}
    for owning in owners.values():
        together = set().union(*(group_of[unit] for unit in owning))
        for unit in together:
            group_of[unit] = together
    groups: dict[int, Group] = {}
    unique: dict[int, nn.Module] = {id(unit): unit for unit in units}
    for key, module in unique.items():
        groups.setdefault(id(group_of[key]), []).append(module)
    return list(groups.values())


def _joins_another(unit: nn.Module, group: Collection[Any], root: nn.Module, around: dict[int, set[int]]) -> bool:
    """Whether ``unit`` gives way to another one of its group: the root, or one that stands around it."""
    if len(group) == 1 or unit is root:
        return False
    return any(other is root or id(other) in around[id(unit)] for other in group if other is not unit)
