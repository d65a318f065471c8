"""Make installed distributions: real metadata folders on disk, as pip leaves them, with the modules beside.

Put the folder on ``sys.path`` (or on ``PYTHONPATH`` of a subprocess) and the distribution is installed::

    make_distribution(
        tmp_path,
        "acme-poplin",
        "1.2",
        entry_points={"poplin.strategies": {"acme": "acme.plugin"}},
        modules={"acme/__init__.py": "", "acme/plugin.py": source},
        requires=["poplin-core>=0.1"],
    )
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from poplin.errors import ArgumentValueError


def make_distribution(
    folder: str | Path,
    name: str,
    version: str | None = "1.0",
    entry_points: Mapping[str, Mapping[str, str]] | None = None,
    modules: Mapping[str, str] | None = None,
    requires: Sequence[str] = (),
    kind: Literal["dist-info", "egg-info"] = "dist-info",
    summary: str = "",
) -> Path:
    """Install a distribution into ``folder``.

    Args:
        folder: what a site-packages folder would be; made if it isn't there.
        name: name of the distribution.
        version: its version; None writes no ``Version`` field, and none into the folder's name.
        entry_points: group → name → ``module`` or ``module:attr``.
        modules: path below ``folder`` → source (indentation is removed).
        requires: its requirements, as ``Requires-Dist`` has them.
        kind: the form of the metadata folder.
        summary: one line.

    Returns:
        The metadata folder.
    """
    if kind not in ("dist-info", "egg-info"):
        raise ArgumentValueError(f"kind={kind!r}: write 'dist-info' or 'egg-info'.")
    site = Path(folder)
    stem = re.sub(r"[-_.]+", "_", name)
    metadata = site / (f"{stem}-{version}.{kind}" if version is not None else f"{stem}.{kind}")
    metadata.mkdir(parents=True, exist_ok=True)
    is_egg = kind == "egg-info"
    fields = ["Metadata-Version: 2.1", f"Name: {name}"]
    fields += [f"Version: {version}"] if version is not None else []
    fields += [f"Summary: {summary}"] if summary else []
    fields += [] if is_egg else [f"Requires-Dist: {requirement}" for requirement in requires]
    (metadata / ("PKG-INFO" if is_egg else "METADATA")).write_text(
        "\n".join(fields) + "\n\nA distribution of a test.\n"
    )
    if is_egg and requires:
        (metadata / "requires.txt").write_text("\n".join(requires) + "\n")
    if entry_points:
        (metadata / "entry_points.txt").write_text(_entry_points(entry_points))
    written = [*_write_modules(site, modules or {})]
    if not is_egg:
        (metadata / "INSTALLER").write_text("pip\n")
        own = [f"{metadata.name}/{file.name}" for file in sorted(metadata.iterdir())]
        (metadata / "RECORD").write_text("".join(f"{path},,\n" for path in [*written, *own, f"{metadata.name}/RECORD"]))
    return metadata


def plugin_source(kind: str, *names: str, target: str = "acme.strategy:Acme", extra: str = "") -> str:
    """The source of a plugin module that offers ``names``.

    Args:
        kind: a kind of extension, in the plural.
        *names: what it offers.
        target: what each of them stands for, as ``module:attr``.
        extra: more source, after the hook.
    """
    offers = ", ".join(f"{name!r}: lazy({target!r})" for name in names)
    hook = f"@hookimpl\ndef poplin_{kind}():\n    return {{{offers}}}\n"
    return f"from poplin import hookimpl, lazy\n\n{hook}{textwrap.dedent(extra)}"


def _entry_points(groups: Mapping[str, Mapping[str, str]]) -> str:
    lines: list[str] = []
    for group, points in groups.items():
        lines.append(f"[{group}]")
        lines += [f"{name} = {value}" for name, value in points.items()]
        lines.append("")
    return "\n".join(lines)


def _write_modules(site: Path, modules: Mapping[str, str]) -> list[str]:
    for path, source in modules.items():
        file = site / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
    return list(modules)
