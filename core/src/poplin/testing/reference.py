"""The public interfaces as text, read from the code: for the reference pages and for the test that pins them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple


class Member(NamedTuple):
    """One member of an interface."""

    name: str
    #: ``name(arguments) -> result``, ``name: type = default``, or ``name -> type`` for a property.
    signature: str
    doc: str
    #: Whether an implementation must give it.
    required: bool
    #: "attribute", "property", "method", "classmethod" or "staticmethod".
    form: str


def members(cls: type) -> list[Member]:
    """The public members that ``cls`` itself defines, in the order of its source."""
    comments = dict(_attributes(cls))
    found = []
    for name in [*comments, *(name for name in vars(cls) if name not in comments)]:
        if name.startswith("_") and name != "__init__":
            continue
        value = vars(cls).get(name, inspect.Parameter.empty)
        if name in comments:
            declaration, doc, has_default = comments[name]
            found.append(Member(name, declaration, doc, not has_default, "attribute"))
        elif (member := _callable_member(name, value)) is not None:
            found.append(member)
    return found


def table(cls: type) -> str:
    """The members of ``cls`` as a Markdown list; ★ marks what must be given."""
    lines = []
    for member in members(cls):
        star = " ★" if member.required else ""
        lines.append(f"### `{member.signature}`{star}\n")
        lines.append(f"*{member.form}*\n" if member.form != "method" else "")
        lines.append(f"{member.doc}\n")
    return "\n".join(line for line in lines if line)


def pin(cls: type) -> list[str]:
    """One line for each member: whatever changes it is a change of the API."""
    return [
        f"{cls.__name__}.{member.signature}  [{member.form}{', required' if member.required else ''}]"
        for member in members(cls)
    ]


def _callable_member(name: str, value: Any) -> Member | None:
    required = bool(getattr(value, "__isabstractmethod__", False))
    if isinstance(value, property):
        assert value.fget is not None
        returned = inspect.signature(value.fget).return_annotation
        return Member(name, f"{name} -> {_text(returned)}", _doc(value.fget), required, "property")
    form = "method"
    if isinstance(value, (staticmethod, classmethod)):
        form = type(value).__name__
        value = value.__func__
    if not inspect.isfunction(value) or (name == "__init__" and not value.__doc__ and not _arguments(value)):
        return None
    signature = inspect.signature(value)
    parameters = list(signature.parameters.values())
    if form != "staticmethod":
        parameters = parameters[1:]
    text = str(signature.replace(parameters=parameters)).replace("'", "")
    return Member(name, f"{name}{text}", _doc(value), required, form)


def _arguments(function: Any) -> list[str]:
    return list(inspect.signature(function).parameters)[1:]


def _text(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _doc(function: Any) -> str:
    return inspect.cleandoc(function.__doc__ or "")


def _attributes(cls: type) -> Iterator[tuple[str, tuple[str, str, bool]]]:
    """Annotated class attributes: name → (declaration, the ``#:`` comment above it, whether it has a default)."""
    source = textwrap.dedent(inspect.getsource(cls))
    lines = source.splitlines()
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if node.target.id.startswith("_"):
            continue
        comment: list[str] = []
        for line in reversed(lines[: node.lineno - 1]):
            if not line.strip().startswith("#:"):
                break
            comment.insert(0, line.strip().removeprefix("#:").strip())
        declaration = f"{node.target.id}: {ast.unparse(node.annotation)}"
        if node.value is not None:
            declaration += f" = {ast.unparse(node.value)}"
        yield node.target.id, (declaration, " ".join(comment), node.value is not None)
