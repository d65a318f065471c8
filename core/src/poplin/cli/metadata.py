"""What the metadata of installed distributions says beyond offers: summaries, remnants, torch's own plugin door."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

#: The entry-point group from which ``import torch`` loads the backends of other packages.
TORCH_BACKENDS_GROUP = "torch.backends"


class Remnant(NamedTuple):
    """A metadata folder that is no use to anybody, and can hide a good one from tools that take the first."""

    path: str
    why: str


class BackendEntryPoint(NamedTuple):
    """Something that ``import torch`` loads."""

    name: str
    value: str
    distribution: str
    version: str


def distribution_summary(name: str, location: str = "") -> str:
    """The one-line summary of a distribution; empty where there is none. ``location`` decides between several."""
    summaries = [
        (str(found.locate_file("")), found.metadata["Summary"])
        for found in importlib.metadata.distributions(name=name)
        if found.metadata and found.metadata["Summary"]
    ]
    here = [summary for place, summary in summaries if location and str(location).startswith(place)]
    return (here or [summary for _, summary in summaries] or [""])[0]


def remnants() -> list[Remnant]:
    """Metadata folders on ``sys.path`` without readable metadata, as an interrupted pip leaves them."""
    found: list[Remnant] = []
    for folder in _site_folders():
        for path in sorted(folder.glob("*.dist-info")):
            if why := _why_unreadable(path / "METADATA"):
                found.append(Remnant(str(path), why))
        for path in sorted(folder.glob("*.egg-info")):
            if why := _why_unreadable(path / "PKG-INFO" if path.is_dir() else path):
                found.append(Remnant(str(path), why))
        found += [
            Remnant(str(path), "pip renamed it away and did not come back")
            for path in sorted(folder.glob("~*"))
            if path.is_dir()
        ]
    return found


def torch_backends() -> list[BackendEntryPoint]:
    """Every ``torch.backends`` entry point that is installed, in the order in which torch loads them."""
    found: list[BackendEntryPoint] = []
    for point in importlib.metadata.entry_points(group=TORCH_BACKENDS_GROUP):
        dist = point.dist
        found.append(
            BackendEntryPoint(point.name, point.value, dist.name if dist else "?", dist.version if dist else "?")
        )
    return found


def _site_folders() -> Iterator[Path]:
    seen: set[Path] = set()
    for entry in sys.path:
        folder = Path(entry or ".").resolve()
        if folder.is_dir() and folder not in seen:
            seen.add(folder)
            yield folder


def _why_unreadable(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"no {path.name}" if isinstance(error, FileNotFoundError) else f"{path.name}: {error.strerror}"
    if not text.strip():
        return f"{path.name} is empty"
    head = text.partition("\n\n")[0].lower()
    return "" if head.startswith("name:") or "\nname:" in head else f"{path.name} names no distribution"
