"""Parameters that are gathered for a forward, and the sharded ones that are trained."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from poplin_fsdp.root import ShardedRoot


def sharded_counterparts(roots: Iterable[ShardedRoot]) -> dict[int, nn.Parameter]:
    """``id`` of a gathered parameter → the sharded one whose values it has.

    A forward leaves some of them in the module until its backward; an optimizer that is made then gets them.

    Args:
        roots: of everything that was set up. Afterwards their modules have their sharded parameters.
    """
    found: dict[int, nn.Parameter] = {}
    for root in roots:
        before = dict(root.named_parameters(remove_duplicate=False))
        root.reshard()
        for name, sharded in root.named_parameters(remove_duplicate=False):
            if before[name] is not sharded:
                found[id(before[name])] = sharded
        for gathered, sharded in _kept(root):
            found.setdefault(id(gathered), sharded)
    return found


def forget_gradients(root: ShardedRoot) -> None:
    """Forget the gradients of gathered parameters: those of a backward that failed are not to count in the next one."""
    for gathered, _ in _kept(root):
        gathered.grad = None


def _kept(root: ShardedRoot) -> Iterable[tuple[Any, nn.Parameter]]:
    """Those of earlier forwards: torch fills the same parameter again and again, and keeps it where nobody sees it."""
    for part in root.parts:
        state: Any = part._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # older versions of torch have one, or none
            groups = [group for group in (state._fsdp_param_group,) if group is not None]
        for group in groups:
            for one in group.fsdp_params:
                gathered = getattr(one, "_unsharded_param", None)
                if gathered is not None:
                    yield gathered, one.sharded_param
