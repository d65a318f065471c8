"""Leave out the synchronisation of gradients, for one module or for several."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

from torch import nn

from poplin.errors import NotSetUpError
from poplin.rank_zero import rank_zero_warn
from poplin.wrappers.compile import without_compile
from poplin.wrappers.module import FabricModule
from poplin.wrappers.setups import Setups
from poplin.wrappers.sharing import link_of


def no_backward_sync(
    module: nn.Module | Sequence[nn.Module], enabled: bool, *, setups: Setups
) -> AbstractContextManager[Any]:
    """See ``Fabric.no_backward_sync``.

    Args:
        module: what setup returned, compiled or not, or a list or tuple of such.
        enabled: False makes it do nothing.
        setups: of the Fabric.

    Raises:
        NotSetUpError: one has not been set up.
    """
    modules = list(module) if isinstance(module, (list, tuple)) else [module]
    wrapped = []
    for one in modules:
        inner = without_compile(one)
        if not isinstance(inner, FabricModule):
            raise NotSetUpError(
                f"no_backward_sync() takes what setup() returned, or a list of such, and got a {type(one).__name__}. "
                "Set it up first, and pass what setup() returns."
            )
        wrapped.append(inner)
    strategy = setups.strategy
    if not enabled:
        return nullcontext()
    if not strategy.supports_no_backward_sync:
        rank_zero_warn(
            f"{type(strategy).__name__} can't leave out the synchronisation of gradients: no_backward_sync() has no "
            "effect. The result is the same, at the cost of one synchronisation for each backward."
        )
        return nullcontext()
    contexts = [strategy.no_backward_sync(link_of(one).forward_module, enabled) for one in wrapped]
    if len(contexts) == 1:
        return contexts[0]
    stack = ExitStack()
    for context in contexts:
        stack.enter_context(context)
    return stack
