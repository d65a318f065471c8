"""The suites that a package brings for what it offers: entry points of the group ``poplin.compliance``.

An author knows what a check needs to know (how a logger's files are read back, to how many digits a precision computes,
which model a strategy has a plan for), and says it once, in the package; whoever has installed it runs that.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

from importlib_metadata import Distribution, DistributionFinder, MetadataPathFinder, PathDistribution

from poplin.errors import ArgumentValueError
from poplin.registry.names import fold, parse_reference
from poplin.registry.records import Row
from poplin.testing.compliance import Compliance, check_exempt
from poplin.testing.loading import load_file
from poplin.utilities.unwinding import let_through

#: The group of entry points. Their names are the author's choice: a suite says itself what it is for.
GROUP = "poplin.compliance"


class Shipped(NamedTuple):
    """What a package brings."""

    suites: tuple[type[Compliance], ...]
    #: Why others can't be had, by the name of the entry point.
    broken: dict[str, str]


def metadata_of(row: Row) -> Distribution:
    """The metadata of the distribution of an offer: in a folder, or in an archive on the path."""
    location = Path(row.location)
    if location.is_dir():
        return PathDistribution(location)
    context = DistributionFinder.Context(name=row.distribution, path=[row.location])  # type: ignore[no-untyped-call]
    return next(iter(MetadataPathFinder.find_distributions(context)), None) or PathDistribution(location)


def shipped(row: Row) -> Shipped:
    """The suites that the package of ``row`` declares."""
    try:
        points = sorted((one.name, one.value) for one in metadata_of(row).entry_points if one.group == GROUP)
    except Exception as error:  # the file may be in any state
        return Shipped((), {"entry_points.txt": f"it can't be read: {type(error).__name__}: {error}"})
    suites, broken = [], {}
    for name, value in points:
        try:
            suites.append(load(value))
        except ArgumentValueError as error:
            broken[name] = str(error)
    return Shipped(tuple(suites), broken)


def chosen(suites: Shipped, kind: str, name: str | None = None) -> type[Compliance] | None:
    """The suite among those of a package for ``kind`` and ``name``: one of this name, else one without a name."""
    of_kind = [suite for suite in suites.suites if getattr(suite, "kind", None) == kind]
    for suite in of_kind:
        if suite.name is not None and name is not None and fold(parse_reference(suite.name)[2]) == fold(name):
            return suite
    return next((suite for suite in of_kind if suite.name is None), None)


def load(target: str) -> type[Compliance]:
    """The class that ``module:Class`` or ``path/to/file.py:Class`` means.

    Raises:
        ArgumentValueError: it can't be had, is no suite, or is one that says something impossible.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise ArgumentValueError(f"{target!r} is no suite: write 'module:Class', or 'file.py:Class'.")
    try:
        module = load_file(place) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or f"{place}.".startswith(f"{error.name}."):
            raise ArgumentValueError(
                f"There is no module {place!r} for the suite {target!r}. A file is written with its path: "
                "tests/test_it.py:Class."
            ) from None
        raise _broken(target, error) from error
    except FileNotFoundError:
        raise ArgumentValueError(f"There is no file {place!r} for the suite {target!r}.") from None
    except BaseException as error:  # the author's code: anything may come out of it
        let_through(error)
        raise _broken(target, error) from error
    suite = getattr(module, name, None)
    if not (isinstance(suite, type) and issubclass(suite, Compliance)):
        found = "missing" if suite is None else "no class that is derived from one"
        raise ArgumentValueError(f"{target!r} is no suite: {name!r} in {place!r} is {found}.")
    _check_name(target, suite)
    check_exempt(suite)
    return suite


def _check_name(target: str, suite: type[Compliance]) -> None:
    if suite.name is None:
        return
    try:
        parse_reference(suite.name)
    except (ArgumentValueError, TypeError, AttributeError) as error:
        raise ArgumentValueError(
            f"The suite {target!r} has name = {suite.name!r}; give the name that it is for, or None for its whole kind."
        ) from error


def _broken(target: str, error: BaseException) -> ArgumentValueError:
    return ArgumentValueError(f"The suite {target!r} can't be imported: {type(error).__name__}: {error}")
