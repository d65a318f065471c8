"""Whether the names given to ``run`` can be meant, before any process is started. Nothing is imported to find out."""

from __future__ import annotations

from poplin.errors import LookupFailedError
from poplin.registry import find, names
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, parse_reference

#: Spellings of precisions that Fabric takes too; the selection knows what they stand for.
LEGACY_PRECISIONS = frozenset({"16", "32", "64", "bf16"})


def check_names(accelerator: str | None, strategy: str | None, precision: str | None) -> None:
    """Refuse names that nothing offers.

    Args:
        accelerator: as given to ``--accelerator``; None where it was not.
        strategy: as given to ``--strategy``.
        precision: as given to ``--precision``.

    Raises:
        LookupFailedError: the registry's own error, of the subclass that says what is the matter.
    """
    for kind, name in (("accelerators", accelerator), ("strategies", strategy), ("precisions", precision)):
        if name is None or (kind == "precisions" and name in LEGACY_PRECISIONS):
            continue
        if fold(name) not in _choices(kind) and not _can_be_found(kind, name):
            raise LookupFailedError(f"{name!r} is no name of a {KINDS[kind].singular}.")


def _choices(kind: str) -> set[str]:
    return {fold(name) for name in (*names(kind), *KINDS[kind].roles)}


def _can_be_found(kind: str, name: str) -> bool:
    """Ask the registry for a name that is not in its list: it raises what is wrong, unless it is ``dist:name``."""
    _, distribution, bare = parse_reference(name)
    if distribution is not None and fold(bare) in _choices(kind):
        return True  # which of the distributions is meant is settled when the run's processes look it up
    find(kind, name)
    return True
