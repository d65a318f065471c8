"""Plans: which submodule is parallelised in which style of torch's."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from poplin.errors import ArgumentTypeError, UsageError


def as_plan(plan: Any) -> dict[str, Any]:
    """``plan``, once it is certain that it is ``{name: style}``.

    Raises:
        ArgumentTypeError: it is not.
    """
    if not isinstance(plan, Mapping):
        raise ArgumentTypeError(f"A plan is a dictionary {{name: parallel style}}, and not a {type(plan).__name__}.")
    for name, style in plan.items():
        if not isinstance(name, str) or not isinstance(style, ParallelStyle):
            raise ArgumentTypeError(
                f"A plan has names of submodules and styles of torch.distributed.tensor.parallel in it, such as "
                f"'layers.*.up': ColwiseParallel(); this one has {name!r}: {style!r}."
            )
    return dict(plan)


def plan_of(module: nn.Module) -> dict[str, Any] | None:
    """The plan that ``module`` brings, its attribute ``parallel_plan`` (a dictionary, or a method that returns one)."""
    plan = getattr(module, "parallel_plan", None)
    if callable(plan):
        plan = plan()
    return None if plan is None else as_plan(plan)


def apply_plan(module: nn.Module, mesh: DeviceMesh, plan: Mapping[str, Any]) -> None:
    """Parallelise the submodules of ``module`` that ``plan`` names.

    Raises:
        UsageError: a name in it fits no submodule.
    """
    names = [name for name, _ in module.named_modules()]
    expanded: dict[str, Any] = {}
    for pattern, style in plan.items():
        found = [name for name in names if matches(name, pattern)]
        expanded.update(dict.fromkeys(found, style))
        if not found:
            close = difflib.get_close_matches(pattern.replace("*", "0"), names, n=1)
            hint = f" Did you mean something like {close[0]!r}?" if close else ""
            raise UsageError(f"The plan names {pattern!r}, and {type(module).__name__} has no such submodule.{hint}")
    frozen = [name for name, parameter in module.named_parameters() if not parameter.requires_grad]
    parallelize_module(module, mesh, expanded)
    for name in frozen:  # some versions of torch make trained parameters of all
        module.get_parameter(name).requires_grad_(False)


def matches(name: str, pattern: str) -> bool:
    """Whether ``pattern``, in which each part between dots may have wildcards, fits ``name``."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted))
