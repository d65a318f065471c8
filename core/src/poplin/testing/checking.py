"""Run the suites on what is installed, without a test file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from poplin import registry
from poplin.errors import ArgumentValueError, PoplinError, UnknownNameError
from poplin.registry.kinds import KINDS, get_kind
from poplin.registry.names import fold, parse_reference
from poplin.registry.records import CORE, RUNTIME, Row
from poplin.testing.checks import requirements
from poplin.testing.compliance import Compliance, configured
from poplin.testing.outcomes import Outcome
from poplin.testing.shipped import Shipped, chosen, load, shipped

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
#: The kind of the suite for packages.
PACKAGES = "packages"
#: The suite for packages.
PACKAGING = "poplin.testing.suites.packaging:PackagingCompliance"
#: Its check that is about the suites of a package.
_BROUGHT = "test_the_suites_that_it_brings_are_for_what_it_offers"


def suite_for(kind: str) -> type[Compliance]:
    """The suite for a kind of extension.

    Args:
        kind: in the plural, or in the singular.

    Raises:
        ArgumentValueError: there is no such kind.
    """
    return load(SUITES[get_kind(kind).name])


def check(reference: str, *, suite: str | type[Compliance] | None = None, **settings: Any) -> Iterator[Outcome]:
    """Run the suites on an installed plugin, check by check.

    Nothing but poplin-core is needed: no pytest, and no test file.

    Args:
        reference: ``[kind/][dist:]name``, or the name of a distribution: then its packaging, and all that it offers;
            of names that stand for one class, the first (but each that has a suite of its own).
        suite: the suite to use for what it is for, or ``"module:Class"``, or ``"file.py:Class"``. By default the one
            that the package brings (entry points of the group ``poplin.compliance``), else that of the kind.
        **settings: attributes of the suite: ``accelerator="acme"``, ``world_size=4``, ``env={...}``...

    Yields:
        The outcome of each check, as soon as it is known.

    Raises:
        UnknownNameError: nothing installed has this name.
        ArgumentValueError: the suite has no such setting, can't be had, or is for nothing that is meant.
    """
    rows, distribution = _rows(reference)
    given = load(suite) if isinstance(suite, str) else suite
    kinds = {row.kind for row in rows} | ({PACKAGES} if distribution is not None else set())
    if given is not None and getattr(given, "kind", None) not in kinds:
        raise ArgumentValueError(
            f"The suite {given.__name__} is for {getattr(given, 'kind', 'no kind')}, and {reference!r} means "
            f"{' and '.join(sorted(kinds)) or 'nothing that has one'}."
        )
    needing = [row for row in rows if _is_installed(row) and (given is None or given.kind != row.kind)]
    brought = {row.location: shipped(row) for row in needing}

    def suite_for_row(row: Row) -> type[Compliance]:
        if given is not None and given.kind == row.kind:
            return given
        return chosen(brought.get(row.location, Shipped((), {})), row.kind, row.name) or suite_for(row.kind)

    if distribution is not None:
        ours = [chosen(found, PACKAGES) for found in brought.values()]
        packaging = given if given is not None and given.kind == PACKAGES else next(filter(None, ours), None)
        yield from run_suite(configured(packaging or load(PACKAGING), distribution=distribution), distribution)
        rows = _one_of_each_class(rows, suite_for_row)
    else:
        yield from _broken_suites({row.distribution: brought[row.location] for row in needing})
    for row in rows:
        name = row.name if row.distribution in (CORE, RUNTIME) else f"{row.distribution}:{row.name}"
        yield from run_suite(configured(suite_for_row(row), name=name, **settings), f"{row.kind}/{row.name}")


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


def _broken_suites(brought: dict[str, Shipped]) -> Iterator[Outcome]:
    """What the check of a package says of its suites, where no package is checked but a name of it."""
    about = next(one for one in requirements(load(PACKAGING)) if one.method == _BROUGHT)
    for distribution, found in brought.items():
        for entry, why in found.broken.items():
            yield Outcome(distribution, "PackagingCompliance", about.title, about.member, "failed", f"{entry}: {why}")


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


def _is_installed(row: Row) -> bool:
    return row.distribution not in (CORE, RUNTIME)


def _one_of_each_class(rows: list[Row], suite_for_row: Callable[[Row], type[Compliance]]) -> list[Row]:
    """The rows without those that stand for a class that another one stands for already, with the same suite."""
    seen: dict[Any, Row] = {}
    for row in rows:
        try:
            key: Any = registry.find(row.kind, f"{row.distribution}:{row.name}").target_class()
        except PoplinError:
            key = row  # its suite will say what is the matter
        seen.setdefault((row.kind, key, suite_for_row(row)), row)
    return list(seen.values())
