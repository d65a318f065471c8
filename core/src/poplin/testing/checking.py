"""Run the suites on what is installed, without a test file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from poplin import registry
from poplin.errors import ArgumentValueError, UnknownNameError
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold, parse_reference
from poplin.registry.records import CORE, RUNTIME, Row
from poplin.testing.compliance import Compliance, configured
from poplin.testing.outcomes import Outcome
from poplin.testing.requirement import requirements

#: kind → the suite for it, as ``module:class``.
SUITES = {
    "strategies": "poplin.testing.suites.strategy:StrategyCompliance",
    "precisions": "poplin.testing.suites.precision:PrecisionCompliance",
    "loggers": "poplin.testing.suites.logger:LoggerCompliance",
    "checkpoint_ios": "poplin.testing.suites.checkpoint_io:CheckpointIOCompliance",
}


def suite_for(kind: str) -> type[Compliance]:
    """The suite for a kind of extension.

    Args:
        kind: in the plural, or in the singular.

    Raises:
        ArgumentValueError: there is no such kind.
    """
    return _load(SUITES[registry_kind(kind)])


def registry_kind(kind: str) -> str:
    """The plural of a kind.

    Raises:
        ArgumentValueError: there is no such kind.
    """
    from poplin.registry.kinds import get_kind

    return get_kind(kind).name


def check(reference: str, *, suite: str | type[Compliance] | None = None, **settings: Any) -> Iterator[Outcome]:
    """Run the suites on an installed plugin, check by check.

    Nothing but poplin-core is needed: no pytest, and no test file.

    Args:
        reference: ``[kind/][dist:]name``, or the name of a distribution: then all that it offers, and its packaging.
        suite: the suite to use, or ``"module:Class"``; by default that of the kind. An author's own suite knows what
            the extension needs, and is used where it is given.
        **settings: attributes of the suite: ``accelerator="acme"``, ``world_size=4``, ``env={...}``...

    Yields:
        The outcome of each check, as soon as it is known.

    Raises:
        UnknownNameError: nothing installed has this name.
        ArgumentValueError: the suite has no such setting.
    """
    rows = _rows(reference)
    given = _load(suite) if isinstance(suite, str) else suite
    for row in rows:
        if given is None and row.kind not in SUITES:
            continue
        chosen = given or suite_for(row.kind)
        name = row.name if row.distribution in (CORE, RUNTIME) else f"{row.distribution}:{row.name}"
        yield from run_suite(configured(chosen, name=name, **settings), f"{row.kind}/{row.name}")


def run_suite(suite: type[Compliance], subject: str = "") -> Iterator[Outcome]:
    """Run the checks of one suite.

    Args:
        suite: its class.
        subject: what is tested, for the outcomes.

    Yields:
        The outcome of each check.
    """
    made = suite()
    for about in requirements(suite):
        result = made.outcome(about)
        yield Outcome(
            subject or suite.__name__, suite.__name__, about.title, about.member, result.status, result.message
        )


def _rows(reference: str) -> list[Row]:
    kind, distribution, name = parse_reference(reference)
    offers = [row for row in registry.rows(load=False) if row.kind in KINDS and row.status != "role"]
    named = [
        row
        for row in offers
        if fold(row.name) == fold(name)
        and (kind is None or row.kind == kind)
        and (distribution is None or fold(row.distribution) == fold(distribution))
    ]
    if not named and kind is None and distribution is None:
        named = [row for row in offers if fold(row.distribution) == fold(name)]
    if not named:
        raise UnknownNameError(
            f"No installed plugin offers {reference!r}, and no distribution that offers anything has this name. "
            "`poplin plugins` lists all."
        )
    return named


def _load(target: str) -> type[Compliance]:
    module, _, name = target.partition(":")
    suite = getattr(importlib.import_module(module), name, None)
    if not (isinstance(suite, type) and issubclass(suite, Compliance)):
        raise ArgumentValueError(f"{target!r} is no suite: write 'module:Class', of a class derived from one.")
    return suite
