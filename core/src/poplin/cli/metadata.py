"""What the metadata of installed distributions says beyond offers: summaries, remnants, torch's own plugin door."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from poplin.registry.discovery import scan
from poplin.registry.names import fold

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


class Unreadable(NamedTuple):
    """A distribution whose ``entry_points.txt`` Python can't read."""

    distribution: str
    version: str
    #: What is wrong: with the file, and with the line where one is at fault.
    problem: str


def distribution_summary(location: str) -> str:
    """The one-line summary of the distribution whose metadata folder is at ``location``; empty where there is none."""
    return _field(Path(location), "Summary") if location and Path(location).is_dir() else ""


def torch_backends() -> list[BackendEntryPoint]:
    """Every ``torch.backends`` entry point that is installed, in the order in which torch loads them.

    Without those of the distributions that :func:`unreadable` returns.
    """
    found: list[BackendEntryPoint] = []
    for dist in _distributions():
        try:
            points = dist.entry_points.select(group=TORCH_BACKENDS_GROUP)
        except Exception:  # what other packages leave there may be in any state
            continue
        found += [BackendEntryPoint(point.name, point.value, _name(dist), _version(dist)) for point in points]
    return found


def unreadable() -> list[Unreadable]:
    """The distributions by which ``importlib.metadata.entry_points()`` fails, and ``import torch`` with it."""
    found: list[Unreadable] = []
    for dist in _distributions():
        try:
            list(dist.entry_points)
        except Exception as error:  # what other packages leave there may be in any state
            problem = _fault(_folder(dist).joinpath("entry_points.txt"), error)
            found.append(Unreadable(_name(dist), _version(dist), problem))
    return found


def complaints(path: Sequence[str]) -> dict[str, str]:
    """Metadata that can't be used, and why: what the registry stumbled over, and remnants, as a broken-off pip leaves.

    Args:
        path: folders and archives, as in ``sys.path``.
    """
    scanned = scan(path)
    used = {distribution.location for distribution in scanned.distributions}
    found = {record: f"{problem}, so it is ignored" for record, problem in _remnants(path) if record not in used}
    for file, remarks in groupby(scanned.remarks, key=lambda remark: remark.path):
        found.setdefault(file, "; ".join(remark.problem for remark in remarks))
    return dict(sorted(found.items()))


def installed_version(name: str) -> str:
    """The version of the first distribution of this name that has metadata; empty if none is installed."""
    return next(filter(None, map(_version, importlib.metadata.distributions(name=name))), "")


def is_installed(name: str) -> bool:
    """Whether a distribution of this name has readable metadata."""
    return any(_field(_folder(found), "Name") for found in importlib.metadata.distributions(name=name))


def _remnants(path: Sequence[str]) -> Iterator[tuple[str, str]]:
    for entry in path:
        folder = Path(entry or ".").resolve()
        for record in sorted(folder.glob("*.dist-info")):
            if problem := _problem(record / "METADATA"):
                yield str(record), problem
        for record in sorted(folder.glob("*.egg-info")):
            if problem := _problem(record / "PKG-INFO" if record.is_dir() else record):
                yield str(record), problem
        for record in sorted(folder.glob("~*")):
            yield str(record), "pip renamed it before it removed it, and did not finish"


def _problem(file: Path) -> str:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"{file.name}: {error.strerror}"
    header = text.partition("\n\n")[0].lower()
    return "" if header.startswith("name:") or "\nname:" in header else f"{file.name} names no distribution"


def _fault(file: Any, error: Exception) -> str:
    """What it is in an ``entry_points.txt`` that Python's reader failed at."""
    try:
        raw: bytes = file.read_bytes()
    except Exception:
        return f"{file}: {type(error).__name__}: {error}"
    if isinstance(error, UnicodeDecodeError):
        number = raw[: error.start].count(b"\n") + 1
        return f"{file}, line {number}: it is not UTF-8 ({error.reason})"
    in_group = False
    lines = raw.decode("utf-8", errors="replace").splitlines()
    for number, line in enumerate(map(str.strip, lines), 1):
        if line.startswith("[") and line.endswith("]"):
            in_group = True
        elif in_group and line and not line.startswith("#") and "=" not in line:
            return f"{file}, line {number}: {line!r} is no entry point: it has no '='"
    return f"{file}: {type(error).__name__}: {error}"


def _distributions() -> Iterator[importlib.metadata.Distribution]:
    """Every installed distribution, the first of each name, as ``importlib.metadata.entry_points()`` goes over them."""
    seen: set[str] = set()
    for dist in importlib.metadata.distributions():
        stem, _, kind = _folder(dist).name.rpartition(".")
        name = fold(stem.partition("-")[0] if kind in ("dist-info", "egg-info") else _name(dist))
        if name not in seen:
            seen.add(name)
            yield dist


def _folder(dist: importlib.metadata.Distribution) -> Any:
    """Its metadata folder, on disk or in an archive."""
    return getattr(dist, "_path", Path(os.devnull))  # Python tells it by no public name


def _name(dist: importlib.metadata.Distribution) -> str:
    return _field(_folder(dist), "Name") or "?"


def _version(dist: importlib.metadata.Distribution) -> str:
    return _field(_folder(dist), "Version")


def _field(folder: Any, key: str) -> str:
    """A field of the metadata in a folder, in whatever state the rest of it is; empty where it is not."""
    for name in ("METADATA", "PKG-INFO", ""):  # the last: an egg-info that is a file
        try:
            raw: bytes = folder.joinpath(name).read_bytes()
        except Exception:  # not there, or in an archive, which has errors of its own
            continue
        for line in raw.decode("utf-8", errors="replace").splitlines():
            if not line.strip():
                break
            start, _, value = line.partition(":")
            if start.strip().lower() == key.lower():
                return value.strip()
    return ""
