"""Metadata of packages: entry-point groups are renamed, requirements are told.

Files are changed by the line, so that everything else stays as it is.
"""

from __future__ import annotations

import configparser
import re
import tomllib

from poplin.cli.migration.findings import Remark, SourceError
from poplin.cli.migration.names import table
from poplin.cli.migration.source import Migrated

#: Files that are looked into by name; others are Python.
METADATA_FILES = ("pyproject.toml", "setup.cfg")
REQUIREMENTS = re.compile(r"requirements[\w.-]*\.txt|constraints[\w.-]*\.txt")
_REQUIREMENT = re.compile(r"""(?<![\w./-])(lightning[-_]fabric|lightning|pytorch-lightning)(?=\s*(\[|[=<>~!,;"']|$))""")


def migrate_metadata(source: bytes, name: str) -> Migrated:
    """Rewrite ``pyproject.toml`` or ``setup.cfg``; tell what must be changed by hand in these and in requirements.

    Args:
        source: the file's content.
        name: the file's name.

    Raises:
        SourceError: it can't be read.
    """
    try:
        text = source.decode("utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(str(error)) from error
    if "lightning" not in text:
        return Migrated(source, [])
    remarks = _requirements(text)
    if name in METADATA_FILES:
        _read(text, name)
        for old, new in table()["groups"].items():
            text = _rename(text, old, new, name)
        _read(text, name)
    return Migrated(text.encode("utf-8"), remarks)


def _rename(text: str, old: str, new: str, name: str) -> str:
    group = re.escape(old)
    if name == "setup.cfg":
        return re.sub(rf"^([ \t]*){group}([ \t]*=)", rf"\g<1>{new}\g<2>", text, flags=re.MULTILINE)
    return re.sub(rf"""^([ \t]*\[[\w.-]+\.["']){group}(["']\])""", rf"\g<1>{new}\g<2>", text, flags=re.MULTILINE)


def _read(text: str, name: str) -> None:
    """Whether it is what its name says: before, and after we had it."""
    try:
        if name == "setup.cfg":
            configparser.ConfigParser(interpolation=None).read_string(text)
        else:
            tomllib.loads(text)
    except (configparser.Error, tomllib.TOMLDecodeError) as error:
        raise SourceError(f"it can't be read, or both spellings of a group would become one: {error}") from error


def _requirements(text: str) -> list[Remark]:
    found: list[Remark] = []
    for number, line in enumerate(text.splitlines(), 1):
        code = line.partition("#")[0]
        if (match := _REQUIREMENT.search(code)) and not code.lstrip().startswith(("name", "keywords", "description")):
            found.append(
                Remark(number, f"the requirement {match[1]}: require poplin (or poplin-core and the plugins you use)")
            )
    return found
