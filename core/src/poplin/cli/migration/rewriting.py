"""Decide what every import and every use becomes, and put it into the source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import libcst as cst

from poplin.cli.migration.findings import Binding, Findings, Remark, Use, dotted, local_name
from poplin.cli.migration.names import Absent, Target, public_names, relative, resolve


@dataclass
class Plan:
    """What becomes of nodes, by their identity."""

    #: Import → the statements in its place.
    statements: dict[cst.CSTNode, list[cst.BaseSmallStatement]] = field(default_factory=dict)
    #: Expression → the one in its place.
    expressions: dict[cst.CSTNode, cst.BaseExpression] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)
    #: Statement → the comments that stood beside the names that it took.
    comments: dict[cst.CSTNode, str] = field(default_factory=dict)
    #: Import → modules to be imported after it.
    _needed: dict[cst.BaseSmallStatement, list[str]] = field(default_factory=dict)

    def need(self, statement: cst.BaseSmallStatement, module: str) -> None:
        """Have a module imported after a statement."""
        modules = self._needed.setdefault(statement, [])
        if module not in modules:
            modules.append(module)

    def finish(self) -> None:
        """Add the imports that are needed, each once, and none that stands there already."""
        for statement, modules in self._needed.items():
            before = self.statements.get(statement, [statement])
            there = {dotted(alias.name) for one in before if isinstance(one, cst.Import) for alias in one.names}
            for module in modules:
                deeper = any(other.startswith(module + ".") for other in [*modules, *there])
                if module not in there and not deeper:
                    before = [*before, import_statement(module)]
            self.statements[statement] = before


def make_plan(findings: Findings, registry_calls: RegistryCalls) -> Plan:
    """Decide everything.

    Args:
        findings: of the source.
        registry_calls: what has been decided about those.
    """
    plan = Plan()
    moving = {local for local in {binding.local for binding in findings.bindings} if _moves(findings, local)}
    for use in findings.uses:
        if isinstance(use.found, Absent):
            plan.remarks.append(Remark(use.line, f"{use.found.name}: {use.found.advice}"))
        elif use.node not in registry_calls.functions:
            _rewrite_use(plan, findings, use, use.found, use.local in moving)
    _rewrite_imports(plan, findings, moving)
    for statement, line in findings.objects:
        _rewrite_from(plan, findings, statement, line, moving, registry_calls.dropped)
    registry_calls.add_to(plan)
    plan.finish()
    return plan


def _moves(findings: Findings, local: str) -> bool:
    """Whether an import can be replaced: nothing is read of it that Poplin does not have."""
    bindings = [binding for binding in findings.bindings if binding.local == local]
    uses = [use for use in findings.uses if use.local == local]
    if all(binding.module == "lightning" for binding in bindings) and not uses:
        return False  # nothing says that this is about Fabric
    replaceable = all(binding.home for binding in bindings)
    return replaceable and all(isinstance(use.found, Target) for use in uses)


def _rewrite_use(plan: Plan, findings: Findings, use: Use, found: Target, moves: bool) -> None:
    binding = findings.binding(use)
    home = binding.home or "poplin"
    root = use.local if binding.named else "poplin"
    inside = found.dotted == home or found.dotted.startswith(home + ".")
    if moves and inside:
        text = root + found.dotted.removeprefix(home)
    else:
        text = found.dotted
    if found.module != home or not moves:
        for other in findings.bindings:  # the import of another function may bind the same name
            if other.local == use.local:
                plan.need(other.statement, found.module)
    plan.expressions[use.node] = expression(text)


def _rewrite_imports(plan: Plan, findings: Findings, moving: set[str]) -> None:
    for statement in {binding.statement for binding in findings.bindings if isinstance(binding.statement, cst.Import)}:
        assert isinstance(statement, cst.Import)
        by_alias = {binding.alias: binding for binding in findings.bindings if binding.statement is statement}
        names: list[cst.ImportAlias] = []
        for alias in statement.names:
            binding = by_alias.get(alias)
            target = _import_target(binding, moving)
            names.append(alias if target is None else alias.with_changes(name=expression(target)))
            if binding is not None and target is None:
                _remark_on_kept(plan, binding)
        plan.statements[statement] = [statement.with_changes(names=names)]


def _import_target(binding: Binding | None, moving: set[str]) -> str | None:
    """The module that an ``import`` names instead; None leaves it."""
    if binding is None or binding.local not in moving:
        return None
    if binding.named:
        return binding.home
    name = dotted(binding.alias.name)
    found = resolve(name) if relative(name) is not None else Target("poplin")
    return found.module if isinstance(found, Target) else None


def _remark_on_kept(plan: Plan, binding: Binding) -> None:
    name = dotted(binding.alias.name)
    found = resolve(name) if relative(name) is not None else None
    if isinstance(found, Absent):
        plan.remarks.append(Remark(binding.line, f"{name}: {found.advice}"))


def _rewrite_from(
    plan: Plan, findings: Findings, statement: cst.ImportFrom, line: int, moving: set[str], dropped: set[cst.CSTNode]
) -> None:
    module = dotted(statement.module) if statement.module else ""
    if isinstance(statement.names, cst.ImportStar):
        _rewrite_star(plan, findings, statement, module, line)
        return
    kept: list[cst.ImportAlias] = []
    moved: dict[str, list[cst.ImportAlias]] = {}
    modules: list[cst.BaseSmallStatement] = []
    for alias in statement.names:
        name = f"{module}.{dotted(alias.name)}"
        found = resolve(name)
        local = local_name(alias) or dotted(alias.name)
        is_module = isinstance(found, Target) and not found.name
        if isinstance(found, Absent) or (is_module and local not in moving):
            kept.append(alias)
            if isinstance(found, Absent):
                plan.remarks.append(Remark(line, f"{name}: {found.advice}"))
        elif alias not in dropped:
            home, _, attribute = found.module.rpartition(".") if is_module else (found.module, "", found.name)
            if home:
                moved.setdefault(home, []).append(_renamed(alias, attribute, local))
            else:
                modules.append(import_statement(attribute, local))
    plan.statements[statement] = [*_from_statements(plan, statement, kept, moved), *modules]


def _renamed(alias: cst.ImportAlias, attribute: str, local: str) -> cst.ImportAlias:
    name = alias.with_changes(name=cst.Name(attribute))
    if attribute == local or alias.asname is not None:
        return name
    return name.with_changes(asname=cst.AsName(cst.Name(local)))


def _from_statements(
    plan: Plan, statement: cst.ImportFrom, kept: list[cst.ImportAlias], moved: dict[str, list[cst.ImportAlias]]
) -> Iterable[cst.BaseSmallStatement]:
    """The first group keeps the form of the statement, with its brackets and comments."""
    first = True
    groups = [(statement.module, kept), *((expression(home), aliases) for home, aliases in moved.items())]
    for home, aliases in groups:
        if not aliases:
            continue
        if first:
            last = _as_last(statement, aliases[-1])
            yield statement.with_changes(module=home, names=[*aliases[:-1], last])
        else:
            plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]
            new = cst.ImportFrom(module=home, names=plain)
            plan.comments[new] = "  ".join(comment for alias in aliases for comment in _comments(alias))
            yield new
        first = False


def _as_last(statement: cst.ImportFrom, alias: cst.ImportAlias) -> cst.ImportAlias:
    """``alias`` with what stands before the closing bracket."""
    assert not isinstance(statement.names, cst.ImportStar)
    before = statement.names[-1].comma
    if statement.lpar is None or not isinstance(before, cst.Comma) or not isinstance(alias.comma, cst.Comma):
        return alias.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    end, own = before.whitespace_after, alias.comma.whitespace_after
    if isinstance(end, cst.ParenthesizedWhitespace) and isinstance(own, cst.ParenthesizedWhitespace):
        end = end.with_changes(first_line=own.first_line, empty_lines=[])
    return alias.with_changes(comma=before.with_changes(whitespace_after=end))


def _comments(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Comment):
        return [node.value]
    return [comment for child in node.children for comment in _comments(child)]


def _rewrite_star(plan: Plan, findings: Findings, statement: cst.ImportFrom, module: str, line: int) -> None:
    found = resolve(module) if relative(module) is not None else None
    if not isinstance(found, Target) or found.name:
        plan.remarks.append(Remark(line, f"from {module} import *: name what you import; it was left as it is"))
        return
    used = sorted(findings.unbound & public_names(found.module))
    if not used:
        plan.remarks.append(Remark(line, f"from {module} import *: nothing of it is used here; it was left as it is"))
        return
    plan.statements[statement] = [
        cst.ImportFrom(module=expression(found.module), names=[cst.ImportAlias(cst.Name(name)) for name in used])
    ]
    plan.remarks.append(Remark(line, f"from {module} import *: it names now what is used here; check it"))


class RegistryCalls:
    """``STRATEGY_REGISTRY.register(...)`` becomes ``poplin.register("strategies", ...)``.

    Args:
        findings: of the source.
    """

    def __init__(self, findings: Findings) -> None:
        self.functions: dict[cst.CSTNode, cst.CSTNode] = {}
        #: Imported names that nothing reads any more.
        self.dropped: set[cst.CSTNode] = set()
        self._calls: list[tuple[cst.Call, list[cst.Arg], list[cst.BaseSmallStatement]]] = []
        rewritten: dict[str, int] = {}
        for call in findings.calls:
            local = dotted(call.func).partition(".")[0]
            statements, aliases = _importing(findings, local)
            arguments = _registration(call, _kind_of(findings, call))
            if not statements or arguments is None:
                continue  # the view of the registry does the same
            self._calls.append((call, arguments, statements))
            self.functions[call.func] = call
            rewritten[local] = rewritten.get(local, 0) + 1
            if rewritten[local] == findings.reads.get(local, 0):
                self.dropped |= set(aliases)

    def add_to(self, plan: Plan) -> None:
        """Let the plan have them."""
        for call, arguments, statements in self._calls:
            plan.expressions[call] = call.with_changes(func=expression("poplin.register"), args=arguments)
            for statement in statements:
                plan.need(statement, "poplin")


def _kind_of(findings: Findings, call: cst.Call) -> str:
    return "strategies" if findings.registries[call].startswith("STRATEGY") else "accelerators"


def _importing(findings: Findings, local: str) -> tuple[list[cst.BaseSmallStatement], list[cst.ImportAlias]]:
    """The imports that bind a name, and their parts that are the registry itself."""
    aliases = {
        alias: statement
        for statement, _ in findings.objects
        for alias in (() if isinstance(statement.names, cst.ImportStar) else statement.names)
        if (local_name(alias) or dotted(alias.name)) == local and dotted(alias.name).endswith("_REGISTRY")
    }
    modules = [binding.statement for binding in findings.bindings if binding.local == local]
    return [*aliases.values(), *modules], list(aliases)


def _registration(call: cst.Call, kind: str) -> list[cst.Arg] | None:
    """The arguments of ``poplin.register``; None where the call is none that can be read."""
    names = ("name", "target", "description", "override")
    arguments: list[cst.Arg] = []
    for position, argument in enumerate(call.args):
        if argument.star or (position >= len(names) and argument.keyword is None):
            return None
        keyword = argument.keyword.value if argument.keyword else None
        if keyword in ("kind", "target"):
            return None  # a setting of the class, which poplin.register would take for its own
        if keyword in ("strategy", "accelerator"):
            argument = argument.with_changes(keyword=cst.Name("target"))
        elif keyword is None and position > 1:
            argument = _by_keyword(argument, names[position])
        arguments.append(argument)
    if not arguments:
        return None
    comma = arguments[0].comma
    if not isinstance(comma, cst.Comma):
        comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [cst.Arg(cst.SimpleString(f'"{kind}"'), comma=comma), *arguments]


def _by_keyword(argument: cst.Arg, keyword: str) -> cst.Arg:
    bare = cst.SimpleWhitespace("")
    return argument.with_changes(keyword=cst.Name(keyword), equal=cst.AssignEqual(bare, bare))


def expression(text: str) -> cst.Name | cst.Attribute:
    """``a.b.c`` as nested attributes."""
    first, *rest = text.split(".")
    found: cst.Name | cst.Attribute = cst.Name(first)
    for part in rest:
        found = cst.Attribute(found, cst.Name(part))
    return found


def import_statement(module: str, local: str = "") -> cst.Import:
    """``import module``, or ``import module as local``."""
    asname = cst.AsName(cst.Name(local)) if local and local != module else None
    return cst.Import([cst.ImportAlias(expression(module), asname=asname)])
