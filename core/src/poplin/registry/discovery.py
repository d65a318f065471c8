"""From installed metadata to declared offers. Nothing is imported, and nothing is kept: plain functions, plain tuples.

A scan must be cheap with a thousand distributions installed: the name of a distribution is taken from the name of
its folder, ``entry_points.txt`` is read where there is one, and ``METADATA`` only of those that declare something
for Poplin.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from poplin.registry.kinds import GROUPS
from poplin.registry.names import fold
from poplin.registry.records import CORE, RUNTIME

#: A value of an entry point: ``module``, ``module:attr.attr``, and extras, which are of no use to us.
_VALUE = re.compile(r"(?P<target>[\w.]+\s*(:\s*[\w.]+)?)\s*(\[.*\])?")
#: What a distribution may be called.
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
#: A quick look before an ``entry_points.txt`` is taken apart.
_SIGNS = (b"poplin.", b"callbacks_factory")
#: Groups that begin as those of offers do, and are read elsewhere: by ``poplin plugins check``.
_OTHER_GROUPS = ("poplin.compliance",)
#: What archives on the path are called; another file there may be anything.
_ARCHIVES = (".whl", ".zip", ".egg")


class Entry(NamedTuple):
    """One entry point of a group that Poplin reads."""

    group: str
    name: str
    #: ``module`` or ``module:attr``, without blanks and extras.
    value: str


class Distribution(NamedTuple):
    """An installed distribution that declares something for Poplin."""

    name: str
    version: str
    #: Its metadata folder.
    location: str
    entries: tuple[Entry, ...]
    #: Its requirements, as they stand in its metadata.
    requires: tuple[str, ...]


class Remark(NamedTuple):
    """Metadata that could not be used, and why."""

    path: str
    problem: str


class Scan(NamedTuple):
    """What one look over ``sys.path`` found, in an order that does not depend on the file system."""

    distributions: tuple[Distribution, ...]
    remarks: tuple[Remark, ...]


class _Record(NamedTuple):
    """A metadata folder (or file) on disk."""

    path: str
    name: str
    version: str
    is_egg: bool


class _Head(NamedTuple):
    """The header fields of a METADATA file that matter here."""

    name: str
    version: str
    requires: tuple[str, ...]


def scan(path: Sequence[str]) -> Scan:
    """Look over the installed distributions.

    For each distribution name the first record on ``path`` with readable metadata counts; within one folder they
    are sorted. The same folder under two names (a symlink) is one folder.

    Args:
        path: folders and archives, as in ``sys.path``.
    """
    remarks: list[Remark] = []
    by_name: dict[str, list[_Record]] = {}
    found: dict[str, Distribution] = {}
    for place in _real(path):
        for record in _records(place, remarks):
            by_name.setdefault(fold(record.name), []).append(record)
    for records in by_name.values():
        if len(records) == 1 and not _declares(records[0], remarks):
            continue  # the rule, a thousand times: one open() is all that it costs
        for record in records:
            if not _is_readable(record, thoroughly=len(records) > 1):
                remarks.append(Remark(record.path, "its metadata is missing, empty or names no distribution"))
                continue
            distribution = _distribution(record, remarks)
            if distribution is not None:
                found.setdefault(fold(distribution.name), distribution)
            break
    for distribution in _elsewhere(path, by_name, remarks):
        found.setdefault(fold(distribution.name), distribution)
    for name in (CORE, RUNTIME):
        if (usurper := found.pop(name, None)) is not None:
            remarks.append(Remark(usurper.location, _usurps(usurper.name)))
    return Scan(tuple(found[name] for name in sorted(found)), tuple(sorted(set(remarks))))


def _usurps(name: str) -> str:
    return (
        f"the name {name!r} is Poplin's own, so nothing of what this distribution offers is taken: "
        "its authors have to give it another name"
    )


def _real(path: Sequence[str]) -> Iterator[str]:
    seen = set()
    for entry in path:
        if isinstance(entry, str):
            real = os.path.realpath(entry or os.curdir)
            if real not in seen:
                seen.add(real)
                yield real


def _records(place: str, remarks: list[Remark]) -> Iterator[_Record]:
    try:
        children = [child for child in os.listdir(place) if child[-5:].lower() == "-info"]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        remarks.append(Remark(place, f"the folder can't be read: {error.strerror or error}"))
        return
    inside_egg = place.lower().endswith(".egg")
    # a dist-info before an egg-info: a newer pip wrote it
    for child in sorted(children, key=lambda child: (child.lower().endswith(".egg-info"), child)):
        lower = child.lower()
        if lower.endswith((".dist-info", ".egg-info")):
            name, _, rest = child[: -len(".dist-info")].partition("-")
            if name and not name.startswith("~"):  # pip renames what it is about to remove
                version = rest.partition("-")[0]
                yield _Record(f"{place}{os.sep}{child}", name, version, lower.endswith(".egg-info"))
        elif inside_egg and lower == "egg-info":
            name, _, rest = os.path.basename(place)[: -len(".egg")].partition("-")
            if name:
                yield _Record(os.path.join(place, child), name, rest.partition("-")[0], True)


def _declares(record: _Record, remarks: list[Remark]) -> bool:
    """Whether a record may declare something for Poplin: a quick look, that reads one file at most."""
    raw = _read(f"{record.path}{os.sep}entry_points.txt", remarks)
    return any(sign in raw for sign in _SIGNS)


def _metadata_file(record: _Record) -> str:
    if record.is_egg and not os.path.isdir(record.path):
        return record.path
    return os.path.join(record.path, "PKG-INFO" if record.is_egg else "METADATA")


def _is_readable(record: _Record, thoroughly: bool) -> bool:
    file = _metadata_file(record)
    try:
        status = os.stat(file)
    except OSError:
        return False
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        return False
    return not thoroughly or bool(_head(_read(file)).name)


def _read(file: str, remarks: list[Remark] | None = None) -> bytes:
    """What stands in a file; nothing if it can't be read, and a remark if it is there all the same."""
    try:
        with open(file, "rb") as stream:
            return stream.read()
    except (FileNotFoundError, NotADirectoryError):
        return b""
    except OSError as error:
        if remarks is not None:
            remarks.append(
                Remark(file, f"it can't be read, so what it declares is not known: {error.strerror or error}")
            )
        return b""


def _distribution(record: _Record, remarks: list[Remark]) -> Distribution | None:
    """What a record declares for Poplin; None if that is nothing."""
    file = os.path.join(record.path, "entry_points.txt")
    entries = _entries(_read(file, remarks), file, remarks)
    if not entries:
        return None
    head = _head(_read(_metadata_file(record)))
    requires = head.requires
    if record.is_egg:
        requires += _egg_requires(_read(os.path.join(record.path, "requires.txt")))
    name = head.name if _NAME.fullmatch(head.name) else record.name
    if not _NAME.fullmatch(name):
        remarks.append(Remark(record.path, f"{name!r} can't be the name of a distribution"))
        return None
    return Distribution(name, head.version or record.version, record.path, entries, requires)


def _entries(raw: bytes, file: str, remarks: list[Remark]) -> tuple[Entry, ...]:
    """The entries of the groups that Poplin reads, each once, in sorted order."""
    entries: set[Entry] = set()
    group = ""
    for line in _text(raw).splitlines():
        line = line.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            group = line[1:-1].strip()
            if group.startswith("poplin.") and group not in GROUPS and group not in _OTHER_GROUPS:
                remarks.append(Remark(file, _unknown(group)))
            continue
        if group not in GROUPS:
            continue
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or not name or not value:
            remarks.append(Remark(file, f"the line {line!r} is no entry point"))
            continue
        match = _VALUE.fullmatch(value)
        entries.add(Entry(group, name, re.sub(r"\s", "", match["target"]) if match else value))
    return tuple(sorted(entries))


def _unknown(group: str) -> str:
    known = [one.removeprefix("poplin.") for one in (*GROUPS, *_OTHER_GROUPS) if one.startswith("poplin.")]
    close = difflib.get_close_matches(group.removeprefix("poplin."), known, n=1)
    hint = f" (did you mean 'poplin.{close[0]}'?)" if close else f" (there are poplin.{', poplin.'.join(known)})"
    return f"Poplin knows no group {group!r} of entry points, so what stands in it is not read{hint}"


def _head(raw: bytes) -> _Head:
    """Read the header of METADATA or PKG-INFO by hand: the email parser would take longer than all the rest."""
    name = version = ""
    requires: list[str] = []
    for line in _text(raw).splitlines():
        if not line.strip():
            break
        key, _, value = line.partition(":")
        key, value = key.strip().lower(), value.strip()
        if line[0] in " \t":
            if requires:
                requires[-1] += " " + line.strip()
        elif key == "name" and not name:
            name = value
        elif key == "version" and not version:
            version = value
        elif key == "requires-dist":
            requires.append(value)
    return _Head(name, version, tuple(requires))


def _text(raw: bytes) -> str:
    """Whatever stands in a file, as text; a byte-order mark is left out."""
    return raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", errors="replace")


def _egg_requires(raw: bytes) -> tuple[str, ...]:
    """The unconditional requirements in an egg-info's ``requires.txt``: those before the first section."""
    lines: list[str] = []
    for line in _text(raw).splitlines():
        if line.strip().startswith("["):
            break
        if line.strip():
            lines.append(line.strip())
    return tuple(lines)


def _elsewhere(path: Sequence[str], by_name: Iterable[str], remarks: list[Remark]) -> Iterator[Distribution]:
    """Distributions in archives on the path: zip files, wheels and eggs; `importlib_metadata` reads these."""
    archives = [place for place in _real(path) if os.path.isfile(place)]
    if not archives:
        return
    # The backport: the same reading of archives on every Python. Late, because an archive on the path is rare.
    from importlib_metadata import DistributionFinder, MetadataPathFinder

    names = set(by_name)
    for archive in archives:
        if archive.lower().endswith(_ARCHIVES) and (damage := _damage(archive)):
            remarks.append(Remark(archive, f"the archive can't be read, so nothing in it is found: {damage}"))
            continue
        context = DistributionFinder.Context(path=[archive])  # type: ignore[no-untyped-call]
        try:
            distributions = list(MetadataPathFinder.find_distributions(context))
            texts = [
                (found.read_text("entry_points.txt"), found.read_text("METADATA") or found.read_text("PKG-INFO") or "")
                for found in distributions
            ]
        except Exception as error:  # a damaged archive: anything may come out of it
            remarks.append(Remark(archive, f"the archive can't be read: {error}"))
            continue
        for points, metadata in sorted((points or "", metadata) for points, metadata in texts):
            head = _head(metadata.encode())
            entries = _entries(points.encode(), archive, remarks)
            if _NAME.fullmatch(head.name) and entries and fold(head.name) not in names:
                names.add(fold(head.name))
                yield Distribution(head.name, head.version, archive, entries, head.requires)


def _damage(archive: str) -> str:
    """Why an archive can't be opened; empty if it can."""
    import zipfile

    try:
        zipfile.ZipFile(archive).close()
    except Exception as error:  # a damaged archive: anything may come out of it
        return str(error) or type(error).__name__
    return ""
