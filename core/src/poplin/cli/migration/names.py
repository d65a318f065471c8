"""What a name of Lightning Fabric is called in Poplin. Nothing is imported to find out: the sources of faces say."""

from __future__ import annotations

import ast
import difflib
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

#: The names under which Lightning Fabric is imported.
ROOTS = ("lightning.fabric", "lightning_fabric")
#: What the whole of Lightning offers at its top, of Fabric.
_TOP_NAMES = ("Fabric", "seed_everything")
_SOURCES = Path(__file__).parents[2]


class Target(NamedTuple):
    """Where something stands: a module, or a name in one, and what is read of that."""

    module: str
    #: Empty: the module itself.
    name: str = ""
    #: What follows: attributes of the name.
    rest: tuple[str, ...] = ()

    @property
    def dotted(self) -> str:
        """``module.name.rest``"""
        return ".".join(filter(None, (self.module, self.name, *self.rest)))


class Absent(NamedTuple):
    """Something that Poplin does not have."""

    name: str
    #: What to do instead; a sentence without its full stop.
    advice: str


@cache
def table() -> Mapping[str, Mapping[str, str]]:
    """The names that are not simply the same: ``names.toml``."""
    text = resources.files(__package__).joinpath("names.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def is_lightning(dotted: str) -> bool:
    """Whether this is the module ``lightning`` or ``lightning_fabric``, or something in one of them."""
    return dotted.partition(".")[0] in ("lightning", "lightning_fabric")


def relative(dotted: str) -> tuple[str, ...] | None:
    """The parts after ``lightning.fabric``; None for what is not of Fabric.

    ``lightning.Fabric`` is ``lightning.fabric.Fabric``.
    """
    for root in ROOTS:
        if dotted == root or dotted.startswith(root + "."):
            return tuple(filter(None, dotted.removeprefix(root).split(".")))
    parts = dotted.split(".")
    return tuple(parts[1:]) if parts[0] == "lightning" and len(parts) > 1 and parts[1] in _TOP_NAMES else None


def resolve(dotted: str) -> Target | Absent:
    """Where a dotted name of Lightning Fabric stands in Poplin.

    Args:
        dotted: for example ``lightning.fabric.loggers.CSVLogger.log_metrics``.
    """
    parts = relative(dotted)
    if parts is None:
        return Absent(dotted, "it is no part of Fabric, and stays as it is")
    module, after = _split(parts)
    name = after[0] if after else ""
    for key in _keys(module, name):
        if (advice := table()["absent"].get(key)) is not None:
            return Absent(dotted, advice)
        if (moved := table()["moved"].get(key)) is not None:
            return _moved(moved, name, after)
    here = ".".join(("poplin", *module))
    if not exists(here):
        return Absent(dotted, _unknown(dotted, name or here))
    if not name:
        return Target(here)
    if name in public_names(here):
        return Target(here, name, tuple(after[1:]))
    return Absent(dotted, _unknown(here, name))


def _split(parts: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Which of the parts are modules, and which are names in the last of them."""
    known = {key.partition(":")[0] for section in ("moved", "absent") for key in table()[section]}
    for length in range(len(parts), 0, -1):
        module = ".".join(parts[:length])
        if exists(f"poplin.{module}") or module in known:
            return parts[:length], parts[length:]
    return (), parts


def _keys(module: tuple[str, ...], name: str) -> list[str]:
    """The keys of the table that could hold it: the most special first."""
    wholes = [".".join(module[:length]) for length in range(len(module), 0, -1)]
    return [f"{'.'.join(module)}:{name}", *wholes] if name else wholes


def _moved(target: str, name: str, after: tuple[str, ...]) -> Target:
    outside = target.startswith("=")
    module, _, new = target.removeprefix("=").partition(":")
    return Target(module if outside else f"poplin.{module}", new or name, tuple(after[1:]))


def _unknown(where: str, name: str) -> str:
    if name.startswith("_"):
        return "it is private to Lightning"
    close = difflib.get_close_matches(name, public_names(where), n=1) if exists(where) else []
    return f"Poplin has no such name{f'; it has {close[0]}' if close else ''}"


def exists(module: str) -> bool:
    """Whether Poplin has this module, or face."""
    return _source(module) is not None


@cache
def public_names(module: str) -> frozenset[str]:
    """The names that can be imported from a module of Poplin."""
    source = _source(module)
    if source is None:
        return frozenset()
    found = {path.stem for path in source.parent.iterdir() if path.suffix in (".py", ".pyi")} | {
        path.name for path in source.parent.iterdir() if path.is_dir()
    }
    submodules = found - {"__init__", "__pycache__"} if source.stem == "__init__" else set()
    return frozenset(submodules | set(_defined(source)))


@cache
def _source(module: str) -> Path | None:
    """The stub of a face, or else the module's own source."""
    package, *parts = module.split(".")
    if package != "poplin":
        return None
    base = _SOURCES.joinpath(*parts)
    paths = [base / "__init__.pyi", base / "__init__.py"] if base.is_dir() else []
    paths += [base.with_suffix(".pyi"), base.with_suffix(".py")] if parts else []
    return next((path for path in paths if path.is_file()), None)


def _defined(source: Path) -> list[str]:
    found: list[str] = []
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node.name)
        elif isinstance(node, ast.ImportFrom) and source.suffix == ".pyi":
            found += [alias.asname or alias.name for alias in node.names]
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found += _assigned(targets, node.value)
    return found


def _assigned(targets: list[Any], value: ast.expr | None) -> list[str]:
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    if names == ["__all__"] and isinstance(value, ast.List):
        return [item.value for item in value.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return names
