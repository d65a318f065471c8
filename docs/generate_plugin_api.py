"""Write docs/plugin-api.md from the docstrings of the interfaces and hooks: ``python docs/generate_plugin_api.py``.

A test compares the page with what this would write, so the reference can't fall behind the code.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

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
(`teardown`). ★ marks what an implementation must give; all else has a default that suits one plain device.
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
        parts += [f"## {cls.__name__}\n", inspect.cleandoc(cls.__doc__ or "") + "\n", reference.table(cls)]
    return "\n".join(parts).rstrip() + "\n"


def _hook_table(hooks: dict[str, Any]) -> str:
    """Which hooks there are, in one line each."""
    groups = {kind.hook: f" (entry points under `{kind.group}`)" for kind in KINDS.values()}
    lines = ["| hook | what it is for |", "|---|---|"]
    for name, function in hooks.items():
        first = inspect.cleandoc(function.__doc__ or "").partition("\n")[0].partition(";")[0].rstrip(".")
        lines.append(f"| `{name}` | {first}{groups.get(name, '')} |")
    return "\n".join(lines) + "\n"


def _functions() -> list[str]:
    """What a plugin module and a script need, from `poplin` itself."""
    import poplin

    parts = ["## Functions\n", "From `poplin`; none of them imports torch.\n"]
    parts += ["### `@hookimpl`, `@hookimpl(tryfirst=..., trylast=..., wrapper=..., optionalhook=...)`\n"]
    parts += [
        "Marks a function of a plugin module as the implementation of the hook of its name. (pluggy's own marker.)\n"
    ]
    for name in ("lazy", "register"):
        function = getattr(poplin, name)
        signature = re.sub(r"(?<!')'([^']+)'(?!')", r"\1", str(inspect.signature(function)))
        parts += [f"### `{name}{signature}`\n", inspect.cleandoc(function.__doc__ or "") + "\n"]
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


if __name__ == "__main__":
    PAGE.write_text(page())
