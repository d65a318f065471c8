"""Write a package from the templates."""

from __future__ import annotations

import re
import shutil
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from poplin import __version__
from poplin.cli.metadata import is_installed
from poplin.cli.scaffold.kinds import SUBJECTS, Subject
from poplin.errors import ArgumentValueError, NameConflictError
from poplin.registry import known, rows
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, is_registrable

#: End of the name of each template; without it, tools would read them as what they are not yet.
_END = ".template"

#: The entry point by which a package brings its suite.
_COMPLIANCE = """
# What the compliance suite must know of it, for `poplin plugins check`.
[project.entry-points."poplin.compliance"]
{key} = "{package}.compliance:{stem}Compliance"
"""
#: What the README says of the tests: of what offers no name, and of what does.
_TESTS = (
    "The tests use it as a script would, and hold the package to the rules for packages.",
    "The tests run Poplin's compliance suites on it and its package. What the suite must know of it is in\n"
    "`src/__PACKAGE__/compliance.py`; `poplin plugins check __DISTRIBUTION__` runs the same wherever it is installed.",
)


def new(kind: str, name: str, folder: str | None = None) -> int:
    """Write a complete package with one plugin.

    Args:
        kind: a key of ``SUBJECTS``.
        name: the name that users will write.
        folder: where to write; a new folder, named as the distribution, by default.

    Returns:
        0.

    Raises:
        ArgumentValueError: the name can't be registered, or the folder exists.
        NameConflictError: the name is taken.
    """
    subject = SUBJECTS[kind]
    _check_name(subject, name)
    distribution = f"poplin-{fold(name)}"
    target = Path(folder if folder is not None else distribution)
    values = _values(subject, name, distribution)
    try:
        _make(target, kind, values)
    except FileExistsError:
        raise ArgumentValueError(
            f"{target} exists already, and nothing is written into it. Give another --folder."
        ) from None
    except OSError as error:
        raise ArgumentValueError(
            f"{target} can't be written ({error.strerror}), and nothing is left of it. Give another --folder."
        ) from error
    _tell(target, subject, values)
    return 0


def _make(target: Path, kind: str, values: dict[str, str]) -> None:
    """Write all files, or none: what was made is removed again, and nothing else.

    Raises:
        OSError: a folder or file can't be made; FileExistsError where ``target`` is there already.
    """
    new = target
    while not new.parent.exists():
        new = new.parent
    mine = new != target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir()
        mine = True
        for source in ("common", kind):
            _write(resources.files(__package__).joinpath("templates", source), target, values)
    except BaseException:
        if mine:
            shutil.rmtree(new, ignore_errors=True)
        raise


def _check_name(subject: Subject, name: str) -> None:
    if not is_registrable(name):
        candidate = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")
        hint = f" Would {candidate!r} do?" if is_registrable(candidate) else ""
        raise ArgumentValueError(
            f"{name!r} can't be registered: a name has lower-case letters and digits, and '.', '_', '-' between "
            f"them.{hint}"
        )
    if subject.kind and fold(name) in KINDS[subject.kind].roles:
        raise NameConflictError(f"{name!r} is a role, by which plugins say that they want to be asked; choose another.")
    taken = {fold(package): package for package in (*known.packages(), "poplin", "poplin-core")}
    found = [row for row in rows(load=False) if row.kind == subject.kind and fold(row.name) == fold(name)]
    owners = [row.distribution for row in found if row.status != "role"]
    owners += known.packages_offering(subject.kind, name)
    if is_installed(f"poplin-{fold(name)}"):
        owners.append(f"poplin-{fold(name)}")
    if (package := taken.get(f"poplin-{fold(name)}")) is not None:
        owners.append(package)
    if owners:
        raise NameConflictError(
            f"The {subject.singular} {name!r} would get in the way of {owners[0]}, which has this name. Choose another."
        )


def _values(subject: Subject, name: str, distribution: str) -> dict[str, str]:
    package = distribution.replace("-", "_")
    words = "".join(word.capitalize() for word in fold(name).split("-"))
    stem = words if words[0].isalpha() else f"N{words}"
    major, minor, *_ = (int(part) for part in re.findall(r"\d+", __version__))
    following = f"{major}.{minor + 1}" if major == 0 else str(major + 1)
    points = {name: f"{package}.{subject.target}"} | dict.fromkeys(subject.roles, f"{package}.{subject.target}")
    return {
        "USAGE": subject.usage.replace("__NAME__", name),
        "NAME": name,
        "DISTRIBUTION": distribution,
        "PACKAGE": package,
        "CLASS": stem + subject.suffix,
        "STEM": stem,
        "UPPER": re.sub(r"\W", "_", fold(name)).upper(),
        "SINGULAR": subject.singular,
        "GROUP": subject.group,
        "MODULE": subject.module,
        "COMPLIANCE": _COMPLIANCE.format(key=_key(name), package=package, stem=stem) if subject.kind else "",
        "TESTS": _TESTS[bool(subject.kind)].replace("__PACKAGE__", package).replace("__DISTRIBUTION__", distribution),
        "CORE": f"poplin-core>={major}.{minor},<{following}",
        "ENTRY_POINTS": "\n".join(f"{_key(point)} = {value!r}".replace("'", '"') for point, value in points.items()),
    }


def _key(name: str) -> str:
    """A TOML key."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'


def _write(source: Traversable, target: Path, values: dict[str, str]) -> None:
    for entry in source.iterdir():
        name = _filled(entry.name.removesuffix(_END), values).replace("dot-", ".", 1)
        if entry.is_dir():
            _write(entry, target / name, values)
        elif entry.name.endswith(_END):
            target.mkdir(parents=True, exist_ok=True)
            text = _filled(entry.read_text(encoding="utf-8"), values)
            (target / name).write_text(text, encoding="utf-8", newline="\n")


def _filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"__([A-Z_]+?)__", lambda match: values.get(match[1], match[0]), text)


def _tell(target: Path, subject: Subject, values: dict[str, str]) -> None:
    print(f"Wrote {target}: the {subject.singular} {values['NAME']!r}, a complete package.")
    for file in sorted(path for path in target.rglob("*") if path.is_file()):
        print(f"  {file.relative_to(target)}")
    print(f"\nNow:\n  cd {target}\n  pip install -e '.[test]'\n  python -m pytest")
    if subject.kind:
        print(f"  poplin plugins check {values['DISTRIBUTION']}")
