"""What the metadata of installed distributions says beyond offers: summaries, remnants, torch's own plugin door."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from poplin.registry.discovery import scan

#: The entry-point group from which ``import torch`` loads the backends of other packages.
TORCH_BACKENDS_GROUP = "torch.backends"
#: Set to 0, it keeps torch from doing so.
AUTOLOAD_VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"


class BackendEntryPoint(NamedTuple):
    """Something that ``import torch`` loads."""

    name: str
    value: str
    distribution: str
    version: str

    def described(self) -> str:
        """What is told of it: it is torch's doing, and no plugin of ours."""
        owner = f"{self.distribution} {self.version}"
        off = os.environ.get(AUTOLOAD_VARIABLE) == "0"
        return (
            f"torch's own: `import torch` loads the backend {self.name!r} = {self.value} of {owner}"
            f"{f' (not now: {AUTOLOAD_VARIABLE}=0)' if off else ''}"
        )


def distribution_summary(location: str) -> str:
    """The one-line summary of the distribution whose metadata folder is at ``location``; empty where there is none."""
    folder = Path(location)
    if not location or not folder.is_dir():
        return ""
    from importlib_metadata import PathDistribution  # late: most commands show no summary

    return PathDistribution(folder).metadata.get("Summary") or ""


def torch_backends() -> list[BackendEntryPoint]:
    """Every ``torch.backends`` entry point that is installed, in the order in which torch loads them."""
    found: list[BackendEntryPoint] = []
    for point in importlib.metadata.entry_points(group=TORCH_BACKENDS_GROUP):
        dist = point.dist
        found.append(
            BackendEntryPoint(point.name, point.value, dist.name if dist else "?", dist.version if dist else "?")
        )
    return found


def complaints(path: Sequence[str]) -> dict[str, str]:
    """Metadata that can't be used, and why: what the registry stumbled over, and remnants, as a broken-off pip leaves.

    Args:
        path: folders and archives, as in ``sys.path``.
    """
    found = {remark.path: remark.problem for remark in scan(path).remarks}
    for entry in path:
        folder = Path(entry or ".").resolve()
        for record in sorted(folder.glob("*.dist-info")):
            if problem := _problem(record / "METADATA"):
                found[str(record)] = problem
        for record in sorted(folder.glob("*.egg-info")):
            if problem := _problem(record / "PKG-INFO" if record.is_dir() else record):
                found[str(record)] = problem
        for record in sorted(folder.glob("~*")):
            found[str(record)] = "pip renamed it before it removed it, and did not finish"
    return dict(sorted(found.items()))


def _problem(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{file.name}: {error.strerror}"
    header = text.partition("\n\n")[0].lower()
    return "" if header.startswith("name:") or "\nname:" in header else f"{file.name} names no distribution"


def is_installed(name: str) -> bool:
    """Whether a distribution of this name has readable metadata."""
    return any(found.metadata for found in importlib.metadata.distributions(name=name))
