"""The user's own ``torch.compile``: taken off before setup, put back as it was after it.

The settings are found on the compiled module itself, which keeps the context that compiled it, so it makes no
difference when ``torch.compile`` was called, and nothing has to be patched to see it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from poplin.errors import UsageError


def is_compiled(obj: object) -> bool:
    """Whether ``obj`` is what ``torch.compile`` made of a module.

    Importing the compiler takes long; as long as nobody did, there is no such object.
    """
    compiler: Any = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(obj, compiler.OptimizedModule)


def without_compile(obj: Any) -> Any:
    """The module inside a compiled one; anything else as it is."""
    while is_compiled(obj):
        obj = obj._orig_mod
    return obj


def compilation_of(module: nn.Module) -> Callable[[nn.Module], nn.Module] | None:
    """What compiles another module exactly as ``module`` was compiled; None if it wasn't.

    All settings are the user's own: backend, mode, options, dynamic, fullgraph.

    Raises:
        UsageError: this version of torch keeps them elsewhere.
    """
    if not is_compiled(module):
        return None
    compile_as_before: Callable[[nn.Module], nn.Module] | None = getattr(module, "dynamo_ctx", None)
    if not callable(compile_as_before):
        raise UsageError(
            "The settings of torch.compile can't be read from this compiled module with the installed torch. "
            "Compile after setup: model = torch.compile(fabric.setup(model))."
        )
    return compile_as_before
