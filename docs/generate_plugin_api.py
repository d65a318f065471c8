"""Write docs/plugin-api.md from the docstrings of the interfaces and hooks: ``python docs/generate_plugin_api.py``.

A test compares the page with what this would write, so the reference can't fall behind the code.
"""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from poplin.registry import hookspecs
from poplin.registry.kinds import AMBIENT_GROUP, CALLBACK_GROUPS, KINDS
from poplin.testing import reference

PAGE = Path(__file__).with_name("plugin-api.md")

INTRODUCTION = """\
# What a plugin implements

*Written from the docstrings by `docs/generate_plugin_api.py`; change those.*

An offer is a class, a callable, or `lazy("module:attr", **presets)`; it is called with its presets and nothing else.
When every choice is made the chosen objects may veto the selection (`check`), then each learns of it (`bind`). ★ marks
what an implementation must give; all else has a default that suits one plain device.
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
    parts.append("## Hooks\n")
    for name, function in vars(hookspecs).items():
        if name.startswith("poplin_"):
            signature = str(inspect.signature(function)).replace("'", "")
            parts += [f"### `{name}{signature}`\n", inspect.cleandoc(function.__doc__ or "") + "\n"]
    for cls in _interfaces():
        parts += [f"## {cls.__name__}\n", inspect.cleandoc(cls.__doc__ or "") + "\n", reference.table(cls)]
    return "\n".join(parts).rstrip() + "\n"


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
