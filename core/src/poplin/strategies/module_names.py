"""The user's own names for what is in a module, whatever wrappers lie between.

``torch.compile``, activation checkpointing and data-parallel wrappers each put a module of their own around another
one, and its attribute into every name below: ``layer._orig_mod.weight``. Such a name means something only to a run
that wraps in the same way. The functions here give names in which these modules do not appear, and translate back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

#: Attributes by which torch's wrappers hold the one module that they wrap. (Recognised by structure: the modules that
#: define these classes are slow to import.)
WRAPPER_ATTRIBUTES = ("_orig_mod", "_checkpoint_wrapped_module")


def wrapped_attribute(module: nn.Module) -> str | None:
    """Name of the attribute in which ``module`` holds the module that it wraps, or None if it is no such wrapper."""
    children = module._modules
    if len(children) != 1:
        return None
    (name,) = children.keys()  # a script module has no plain dictionary here
    if name in WRAPPER_ATTRIBUTES:
        return name
    if name == "module" and isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return name
    return None


def has_wrappers(module: nn.Module) -> bool:
    """Whether names in ``module`` may differ from the user's."""
    return any(wrapped_attribute(child) is not None for child in module.modules())


def user_name(module: nn.Module, name: str) -> str:
    """The user's name for ``name``, a parameter, buffer or submodule of ``module`` as torch names it."""
    kept: list[str] = []
    node: nn.Module | None = module
    segments = name.split(".") if name else []
    position = 0
    while position < len(segments):
        attribute = wrapped_attribute(node) if node is not None else None
        if node is not None and attribute is not None:
            node = node._modules[attribute]
            if segments[position] == attribute:  # a wrapper's own hook may have left it out already
                position += 1
            continue
        kept.append(segments[position])
        node = node._modules.get(segments[position]) if node is not None else None
        position += 1
    return ".".join(kept)


def module_state_dict(module: nn.Module) -> dict[str, Any]:
    """``module.state_dict()`` under the user's names."""
    return with_user_names(module, module.state_dict())


def with_user_names(module: nn.Module, state: dict[str, Any]) -> dict[str, Any]:
    """``state``, a state dict of ``module``, under the user's names; as it is where no wrapper lies between."""
    if not has_wrappers(module):
        return state
    renamed: OrderedDict[str, Any] = OrderedDict((user_name(module, name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:  # versions of the modules, by name: torch's loading of older files needs them
        # outermost first: where a wrapper and what it wraps get one name, the wrapped module's version counts
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (user_name(module, name), value) for name, value in metadata.items()
        )
    return renamed


def with_module_names(module: nn.Module, state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The reverse of :func:`with_user_names`: what ``module.load_state_dict`` understands.

    A name that ``module`` does not have stays as it is, for ``load_state_dict`` to report.
    """
    if not has_wrappers(module):
        return state
    own = {user_name(module, name): name for name in module.state_dict()}
    renamed: OrderedDict[str, Any] = OrderedDict((own.get(name, name), value) for name, value in state.items())
    metadata = getattr(state, "_metadata", None)
    if metadata is not None:
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (name, metadata[user])
            for name, _ in module.named_modules()
            if (user := user_name(module, name)) in metadata
        )
    return renamed
