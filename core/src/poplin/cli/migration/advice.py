"""What a rewriting of names can't do: strings, subclasses, private attributes. Some is done, the rest is told."""

from __future__ import annotations

import re

import libcst as cst
from libcst import metadata

from poplin.cli.migration.findings import Findings, Remark, dotted, resolve_use
from poplin.cli.migration.names import Absent, Target, relative, resolve, table

_PATH = re.compile(r"(lightning\.fabric|lightning_fabric|lightning\.(?=Fabric$|seed_everything$))[\w.]*")
#: Functions whose string arguments are names of modules.
_IMPORTERS = ("import_module", "__import__", "importorskip", "find_spec", "patch", "getLogger")


class Adviser(cst.CSTVisitor):
    """Collects remarks, and strings to be replaced.

    Args:
        findings: of the source.
    """

    METADATA_DEPENDENCIES = (
        metadata.PositionProvider,
        metadata.QualifiedNameProvider,
        metadata.ParentNodeProvider,
        metadata.ExpressionContextProvider,
        metadata.ScopeProvider,
    )

    def __init__(self, findings: Findings) -> None:
        super().__init__()
        self.remarks: list[Remark] = []
        self.strings: dict[cst.CSTNode, cst.BaseExpression] = {}
        self._findings = findings
        self._fabrics = {"fabric"}
        self._annotations = 0

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation) -> None:
        self._annotations -= 1

    def visit_Assign(self, node: cst.Assign) -> None:
        if isinstance(node.value, cst.Call) and any(name.endswith(".Fabric") for name in self._names(node.value.func)):
            self._fabrics |= {dotted(target.target) for target in node.targets}

    def visit_Attribute(self, node: cst.Attribute) -> None:
        owner = dotted(node.value)
        is_fabric = owner in self._fabrics or owner.endswith(".fabric")
        if is_fabric and (public := table()["attributes"].get(node.attr.value)) is not None:
            instead = f"use {owner}.{public}" if public else "use the properties of the Fabric, and fabric.explain()"
            self._remark(node, f"{owner}.{node.attr.value} is private to Lightning: {instead}")

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        bases = [found for base in node.bases for name in self._names(base.value) if (found := _target(name))]
        given = {name for statement in node.body.body for name in _given(statement)}
        if any(base.name == "Accelerator" for base in bases) and "device_type" not in given:
            self._remark(
                node,
                f"class {node.name.value}: an accelerator of Poplin must say its torch device type; "
                'add device_type = "..." (docs/plugin-api.md)',
            )
        for method in ("register_strategies", "register_accelerators"):
            if bases and method in given:
                self._remark(
                    node,
                    f"class {node.name.value}: nobody calls {method}; call poplin.register, or declare an entry point "
                    "(docs/writing-a-plugin.md)",
                )

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if not isinstance(value, str) or "ightning" not in value or self._is_docstring(node):
            if isinstance(value, str) and self._annotations:
                self._annotation(node, value)
            return
        if _PATH.fullmatch(value):
            self._path(node, value)
        elif self._annotations:
            self._annotation(node, value)
        elif re.search(r"\blightning(\.fabric|_fabric)\b", value):
            self._remark(node, "a string mentions Lightning Fabric; it was left as it is")

    def _path(self, node: cst.SimpleString, value: str) -> None:
        """A string that is nothing but the path of a module or of a name in it."""
        found = resolve(value)
        caller = self._caller(node)
        if value in table()["groups"]:
            self._replace(node, value, table()["groups"][value])
        elif isinstance(found, Absent):
            self._remark(node, f'"{value}": {found.advice}')
        elif caller == "getLogger":
            self._remark(node, f'"{value}": Poplin has no logger of this name; it warns, and never logs')
        elif relative(value) or caller in _IMPORTERS:
            self._replace(node, value, found.dotted)
        else:
            self._remark(node, f'the string "{value}" was left as it is')

    def _annotation(self, node: cst.SimpleString, value: str) -> None:
        """``"L.fabric.loggers.Logger"``: here a name may have got shorter."""
        for binding in self._findings.bindings:
            for match in re.finditer(rf"(?<![\w.]){re.escape(binding.local)}((?:\.\w+)+)", value):
                found = resolve_use(binding.module + match[1])
                if isinstance(found, Absent):
                    self._remark(node, f"{found.name}, in an annotation: {found.advice}")
                elif binding.home and found.dotted.startswith(binding.home + "."):
                    root = binding.local if binding.named else "poplin"
                    new = root + found.dotted.removeprefix(binding.home)
                    if new != match[0]:
                        self._replace(node, match[0], new)

    def _replace(self, node: cst.SimpleString, old: str, new: str) -> None:
        before = self.strings.get(node, node)
        assert isinstance(before, cst.SimpleString)
        self.strings[node] = before.with_changes(value=before.value.replace(old, new))

    def _caller(self, node: cst.CSTNode) -> str:
        """The last name of the function that a string is an argument of."""
        argument = self.get_metadata(metadata.ParentNodeProvider, node, None)
        call = self.get_metadata(metadata.ParentNodeProvider, argument, None) if argument else None
        if not isinstance(argument, cst.Arg) or not isinstance(call, cst.Call):
            return ""
        return dotted(call.func).rpartition(".")[2]

    def _is_docstring(self, node: cst.CSTNode) -> bool:
        return isinstance(self.get_metadata(metadata.ParentNodeProvider, node, None), cst.Expr)

    def _names(self, node: cst.CSTNode) -> list[str]:
        return [name.name for name in self.get_metadata(metadata.QualifiedNameProvider, node, set())]

    def _remark(self, node: cst.CSTNode, text: str) -> None:
        self.remarks.append(Remark(self.get_metadata(metadata.PositionProvider, node).start.line, text))


def _target(name: str) -> Target | None:
    found = resolve(name) if relative(name) is not None else None
    return found if isinstance(found, Target) else None


def _given(statement: cst.CSTNode) -> list[str]:
    """The names that a statement of a class body defines."""
    if isinstance(statement, cst.FunctionDef):
        return [statement.name.value]
    if not isinstance(statement, cst.SimpleStatementLine):
        return []
    found: list[str] = []
    for part in statement.body:
        if isinstance(part, cst.Assign):
            found += [dotted(target.target) for target in part.targets]
        elif isinstance(part, cst.AnnAssign):
            found.append(dotted(part.target))
    return found
