"""The suites that a package brings for what it offers: entry points of the group ``poplin.compliance``.

An author knows what a check needs to know (how a logger's files are read back, to how many digits a precision computes,
which model a strategy has a plan for), and says it once, in the package; whoever has installed it runs that.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from pathlib import Path

from poplin.errors import ArgumentValueError
from poplin.registry.names import fold, parse_reference
from poplin.testing.compliance import Compliance
from poplin.testing.loading import load_file

#: The group of entry points. Their names are the author's choice: a suite says itself what it is for.
GROUP = "poplin.compliance"


def declared(location: str) -> list[tuple[str, str]]:
    """Name and value of each entry point for a suite in a folder of metadata. Imports nothing.

    Args:
        location: the folder, as in :attr:`Row.location`.
    """
    points = importlib.metadata.PathDistribution(Path(location)).entry_points
    return sorted((point.name, point.value) for point in points if point.group == GROUP)


def shipped(location: str) -> list[type[Compliance]]:
    """The suites that a package declares.

    Raises:
        ArgumentValueError: one can't be had.
    """
    return [load(value) for _, value in declared(location)]


def chosen(suites: list[type[Compliance]], kind: str, name: str | None = None) -> type[Compliance] | None:
    """The suite among those of a package for ``kind`` and ``name``: one of this name, else one without a name."""
    of_kind = [suite for suite in suites if getattr(suite, "kind", None) == kind]
    for suite in of_kind:
        if suite.name is not None and name is not None and fold(parse_reference(suite.name)[2]) == fold(name):
            return suite
    return next((suite for suite in of_kind if suite.name is None), None)


def load(target: str) -> type[Compliance]:
    """The class that ``module:Class`` or ``path/to/file.py:Class`` means.

    Raises:
        ArgumentValueError: it can't be had, or is no suite.
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
    except Exception as error:  # the author's code: anything may come out of it
        raise _broken(target, error) from error
    suite = getattr(module, name, None)
    if not (isinstance(suite, type) and issubclass(suite, Compliance)):
        found = "missing" if suite is None else "no class that is derived from one"
        raise ArgumentValueError(f"{target!r} is no suite: {name!r} in {place!r} is {found}.")
    return suite


def _broken(target: str, error: Exception) -> ArgumentValueError:
    return ArgumentValueError(f"The suite {target!r} can't be imported: {type(error).__name__}: {error}")
