"""One Python source, from Lightning Fabric to Poplin."""

from __future__ import annotations

import ast
from typing import NamedTuple

import libcst as cst
from libcst import metadata

from poplin.cli.migration.advice import Adviser
from poplin.cli.migration.findings import Finder, Findings, Remark, SourceError
from poplin.cli.migration.rewriting import Plan, RegistryCalls, make_plan


class Migrated(NamedTuple):
    """A source, and what is left to its reader."""

    source: bytes
    remarks: list[Remark]


def migrate_source(source: bytes) -> Migrated:
    """Rewrite a Python source.

    Its encoding, its line ends and all of its formatting stay; what needs no change keeps every byte.

    Args:
        source: the file's content.

    Raises:
        SourceError: it is no Python.
    """
    if b"lightning" not in source:
        return Migrated(source, [])
    try:
        module = cst.parse_module(source)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise SourceError(_reason(error)) from error
    wrapper = metadata.MetadataWrapper(module)
    findings = Findings()
    wrapper.visit(Finder(findings, uses=False))
    wrapper.visit(Finder(findings, uses=True))
    adviser = Adviser(findings)
    wrapper.visit(adviser)
    if findings.poplin_is_taken and (findings.bindings or findings.objects):
        return Migrated(source, [Remark(1, "'poplin' is a name of this file's own; rename it, and migrate again")])
    plan = make_plan(findings, RegistryCalls(findings))
    plan.expressions |= adviser.strings
    changed = wrapper.module.visit(_Rewriter(plan))
    remarks = sorted({*plan.remarks, *adviser.remarks})
    text = changed.bytes
    _check(text)
    return Migrated(text if changed.code != wrapper.module.code else source, remarks)


def _check(text: bytes) -> None:
    """Never hand on what Python could not read."""
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise SourceError(f"what would be written is no Python ({error}); please report this file") from error


def _reason(error: Exception) -> str:
    if isinstance(error, cst.ParserSyntaxError):
        return f"line {error.raw_line}: it is no Python that can be read"
    return str(error)


class _Rewriter(cst.CSTTransformer):
    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._plan = plan

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode] | cst.RemovalSentinel:
        if isinstance(original_node, cst.Call) and original_node in self._plan.expressions:
            return self._call(original_node, updated_node)
        if (found := self._plan.expressions.get(original_node)) is not None:
            brackets = {name: getattr(original_node, name) for name in ("lpar", "rpar")}
            return found.with_changes(**brackets)
        if isinstance(original_node, (cst.SimpleStatementLine, cst.SimpleStatementSuite)):
            return self._line(original_node, updated_node)
        return updated_node

    def _call(self, original: cst.Call, updated: cst.CSTNode) -> cst.CSTNode:
        """Its arguments may hold expressions that were replaced as well."""
        assert isinstance(updated, cst.Call)
        planned = self._plan.expressions[original]
        assert isinstance(planned, cst.Call)
        first, *others = planned.args
        values = [
            argument.with_changes(value=new.value, comma=new.comma)
            for argument, new in zip(others, updated.args, strict=True)
        ]
        return updated.with_changes(func=planned.func, args=[first, *values])

    def _line(
        self, original: cst.SimpleStatementLine | cst.SimpleStatementSuite, updated: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.CSTNode]:
        if not any(statement in self._plan.statements for statement in original.body):
            return updated
        assert isinstance(updated, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        body: list[cst.BaseSmallStatement] = []
        for before, after in zip(original.body, updated.body, strict=True):
            body += self._plan.statements.get(before, [after])
        if len(original.body) > 1 or isinstance(updated, cst.SimpleStatementSuite):
            apart = [statement.with_changes(semicolon=cst.MaybeSentinel.DEFAULT) for statement in body]
            return updated.with_changes(body=apart)
        first, *others = body
        lines = [self._new_line(statement) for statement in others]
        return cst.FlattenSentinel([updated.with_changes(body=[first]), *lines])

    def _new_line(self, statement: cst.BaseSmallStatement) -> cst.SimpleStatementLine:
        comment = self._plan.comments.get(statement)
        if not comment:
            return cst.SimpleStatementLine([statement])
        trailing = cst.TrailingWhitespace(cst.SimpleWhitespace("  "), cst.Comment(comment))
        return cst.SimpleStatementLine([statement], trailing_whitespace=trailing)
