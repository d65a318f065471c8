"""``poplin plugins check``: run the compliance suites, and report in plain lines."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from poplin.cli.plugins import plugins_print_to_stderr, raise_unknown
from poplin.errors import UnknownNameError
from poplin.registry import rows
from poplin.registry.kinds import KINDS
from poplin.registry.names import fold
from poplin.testing import Outcome
from poplin.testing import check as run_checks

#: How an outcome begins.
_MARKS = {"passed": "passed     ", "failed": "FAILED     ", "not claimed": "not claimed"}

#: How much of a reason is repeated, in characters.
_SHORT = 60


def check(reference: str, *, suite: str | None, settings: Mapping[str, Any], as_json: bool) -> int:
    """Run the suites on an installed plugin, and print what came of each check.

    Args:
        reference: ``[kind/][dist:]name``, or the name of a distribution.
        suite: ``module:Class`` or ``file.py:Class`` of the author's own suite; the current folder is looked in, too.
        settings: attributes of the suite.
        as_json: print a list of objects when all is done, instead of lines as it goes.

    Returns:
        1 if a check failed, or if nothing was checked; else 0.

    Raises:
        LookupFailedError: nothing installed has this name.
        ArgumentValueError: there is no such suite, or it has no such setting.
    """
    if suite is not None and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # as `python -m` has it
    start = time.monotonic()
    outcomes: list[Outcome] = []
    if as_json:
        with plugins_print_to_stderr():
            outcomes += _outcomes(reference, suite, settings)
    else:
        for outcome in _outcomes(reference, suite, settings):
            _print(outcome, outcomes)
            outcomes.append(outcome)
    counts: Counter[str] = Counter(outcome.status for outcome in outcomes)
    if as_json:
        print(json.dumps([outcome._asdict() for outcome in outcomes], indent=2))
    else:
        told = ", ".join(f"{counts[status]} {status}" for status in _MARKS if counts[status]) or "nothing to check"
        print(f"\n{reference}: {told} ({time.monotonic() - start:.0f} s)")
    return 1 if counts["failed"] or not outcomes else 0


def _outcomes(reference: str, suite: str | None, settings: Mapping[str, Any]) -> Iterator[Outcome]:
    try:
        yield from run_checks(_subject(reference), suite=suite, **settings)
    except UnknownNameError:
        raise_unknown(reference)  # it knows what may have been meant


def _subject(reference: str) -> str:
    """What is checked: the whole distribution of something that offers no name (a factory of callbacks, say)."""
    found = [row for row in rows(load=False) if row.kind not in KINDS and fold(row.name) == fold(reference)]
    return found[0].distribution if found else reference


def _print(outcome: Outcome, before: Sequence[Outcome]) -> None:
    if not before or outcome.subject != before[-1].subject:
        print(f"{chr(10) if before else ''}{outcome.subject} ({outcome.suite})")
    line = f"  {_MARKS[outcome.status]}  {outcome.check}"
    if outcome.status == "not claimed":
        line += f" ({_reason(outcome, before)})"
    print(line)
    if outcome.status == "failed":
        print(textwrap.indent(outcome.message, "      "))
    sys.stdout.flush()


def _reason(outcome: Outcome, before: Sequence[Outcome]) -> str:
    """Why a check is not claimed; in short where it was told in full: forty checks may have one reason."""
    if any((one.subject, one.message) == (outcome.subject, outcome.message) for one in before):
        short = textwrap.shorten(outcome.message, _SHORT, placeholder=" ...")
        return outcome.message if short == outcome.message else f"as above: {short}"
    return outcome.message
