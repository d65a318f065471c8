"""The base of the compliance suites, and what the checks of every kind of extension are.

A suite is a class. Subclass it in a test file, and pytest runs its checks::

    from poplin.testing import StrategyCompliance

    class TestAcme(StrategyCompliance):
        name = "acme"

or run it without a test file: ``poplin plugins check acme``, or :func:`poplin.testing.check`. Where the name alone
does not make the right object, override ``create``. A check that the extension does not claim to pass (it says
``picklable = False``, for instance) is skipped, with the reason "not claimed".

Checks that need ranks run in processes of their own; all that need the same number share one launch.
"""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from poplin.errors import ArgumentValueError
from poplin.testing.case import Case
from poplin.testing.checks import SEVERAL, Requirement, requirements
from poplin.testing.launch import Result, run_in_processes
from poplin.testing.outcomes import ComplianceError, NotClaimed
from poplin.testing.rank import run_check


class Compliance:
    """Base of the suites. What is here holds for all of them.

    Set what is needed as class attributes, or override the methods.
    """

    #: The kind of extension, in the plural.
    kind: ClassVar[str]
    #: What is looked up, as ``[kind/][dist:]name``; or override :meth:`create`.
    name: str | None = None
    #: Accelerator that the checks run on.
    accelerator: str = "cpu"
    #: Number of ranks of the checks that need several.
    world_size: int = 2
    #: Environment variables of the processes of the checks.
    env: Mapping[str, str] = {}
    #: Seconds that one check may take.
    limit: float = 60
    #: Whether processes are forked from one that has imported torch; False where a library does not survive that.
    preload: bool = True
    #: Whether a single process of the checks is told its rank, as torchrun would.
    ranks_exist: bool = False
    #: method of a check (``test_...``) → why this extension does not claim it.
    exempt: Mapping[str, str] = {}

    _results: ClassVar[dict[str, Result]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._results = {}

    def create(self) -> Any:
        """A new object of the extension that is tested. The default looks :attr:`name` up.

        Raises:
            ArgumentValueError: there is no name.
            LookupFailedError: the name can't be had.
        """
        from poplin import registry

        if self.name is None:
            raise ArgumentValueError(f"{type(self).__name__} names nothing to test: give `name`, or override create().")
        return registry.find(self.kind, self.name).create()

    def prepare(self) -> None:
        """Called once in each process of the checks, before them. The default does nothing."""

    # --- running

    def settle(self, about: Requirement) -> None:
        """Raise what came of a check: nothing, ComplianceError or NotClaimed."""
        result = self.outcome(about)
        if result.status == "failed":
            raise ComplianceError(result.message) from None
        if result.status == "not claimed":
            raise NotClaimed(f"not claimed: {result.message}")

    def outcome(self, about: Requirement) -> Result:
        """What comes of a check. Those that share a launch run when the first of them is asked for."""
        check_exempt(type(self))
        results = type(self)._results
        if about.method not in results:
            results |= self._run(about)
        result = results[about.method]
        if result.status != "failed":
            return result
        head = f"{type(self).__name__}.{about.method}\n  about:    {about.member}\n  required: {about.doc}"
        return Result("failed", f"{head}\n{result.message}")

    def _run(self, about: Requirement) -> dict[str, Result]:
        if about.method in self.exempt:
            return {about.method: Result("not claimed", self.exempt[about.method])}
        if about.processes == 0:
            with tempfile.TemporaryDirectory(prefix="poplin-check-") as folder:
                told = run_check(self, about, Case(0, 1, Path(folder)))
            return {about.method: Result(told["status"], told["message"])}  # type: ignore[arg-type]
        sharing = [
            one
            for one in requirements(type(self))
            if one.processes == about.processes and one.method not in self.exempt
        ]
        return self.run_in_processes(sharing, self.world_size if about.processes == SEVERAL else about.processes)

    def run_in_processes(self, checks: Sequence[Requirement], processes: int) -> dict[str, Result]:
        """Run checks that share a launch, and return what came of each, by method."""
        return run_in_processes(self, checks, processes)


def configured(suite: type[Compliance], **attributes: Any) -> type[Compliance]:
    """``suite`` with other attributes, in this process and in those of its checks.

    Args:
        suite: its class.
        **attributes: what JSON can hold.

    Raises:
        ArgumentValueError: the suite has no such attribute.
    """
    for name, value in attributes.items():
        if not hasattr(suite, name) or name.startswith("_") or callable(getattr(suite, name)):
            raise ArgumentValueError(f"{suite.__name__} has no setting {name!r}.")
        json.dumps(value)
    if not attributes:
        return suite
    return type(suite.__name__, (suite,), {**attributes, "_given": attributes, "__module__": suite.__module__})


def check_exempt(suite: type[Compliance]) -> None:
    """Refuse exemptions of what is no check.

    Not where the class is made: one that is wrong must not take the others of its file with it.

    Raises:
        ArgumentValueError: with the check that may be meant.
    """
    for method in suite.exempt:
        if hasattr(suite, method):
            continue
        known = {one.method: one for one in requirements(suite)}
        near = difflib.get_close_matches(f"test_{method.replace(' ', '_').removeprefix('test_')}", known, n=1)
        hint = f" Is it {near[0]!r}?" if near else " Its checks: " + ", ".join(known)
        raise ArgumentValueError(f"{suite.__name__}.exempt names {method!r}, and the suite has no such check.{hint}")
