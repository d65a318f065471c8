"""Tell two causes from any other failure: torch itself can't be imported, or a binary is made for another torch."""

from __future__ import annotations

import dataclasses
import re
import traceback
from collections.abc import Iterator

from poplin.registry.compatibility import requires_of
from poplin.registry.records import NO_TORCH, Failure, message_of

STAGE = "built for another torch"
#: How the loaders of Linux, macOS and Windows say that a library lacks what a binary was linked with.
_SIGNS = re.compile(
    r"undefined symbol|symbol not found|symbol .* not found|specified procedure could not be found"
    r"|(libtorch|libc10|torch_python)\S*: cannot open shared object|library not loaded:.*(libtorch|libc10)",
    re.IGNORECASE,
)


def diagnosed(failure: Failure) -> Failure:
    """The same failure, at a stage of its own if torch can't be imported, or a binary is made for another torch."""
    torch_error = next((error for error in _chain(failure.error) if _is_of_torch(error)), None)
    if torch_error is not None:
        return dataclasses.replace(failure, stage=NO_TORCH, error=torch_error)
    cause = _binary_cause(failure.error)
    if cause is None:
        return failure
    owner = failure.provider.distribution
    built_for = _built_for(owner) or _built_for(_owner_of(cause))
    wanted = f"it is built for {built_for}" if built_for else "it does not say for which"
    return dataclasses.replace(failure, stage=STAGE, detail=f"{wanted}; torch {_version('torch')} is installed")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it came of."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _is_of_torch(error: BaseException) -> bool:
    """Whether `import torch` failed with this error: there is no torch, or its module was not run to its end."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return True
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_globals.get("__name__") == "torch" and frame.f_code.co_name == "<module>" for frame in frames)


def _binary_cause(error: BaseException | None) -> BaseException | None:
    """The error in the chain that a loader of binaries raised."""
    for each in _chain(error):
        if isinstance(each, (ImportError, OSError)) and _SIGNS.search(message_of(each)):
            return each
    return None


def _built_for(distribution: str | None) -> str:
    """The torch that a distribution requires, as its metadata has it."""
    import importlib.metadata  # when something has failed: not earlier, it takes its time

    if distribution is None:
        return ""
    try:
        requires = importlib.metadata.requires(distribution) or []
    except Exception:  # there is none, or other packages' metadata is in whatever state
        return ""
    return next(iter(requires_of("torch", requires)), "").partition(";")[0].strip()


def _owner_of(error: BaseException) -> str | None:
    """The distribution whose module failed to load."""
    import importlib.metadata

    try:
        owners = importlib.metadata.packages_distributions()
    except Exception:  # other packages' metadata may be in any state
        return None
    for module in [*_innermost_modules(error), str(getattr(error, "name", None) or "")]:
        top = module.partition(".")[0]
        if top in owners and top not in ("poplin", "importlib"):
            return owners[top][0]
    return None


def _innermost_modules(error: BaseException) -> list[str]:
    """The modules that an error passed through; that which loaded the binary comes first."""
    modules: list[str] = []
    step = error.__traceback__
    while step is not None:
        modules.insert(0, str(step.tb_frame.f_globals.get("__name__", "")))
        step = step.tb_next
    return [module for module in modules if not module.startswith(("importlib", "_frozen_importlib"))]


def _version(distribution: str) -> str:
    import importlib.metadata

    try:
        return str(importlib.metadata.version(distribution))
    except Exception:  # as above
        return "(unknown version)"
