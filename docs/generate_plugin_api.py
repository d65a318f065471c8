"""Write docs/plugin-api.md from the docstrings of what authors use: ``python docs/generate_plugin_api.py``.

A test compares the page with what this would write, so the reference can't fall behind the code.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

from poplin import errors, faces
from poplin.registry import hookspecs
from poplin.registry.kinds import AMBIENT_GROUP, CALLBACK_GROUPS, KINDS
from poplin.testing import reference

PAGE = Path(__file__).with_name("plugin-api.md")

INTRODUCTION = """\
# What a plugin implements

*Written from the docstrings by `docs/generate_plugin_api.py`; change those.*

[Writing a plugin](writing-a-plugin.md) leads through it; this is the reference. An offer is a class, a callable, or
`lazy("module:attr", **presets)`; it is called with its presets and nothing else. When every choice is made the chosen
objects may veto the selection (`check`), then each learns of it (`bind`), and gives back what it took at the end
(`teardown`). ★ marks what an implementation must give; all else has a default that suits one plain device. At the end
stand the [helpers](#helpers-for-authors), of which extensions are usually made, and the errors.
"""

ROLES = """\
## Roles

An entry point called `auto` or `gpu` is no name that users write, but a role: *ask me when the choice is left to
Poplin*. Any number of packages may declare it; the hook does not return it. Only the packages that declare a role are
loaded to be asked for it.

| role | who takes it |
|---|---|
| accelerator `auto` | of the available ones whose class lists it in `roles`, the one of the highest `priority` |
| accelerator `gpu` | the same, for `accelerator="gpu"` |
| strategy `auto` | the first answer of `poplin_select_strategy`; without one, the built-in single device |
| environment `auto` | of those whose `detect()` says yes, the one of the highest `priority`; without one, `local` |
| checkpoint IO `auto` | when something is read: the one whose `recognises(path)` says yes |

## Names

A registered name has lower-case letters and digits, and `.`, `_`, `-` between them. Everywhere, `[kind/][dist:]name`
can be written; case does not count, and `-`, `_`, `.` are one. Two packages that offer one name are a conflict, and
`dist:name` picks one of them; the built-in names can't be taken.
"""

HELPERS = """\
## Helpers for authors

What the public modules have besides the interfaces: classes to derive from, and functions of which extensions are
usually made. Scripts may use them, too. Of a class that extends another one, only what it adds is listed.
"""

#: Public modules, in the order of the page.
FACES = (*(kind.face for kind in KINDS.values()), "poplin.wrappers", "poplin.utilities", "poplin.registry")

#: What these modules have and this page leaves to another: ``module.name`` → the page.
ELSEWHERE = {
    "poplin.accelerators.ACCELERATOR_REGISTRY": "migrate.md",
    "poplin.strategies.STRATEGY_REGISTRY": "migrate.md",
}


def page() -> str:
    """The whole page."""
    parts = [
        INTRODUCTION,
        "## Kinds\n",
        "| kind | entry-point group | hook | roles | interface |",
        "|---|---|---|---|---|",
    ]
    for kind in KINDS.values():
        roles = ", ".join(f"`{role}`" for role in kind.roles) or "none"
        name = kind.interface.partition(":")[2]
        parts.append(f"| {kind.singular} | `{kind.group}` | `{kind.hook}` | {roles} | `{kind.face}.{name}` |")
    parts.append(
        f"\nTwo more groups: `{AMBIENT_GROUP}` for plugins that offer no name and implement the hooks of selection and "
        f"lifecycle; and `{CALLBACK_GROUPS[0]}` for functions that return one callback or a list of them for every "
        "Fabric (" + ", ".join(f"`{group}`" for group in CALLBACK_GROUPS[1:]) + " are read too).\n"
    )
    parts.append(ROLES)
    parts.append("## Hooks\n")
    hooks = {name: function for name, function in vars(hookspecs).items() if name.startswith("poplin_")}
    parts.append(_hook_table(hooks))
    for name, function in hooks.items():
        signature = str(inspect.signature(function)).replace("'", "")
        parts += [f"### `{name}{signature}`\n", inspect.cleandoc(function.__doc__ or "") + "\n"]
    parts += _functions()
    for cls in _interfaces():
        parts += [f"## {cls.__name__}\n", _doc(cls) + "\n", reference.table(cls)]
    parts.append(HELPERS)
    for face in FACES:
        names = helpers(face)
        parts += [f"### {face}\n"] * bool(names)
        for name, value in names.items():
            parts += _helper(face, name, value)
    parts += _errors()
    return "\n".join(parts).rstrip() + "\n"


def _hook_table(hooks: dict[str, Any]) -> str:
    """Which hooks there are, in one line each."""
    groups = {kind.hook: f" (entry points under `{kind.group}`)" for kind in KINDS.values()}
    lines = ["| hook | what it is for |", "|---|---|"]
    for name, function in hooks.items():
        first = inspect.cleandoc(function.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
        lines.append(f"| `{name}` | {first}{groups.get(name, '')} |")
    return "\n".join(lines) + "\n"


#: What a plugin module needs of `poplin`, besides `hookimpl`.
FUNCTIONS = ("lazy", "register")


def _functions() -> list[str]:
    """What a plugin module and a script need, from `poplin` itself."""
    import poplin

    parts = ["## Functions\n", "From `poplin`; none of them imports torch.\n"]
    parts += ["### `@hookimpl`, `@hookimpl(tryfirst=..., trylast=..., wrapper=..., optionalhook=...)`\n"]
    parts += [
        "Marks a function of a plugin module as the implementation of the hook of its name. (pluggy's own marker.)\n"
    ]
    for name in FUNCTIONS:
        function = getattr(poplin, name)
        parts += [f"### `{name}{_signature(function)}`\n", _doc(function) + "\n"]
    return parts


def _interfaces() -> list[type]:
    from poplin.extension import Extension
    from poplin.strategies import ParallelStrategy

    found: list[type] = [Extension]
    for kind in KINDS.values():
        module, _, name = kind.interface.partition(":")
        found.append(getattr(importlib.import_module(module), name))
        if kind.name == "strategies":
            found.append(ParallelStrategy)
    return found


def public_names(face: str) -> list[str]:
    """The names that ``face`` is meant to be asked for."""
    module = importlib.import_module(face)
    names = {*module.__all__, *faces.own_names(face)}
    return sorted((name for name in names if not name.startswith("_")), key=lambda name: (name.casefold(), name))


def helpers(face: str) -> dict[str, Any]:
    """The public names of ``face`` that stand neither above on the page nor on another page, with what they are."""
    module = importlib.import_module(face)
    above = {"hookimpl", "hookspecs", *FUNCTIONS, *(cls.__name__ for cls in _interfaces())}
    found = {name: getattr(module, name) for name in public_names(face) if name not in above}
    return {
        name: value
        for name, value in found.items()
        if f"{face}.{name}" not in ELSEWHERE and getattr(value, "__module__", "") != errors.__name__
    }


def _helper(face: str, name: str, value: Any) -> list[str]:
    """One name of a public module."""
    if isinstance(value, ModuleType):
        return [f"#### `{name}`\n", "*module*\n", _doc(value) + "\n"]
    if not callable(value):  # an alias of types
        return [f"#### `{name} = {value}`\n"]
    if not value.__module__.startswith("poplin."):
        return [f"#### `{name}`\n", f"That of `{value.__module__}`.\n"]
    if value.__name__ != name:
        return [f"#### `{name}`\n", f"Another name of `{value.__name__}`.\n"]
    if not isinstance(value, type):
        return [f"#### `{name}{_signature(value)}`\n", _doc(value) + "\n"]
    parts = [f"#### `{name}{_signature(value)}`\n", "*class*\n", _doc(value) + "\n"]
    for member in reference.members(value):
        if member.doc and member.name != "__init__" and not _is_told_before(value, member.name):
            form = f"{member.form}: " if member.form not in ("method", "attribute") else ""
            parts.append(f"- {form}`{member.signature}`\n\n{textwrap.indent(member.doc, '  ')}\n")
    return parts


def _is_told_before(cls: type, member: str) -> bool:
    """Whether a base of ``cls`` has this member: an interface, another helper, or a class of Python's or torch's."""
    return any(member in vars(base) for base in cls.__mro__[1:])


def _errors() -> list[str]:
    """The errors, in one line each."""
    parts = ["### poplin.errors\n", "| error | what has happened |", "|---|---|"]
    for name, value in vars(errors).items():
        if isinstance(value, type) and value.__module__ == errors.__name__:
            parts.append(f"| `{name}` | {' '.join(_doc(value).partition(chr(10) * 2)[0].split())} |")
    return [*parts, ""]


def _doc(thing: Any) -> str:
    return inspect.cleandoc(thing.__doc__ or "")


def _signature(function: Any) -> str:
    """The arguments, with annotations as they are written in the source."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # of something that is written in C
        return ""
    parameters = list(signature.parameters.values())
    if isinstance(function, type):
        signature = signature.replace(return_annotation=inspect.Signature.empty)
        if [one.kind for one in parameters] == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]:
            parameters = []  # of a __new__ that looks at none
    if isinstance(signature.return_annotation, str):
        signature = signature.replace(return_annotation=_Bare(signature.return_annotation))
    return str(signature.replace(parameters=[_readable(one) for one in parameters]))


def _readable(parameter: inspect.Parameter) -> inspect.Parameter:
    """Without what Python puts around annotations that are strings, and without addresses in memory."""
    annotation = getattr(parameter.annotation, "__forward_arg__", parameter.annotation)  # of a NamedTuple
    if isinstance(annotation, str):
        parameter = parameter.replace(annotation=_Bare(annotation))
    if inspect.isroutine(parameter.default):
        parameter = parameter.replace(default=_Bare("..."))
    return parameter


class _Bare(str):
    """A text that stands in a signature as it is."""

    __repr__ = str.__str__


if __name__ == "__main__":
    PAGE.write_text(page())
