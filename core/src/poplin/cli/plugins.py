"""``poplin plugins``: what is installed, who offers it, and why something is out.

Imports no torch, and no plugin unless asked to.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NoReturn

from poplin.cli.tables import table
from poplin.errors import LookupFailedError, NotInstalledError, UnknownNameError
from poplin.registry import Row, failures, find, known, locate, rows
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, parse_reference
from poplin.registry.torch_once import TorchOnce, torch_error

#: What a status means, shown under a listing that has it.
LEGEND = {
    "role": "asks to be considered for 'auto' (or 'gpu'); not a name to be written",
    "blocked": "kept out by a control",
    "conflict": "several distributions offer it: write dist:name",
    "incompatible": "made for another version of poplin-core",
    "failed": "could not be loaded",
}


def listing(*, load: bool, as_json: bool) -> int:
    """Print every offer of every installed plugin.

    Args:
        load: whether to import the plugins, to find out which of them fail.
        as_json: print a list of objects instead of a table.
    """
    found = _read(load)
    if as_json:
        _print_json([row_as_dict(row) for row in found])
        return 0
    for kind, group in groupby(found, key=lambda row: row.kind):
        print(kind)
        print(table([_cells(row) for row in group], indent="  "))
    _print_legend(found)
    return 0


def info(reference: str, *, load: bool, as_json: bool) -> int:
    """Print all that is known about one name, or about all offers of one distribution.

    Args:
        reference: ``[kind/][dist:]name``, or the name of a distribution.
        load: whether to import what offers it, to say what the name stands for, or why it fails.
        as_json: print a list of objects instead of text.

    Raises:
        LookupFailedError: nothing installed has this name. (Close matches, and known packages, are named.)
    """
    matches = _matching(reference, _read(load=False))
    if not matches:
        raise_unknown(reference)
    with TorchOnce(lambda: torch_error(failures())):
        details = [_details(row, load) for row in matches]
    if as_json:
        _print_json(details)
        return 0
    for number, detail in enumerate(details):
        if number:
            print()
        print(f"{detail['kind']}/{detail['name']}")
        print(table([[key.replace("_", " "), _text(value)] for key, value in detail.items() if value], indent="  "))
    return 0


def row_as_dict(row: Row) -> dict[str, Any]:
    """One row as ``--json`` prints it."""
    return {
        "kind": row.kind,
        "name": row.name,
        "distribution": row.distribution,
        "version": row.version,
        "target": row.target,
        "location": row.location,
        "status": row.status,
        "reason": row.reason,
    }


def raise_unknown(reference: str) -> NoReturn:
    """Raise the registry's own error for a name that no installed plugin has: it knows close matches and packages.

    Raises:
        LookupFailedError: always; of the kinds that could be meant, the one whose error says most.
    """
    kind = parse_reference(reference).kind
    errors: list[LookupFailedError] = []
    for candidate in [kind] if kind in KINDS else KINDS:
        try:
            locate(candidate, reference)
        except LookupFailedError as error:
            errors.append(error)
    if packages := [package for package in known.packages() if fold(package) == fold(reference)]:
        raise NotInstalledError(f"The package {packages[0]!r} is not installed. Install it: pip install {packages[0]}")
    telling = [error for error in errors if not isinstance(error, UnknownNameError)]
    if telling:
        raise telling[0]
    every = [name for row in _read(load=False) for name in (row.name, row.distribution)]
    raise UnknownNameError(
        f"No installed plugin offers {reference!r}, and no distribution that offers anything has this name."
        f"{_suggestion(reference, every)} `poplin plugins` lists all."
    )


def _suggestion(word: str, candidates: Sequence[str]) -> str:
    """A sentence that names what ``word`` may have meant; empty if nothing is close."""
    by_fold = {fold(name): name for name in candidates if fold(name) != fold(word)}
    close = difflib.get_close_matches(fold(word), list(by_fold), n=3)
    return f" Did you mean {' or '.join(repr(by_fold[name]) for name in close)}?" if close else ""


def _read(load: bool) -> list[Row]:
    with plugins_print_to_stderr():
        return rows(load=load)


@contextlib.contextmanager
def plugins_print_to_stderr() -> Iterator[None]:
    """What a plugin prints at import must not end up in our output: somebody may be parsing it.

    The file descriptor, too, which libraries in C and child processes write to.
    """
    try:
        ours = os.dup(1)
    except OSError:  # there is none: it was closed
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    try:
        sys.stdout.flush()
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _matching(reference: str, found: Sequence[Row]) -> list[Row]:
    kind, distribution, name = parse_reference(reference)
    by_name = [
        row
        for row in found
        if fold(row.name) == fold(name)
        and (kind is None or row.kind == kind)
        and (distribution is None or fold(row.distribution) == fold(distribution))
    ]
    if by_name or kind is not None or distribution is not None:
        return by_name
    return [row for row in found if fold(row.distribution) == fold(name)]


def _details(row: Row, load: bool) -> dict[str, Any]:
    from poplin.cli.metadata import distribution_summary  # not for the listing, which is to be quick

    details = row_as_dict(row)
    details["summary"] = distribution_summary(row.location)
    if load and row.status not in ("role", "blocked", "conflict"):
        details |= _load(row)
    return details


def _load(row: Row) -> dict[str, Any]:
    """What the name stands for, or why it can't be had."""
    with plugins_print_to_stderr():
        try:
            found = find(row.kind, f"{row.distribution}:{row.name}")
            target = found.target_class()
        except LookupFailedError as error:
            return {"status": "failed", "reason": str(error)}
    document = (target.__doc__ or "").strip()
    return {
        "status": "loaded",
        "class": f"{target.__module__}.{target.__qualname__}",
        "description": document.splitlines()[0] if document else "",
    }


def _cells(row: Row) -> list[str]:
    return [row.name, row.status, f"{row.distribution} {row.version}".strip(), first_line(row.reason)]


def first_line(text: str | None) -> str:
    """The first line of ``text``."""
    return (text or "").strip().partition("\n")[0]


def _text(value: object) -> str:
    return str(value)


def _print_legend(found: Sequence[Row]) -> None:
    present = {row.status for row in found}
    told = [[status, meaning] for status, meaning in LEGEND.items() if status in present]
    if told:
        print()
        print(table(told))


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2))
