"""Tell a binary that was built for another torch from any other failure, and name both versions."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import re

from poplin.registry.compatibility import requires_of
from poplin.registry.records import Failure, message_of

STAGE = "built for another torch"
#: How the loaders of Linux, macOS and Windows say that a library lacks what a binary was linked with.
_SIGNS = re.compile(
    r"undefined symbol|symbol not found|symbol .* not found|specified procedure could not be found"
    r"|(libtorch|libc10|torch_python)\S*: cannot open shared object|library not loaded:.*(libtorch|libc10)",
    re.IGNORECASE,
)


def diagnosed(failure: Failure) -> Failure:
    """The same failure, at the stage of its own if its cause is a binary made for another torch."""
    cause = _binary_cause(failure.error)
    if cause is None:
        return failure
    owner = failure.provider.distribution
    built_for = _built_for(owner) or _built_for(_owner_of(cause))
    wanted = f"it is built for {built_for}" if built_for else "it does not say for which"
    return dataclasses.replace(failure, stage=STAGE, detail=f"{wanted}; torch {_version('torch')} is installed")


def _binary_cause(error: BaseException | None) -> BaseException | None:
    """The error in the chain that a loader of binaries raised."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (ImportError, OSError)) and _SIGNS.search(message_of(error)):
            return error
        error = error.__cause__ or error.__context__
    return None


def _built_for(distribution: str | None) -> str:
    """The torch that a distribution requires, as its metadata has it."""
    if distribution is None:
        return ""
    try:
        requires = importlib.metadata.requires(distribution) or []
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return next(iter(requires_of("torch", requires)), "").partition(";")[0].strip()


def _owner_of(error: BaseException) -> str | None:
    """The distribution whose module failed to load."""
    modules = [str(getattr(error, "name", None) or "")]
    step = error.__traceback__
    while step is not None:  # the innermost frame of a package is the one that loaded the binary
        modules.insert(0, str(step.tb_frame.f_globals.get("__name__", "")))
        step = step.tb_next
    try:
        owners = importlib.metadata.packages_distributions()
    except Exception:  # other packages' metadata may be in any state
        return None
    for module in modules:
        top = module.partition(".")[0]
        if top in owners and top not in ("poplin", "importlib"):
            return owners[top][0]
    return None


def _version(distribution: str) -> str:
    try:
        return str(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return "(unknown version)"
