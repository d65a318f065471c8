"""What is found in a source: imports of Lightning, uses of what they bind, and what is to be said about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import libcst as cst
from libcst import metadata

from poplin.cli.migration.names import Absent, Target, is_lightning, resolve


class Remark(NamedTuple):
    """Something that is left to the reader."""

    line: int
    text: str


class SourceError(Exception):
    """The source can't be read."""


@dataclass(frozen=True, eq=False)
class Binding:
    """A name that an import of Lightning binds to a module."""

    #: The import: ``Import`` or ``ImportFrom``.
    statement: cst.BaseSmallStatement
    alias: cst.ImportAlias
    #: The name in the source.
    local: str
    #: What it stands for: ``lightning``, ``lightning.fabric.strategies``, ...
    module: str
    #: Whether the import says ``as``, or takes the module by its own name from its parent.
    named: bool
    line: int

    @property
    def home(self) -> str | None:
        """The module of Poplin that takes its place; None where there is none."""
        if self.module == "lightning":
            return "poplin"
        found = resolve(self.module)
        return found.module if isinstance(found, Target) and not found.name else None


class Use(NamedTuple):
    """One expression that starts at such a name."""

    node: cst.CSTNode
    local: str
    found: Target | Absent
    line: int
    #: What it stands for, from the root of Lightning.
    name: str


@dataclass
class Findings:
    """All that a source says about Lightning."""

    bindings: list[Binding] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    objects: list[tuple[cst.ImportFrom, int]] = field(default_factory=list)
    calls: list[cst.Call] = field(default_factory=list)
    #: Registry call → the name of the registry.
    registries: dict[cst.CSTNode, str] = field(default_factory=dict)
    #: How often a name from an import is read.
    reads: dict[str, int] = field(default_factory=dict)
    #: Names that are read and that nothing in the source defines.
    unbound: set[str] = field(default_factory=set)
    #: Whether the source calls something of its own ``poplin``.
    poplin_is_taken: bool = False

    def binding(self, use: Use) -> Binding:
        """The binding that a use is of; of several, the one of the deepest module."""
        found = [one for one in self.bindings if one.local == use.local and f"{use.name}.".startswith(f"{one.module}.")]
        return max(found, key=lambda one: len(one.module))


def dotted(node: cst.CSTNode) -> str:
    """``a.b.c`` of nested attributes; empty for any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute) and (before := dotted(node.value)):
        return f"{before}.{node.attr.value}"
    return ""


def local_name(alias: cst.ImportAlias) -> str | None:
    """The name after ``as``."""
    name = alias.asname.name if alias.asname else None
    return name.value if isinstance(name, cst.Name) else None


class Finder(cst.CSTVisitor):
    """Fills :class:`Findings`; in two passes, as a use may stand before its import (in a function)."""

    METADATA_DEPENDENCIES = (
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ExpressionContextProvider,
        metadata.ScopeProvider,
    )

    def __init__(self, findings: Findings, uses: bool) -> None:
        super().__init__()
        self.findings = findings
        self._uses = uses

    def visit_Import(self, node: cst.Import) -> bool:
        if not self._uses:
            for alias in node.names:
                self._import(node, alias)
        return False

    def _import(self, node: cst.Import, alias: cst.ImportAlias) -> None:
        name = dotted(alias.name)
        if is_lightning(name):
            local = local_name(alias)
            module = name if local else name.partition(".")[0]
            self.findings.bindings.append(
                Binding(node, alias, local or module, module, local is not None, self._line(node))
            )

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = dotted(node.module) if node.module else ""
        if self._uses or node.relative or not is_lightning(module):
            return False
        self.findings.objects.append((node, self._line(node)))
        for alias in node.names if not isinstance(node.names, cst.ImportStar) else ():
            name = f"{module}.{dotted(alias.name)}"
            found = resolve(name)
            if isinstance(found, Target) and not found.name:
                local = local_name(alias) or dotted(alias.name)
                self.findings.bindings.append(Binding(node, alias, local, name, True, self._line(node)))
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if self._use(node):
            return False
        node.value.visit(self)  # and not the name of the attribute, which stands for nothing by itself
        return False

    def visit_Name(self, node: cst.Name) -> bool:
        self._use(node)
        if self._uses and self.get_metadata(metadata.ExpressionContextProvider, node, None) is not None:
            self.findings.reads[node.value] = self.findings.reads.get(node.value, 0) + 1
            scope = self.get_metadata(metadata.ScopeProvider, node, None)
            if scope is not None and not scope[node.value]:
                self.findings.unbound.add(node.value)
        return False

    def _use(self, node: cst.Attribute | cst.Name) -> bool:
        """Record a use of a module of Lightning; whether it is one."""
        if not self._uses or self.get_metadata(metadata.ExpressionContextProvider, node, None) is None:
            return False
        local = dotted(node).partition(".")[0]
        if local == "poplin" and not self._names(node, "poplin"):
            self.findings.poplin_is_taken = True
        if all(binding.local != local for binding in self.findings.bindings):
            return False
        names = self._names(node, "lightning")
        if not names:
            return False
        # where several imports bind one name, what it may stand for is known and what is read of it tells
        name = next((name for name in names if isinstance(resolve_use(name), Target)), names[0])
        self.findings.uses.append(Use(node, local, resolve_use(name), self._line(node), name))
        return True

    def _names(self, node: cst.CSTNode, root: str) -> Sequence[str]:
        """What an expression stands for, as far as it is imported from ``root``."""
        names = self.get_metadata(metadata.QualifiedNameProvider, node, set())
        return sorted(
            name.name
            for name in names
            if name.source is metadata.QualifiedNameSource.IMPORT
            and (is_lightning(name.name) if root == "lightning" else name.name.partition(".")[0] == root)
        )

    def visit_Call(self, node: cst.Call) -> None:
        if self._uses:
            for name in self._names(node.func, "lightning"):
                found = resolve(name)
                if isinstance(found, Target) and found.name.endswith("_REGISTRY") and found.rest == ("register",):
                    self.findings.calls.append(node)
                    self.findings.registries[node] = found.name

    def _line(self, node: cst.CSTNode) -> int:
        return int(self.get_metadata(metadata.PositionProvider, node).start.line)


def resolve_use(name: str) -> Target | Absent:
    """As :func:`resolve`, for what is read of a module: the whole of Lightning is not to be had."""
    if name == "lightning":
        return Absent(name, "the whole of Lightning is used as a value here")
    return resolve(name)
