"""Whether the names given to ``run`` can be meant, before any process is started. Nothing is imported to find out."""

from __future__ import annotations

from poplin.registry import locate
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold
from poplin.selection.request import LEGACY_PRECISIONS


def check_names(accelerator: str | None, strategy: str | None, precision: str | None) -> None:
    """Refuse names that nothing offers, or that can't be used.

    Args:
        accelerator: as given to ``--accelerator``; None where it was not.
        strategy: as given to ``--strategy``.
        precision: as given to ``--precision``; the older spellings, which the selection knows, are fine too.

    Raises:
        LookupFailedError: of the subclass that says what is the matter.
    """
    for kind, name in (("accelerators", accelerator), ("strategies", strategy), ("precisions", precision)):
        if name is None or fold(name) in KINDS[kind].roles or (kind == "precisions" and name in LEGACY_PRECISIONS):
            continue
        locate(kind, name)
