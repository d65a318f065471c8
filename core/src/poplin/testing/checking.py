"""Run the suites on what is installed, without a test file."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

from poplin import registry
from poplin.errors import ArgumentValueError, PoplinError, UnknownNameError
from poplin.registry.kinds import KINDS, get_kind
from poplin.registry.names import fold, parse_reference
from poplin.registry.records import CORE, RUNTIME, Row
from poplin.testing.checks import requirements
from poplin.testing.compliance import Compliance, configured
from poplin.testing.outcomes import Outcome

#: kind → the suite for it, as ``module:class``.
SUITES = {
    "accelerators": "poplin.testing.suites.accelerator:AcceleratorCompliance",
    "strategies": "poplin.testing.suites.strategy:StrategyCompliance",
    "precisions": "poplin.testing.suites.precision:PrecisionCompliance",
    "launchers": "poplin.testing.suites.launcher:LauncherCompliance",
    "environments": "poplin.testing.suites.environment:EnvironmentCompliance",
    "loggers": "poplin.testing.suites.logger:LoggerCompliance",
    "checkpoint_ios": "poplin.testing.suites.checkpoint_io:CheckpointIOCompliance",
}
#: The suite for packages.
PACKAGING = "poplin.testing.suites.packaging:PackagingCompliance"


def suite_for(kind: str) -> type[Compliance]:
    """The suite for a kind of extension.

    Args:
        kind: in the plural, or in the singular.

    Raises:
        ArgumentValueError: there is no such kind.
    """
    return _load(SUITES[get_kind(kind).name])


def check(reference: str, *, suite: str | type[Compliance] | None = None, **settings: Any) -> Iterator[Outcome]:
    """Run the suites on an installed plugin, check by check.

    Nothing but poplin-core is needed: no pytest, and no test file.

    Args:
        reference: ``[kind/][dist:]name``, or the name of a distribution: then its packaging, and all that it offers;
            of names that stand for one class, the first.
        suite: the suite to use, or ``"module:Class"``; by default that of the kind. An author's own suite knows what
            the extension needs, and is used where it is given.
        **settings: attributes of the suite: ``accelerator="acme"``, ``world_size=4``, ``env={...}``...

    Yields:
        The outcome of each check, as soon as it is known.

    Raises:
        UnknownNameError: nothing installed has this name.
        ArgumentValueError: the suite has no such setting.
    """
    rows, distribution = _rows(reference)
    given = _load(suite) if isinstance(suite, str) else suite
    if distribution is not None and given is None:
        yield from run_suite(configured(_load(PACKAGING), distribution=distribution), distribution)
        rows = _one_of_each_class(rows)
    for row in rows:
        if given is not None and getattr(given, "kind", row.kind) != row.kind:
            continue
        name = row.name if row.distribution in (CORE, RUNTIME) else f"{row.distribution}:{row.name}"
        yield from run_suite(configured(given or suite_for(row.kind), name=name, **settings), f"{row.kind}/{row.name}")


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


def _rows(reference: str) -> tuple[list[Row], str | None]:
    """The offers that are meant, and the distribution if it is one that is named."""
    kind, distribution, name = parse_reference(reference)
    rows = registry.rows(load=False)
    offers = [row for row in rows if row.kind in KINDS and row.status != "role"]
    named = [
        row
        for row in offers
        if fold(row.name) == fold(name)
        and (kind is None or row.kind == kind)
        and (distribution is None or fold(row.distribution) == fold(distribution))
    ]
    if named:
        return named, None
    of_package = [row for row in rows if fold(row.distribution) == fold(name)]
    if not of_package or kind is not None or distribution is not None:
        raise UnknownNameError(
            f"No installed plugin offers {reference!r}, and no distribution that offers anything has this name. "
            "`poplin plugins` lists all."
        )
    return [row for row in of_package if row in offers], of_package[0].distribution


def _one_of_each_class(rows: list[Row]) -> list[Row]:
    """The rows without those that stand for a class that another one stands for already."""
    seen: dict[Any, Row] = {}
    for row in rows:
        try:
            key: Any = registry.find(row.kind, f"{row.distribution}:{row.name}").target_class()
        except PoplinError:
            key = row  # its suite will say what is the matter
        seen.setdefault((row.kind, key), row)
    return list(seen.values())


def _load(target: str) -> type[Compliance]:
    module, _, name = target.partition(":")
    suite = getattr(importlib.import_module(module), name, None)
    if not (isinstance(suite, type) and issubclass(suite, Compliance)):
        raise ArgumentValueError(f"{target!r} is no suite: write 'module:Class', of a class derived from one.")
    return suite
