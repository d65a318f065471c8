"""What the metadata of installed distributions says beyond offers: summaries, and torch's own plugin door."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import NamedTuple

#: The entry-point group from which ``import torch`` loads the backends of other packages.
TORCH_BACKENDS_GROUP = "torch.backends"


class BackendEntryPoint(NamedTuple):
    """Something that ``import torch`` loads."""

    name: str
    value: str
    distribution: str
    version: str


def distribution_summary(location: str) -> str:
    """The one-line summary of the distribution whose metadata folder is at ``location``; empty where there is none."""
    folder = Path(location)
    if not location or not folder.is_dir():
        return ""
    return importlib.metadata.PathDistribution(folder).metadata["Summary"] or ""


def torch_backends() -> list[BackendEntryPoint]:
    """Every ``torch.backends`` entry point that is installed, in the order in which torch loads them."""
    found: list[BackendEntryPoint] = []
    for point in importlib.metadata.entry_points(group=TORCH_BACKENDS_GROUP):
        dist = point.dist
        found.append(
            BackendEntryPoint(point.name, point.value, dist.name if dist else "?", dist.version if dist else "?")
        )
    return found


def is_installed(name: str) -> bool:
    """Whether a distribution of this name has readable metadata."""
    return any(found.metadata for found in importlib.metadata.distributions(name=name))
