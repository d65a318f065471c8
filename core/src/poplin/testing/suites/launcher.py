"""The suite for launchers.

How to use it::

    from poplin.testing import LauncherCompliance

    class TestAcme(LauncherCompliance):
        name = "acme"                 # or: def create(self): return AcmeLauncher(...), in a module of the package

Two real ranks are launched on the CPU, again and again: each check costs some seconds. ``needs_function`` is read:
launchers that call a function in new processes, and those that run the script in each, are held to what they do.
"""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from poplin.testing.case import Case
from poplin.testing.checks import requirement
from poplin.testing.launch import describe
from poplin.testing.processes import Program
from poplin.testing.programs import launched
from poplin.testing.suites.extension import Common

_PROGRAM = Path(launched.__file__)
_TOGETHER = ("result", "large", "registration", "closure", "raises", "killed")


class _Told(NamedTuple):
    """What came of one case."""

    #: Exit code of the launching process.
    code: int
    #: What the processes printed.
    output: str
    #: What each rank left, by rank.
    ranks: dict[int, dict[str, Any]]
    #: What the processes that came back from the launch told.
    launches: list[dict[str, Any]]
    #: The ranks whose ``finally`` blocks ran.
    unwound: set[int]
    #: What was left running.
    left: str


class LauncherCompliance(Common):
    """What every launcher must do: start the ranks, bring results and errors back, and leave no process."""

    kind = "launchers"
    limit = 120
    #: Seconds that helpers of the launcher's (daemons of a cluster, say) may live on after the launching process.
    patience: float = 10

    _cases: ClassVar[dict[str, _Told]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._cases = {}

    @requirement("Launcher.launch", processes=0)
    def test_the_function_runs_once_in_each_rank(self, case: Case) -> None:
        """There are as many ranks as devices, each with its own rank, and their process group works."""
        told = self._told("result")
        case.expect_equal(told.code, 0, f"exit code of the launching process, which printed {told.output!r}")
        found = {rank: (one["rank"], one["size"], one["total"]) for rank, one in told.ranks.items()}
        case.expect_equal(found, {0: (0, 2, 3), 1: (1, 2, 3)}, "rank, world size and sum over the ranks")
        pids = {one["pid"] for one in told.ranks.values()}
        case.expect_equal(len(pids), 2, "the number of processes that ran it")

    @requirement("Launcher.launch", processes=0)
    def test_the_result_comes_back(self, case: Case) -> None:
        """Rank 0's result is returned where the caller spawned the ranks; each rank's own where all run the script."""
        results = sorted(one["result"] for one in self._told("result").launches)
        if self.create().needs_function:
            case.expect_equal(results, ["result of rank 0"], "what launch() returned")
        else:
            case.expect_equal(results, ["result of rank 0", "result of rank 1"], "what launch() returned in the ranks")

    @requirement("Launcher.launch", processes=0)
    def test_a_large_result_comes_back_whole(self, case: Case) -> None:
        """A result of some megabytes does not get stuck in a pipe."""
        if not self.create().needs_function:
            case.not_claimed("needs_function = False: each rank keeps its own result")
        case.expect_equal(
            [one["result"] for one in self._told("large").launches], [launched.LARGE], "length of the result"
        )

    @requirement("Launcher.launch", processes=0)
    def test_what_the_script_registered_is_known_in_the_ranks(self, case: Case) -> None:
        """``poplin.register`` of the script counts in every rank, ahead of everything else."""
        told = self._told("registration")
        found = {rank: one.get("registered") for rank, one in told.ranks.items()}
        case.expect_equal(found, {0: "OfTheScript", 1: "OfTheScript"}, f"the class in each rank ({told.output!r})")

    @requirement("Launcher.launch", processes=0)
    def test_a_closure_runs_or_is_refused_by_name(self, case: Case) -> None:
        """A function that can't be pickled runs, or is a LaunchError that says what can't be sent; never a hang."""
        for told in self._told("closure").launches:
            if told["error"] is None:
                case.expect(told["result"] in (7, 8), "the closure's result", told["result"])
            else:
                case.expect("LaunchError" in told["bases"], "LaunchError", f"{told['error']}: {told['text']}")
                case.expect("lambda" in told["text"], "a message that names the function", told["text"])

    @requirement("Launcher.launch", processes=0)
    def test_an_exception_of_a_rank_comes_back(self, case: Case) -> None:
        """The first failing rank's own error is raised where it was launched, or ends the run with its message."""
        told = self._told("raises")
        if self.create().needs_function:
            found = [(one["error"], one["text"]) for one in told.launches]
            fits = len(found) == 1 and "LookupError" in told.launches[0]["bases"]
            case.expect(fits, "the LookupError of rank 1, raised by launch()", found)
            case.expect("on purpose" in found[0][1], "its message", found[0][1])
        else:
            case.expect(told.code != 0, "an exit code that is not 0", told.code)
            case.expect("on purpose" in told.output, "the message of rank 1's LookupError", told.output)

    @requirement("Launcher.launch", processes=0)
    def test_the_other_ranks_unwind_when_one_fails(self, case: Case) -> None:
        """Ranks that must end because another failed run their ``finally`` blocks."""
        case.expect_equal(self._told("raises").unwound, {0, 1}, "the ranks whose finally blocks ran")

    @requirement("Launcher.launch", processes=0)
    def test_a_rank_that_is_killed_is_named(self, case: Case) -> None:
        """Where a rank is killed an error names the rank and the signal, and the others are ended."""
        told = self._told("killed")
        if self.create().needs_function:
            case.expect_equal([one["error"] for one in told.launches], ["WorkerError"], "what launch() raised")
            text = told.launches[0]["text"]
        else:
            case.expect(told.code != 0, "an exit code that is not 0", told.code)
            text = told.output
        case.expect("SIGKILL" in text and "ank 1" in text, "a message that names rank 1 and SIGKILL", text)

    @requirement("Launcher.launch", processes=0)
    def test_the_launching_process_is_as_it_was(self, case: Case) -> None:
        """After a launch, good or bad, variables and signal handlers are what they were."""
        if not self.create().needs_function:
            case.not_claimed("needs_function = False: the launching process is a rank itself")
        for name in ("result", "raises"):
            for told in self._told(name).launches:
                case.expect(not told["changed"], f"nothing changed by the case {name!r}", told["changed"])

    @requirement("Launcher.launch", processes=0)
    def test_no_process_is_left(self, case: Case) -> None:
        """Whatever comes of a launch, when it is over no process of it lives."""
        for name in ("result", "raises", "killed"):
            left = self._told(name).left
            case.expect(not left, f"no process left by the case {name!r}", left)

    @requirement("Launcher.kill", processes=0)
    def test_a_signal_to_the_launching_process_ends_the_ranks(self, case: Case) -> None:
        """Ctrl-C in the launching process ends every rank, ``finally`` blocks run, and no process is left."""
        told = self._interrupted(signal.SIGINT)
        case.expect(told.code != 0, "an exit code that is not 0", told.code)
        case.expect(not told.left, "no process left", told.left)
        case.expect_equal(told.unwound, {0, 1}, "the ranks whose finally blocks ran")

    @requirement("Launcher.launch", processes=0)
    def test_ranks_die_with_the_launching_process(self, case: Case) -> None:
        """When the launching process is killed, its ranks do not live on."""
        told = self._interrupted(signal.SIGKILL)
        case.expect(not told.left, "no process left", told.left)

    # --- running

    def _told(self, name: str) -> _Told:
        if name not in self._cases:
            together = _TOGETHER if self.create().needs_function else (name,)
            self._cases.update(self._launched(together))
        return self._cases[name]

    def _launched(self, names: tuple[str, ...]) -> dict[str, _Told]:
        folder = Path(tempfile.mkdtemp(prefix="poplin-launcher-"))
        try:
            with Program(_PROGRAM, self._arguments(names, folder), env=dict(self.env)) as program:
                return dict(zip(names, self._ended(program, names, folder), strict=True))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _interrupted(self, signum: int) -> _Told:
        folder = Path(tempfile.mkdtemp(prefix="poplin-launcher-"))
        try:
            with Program(_PROGRAM, self._arguments(("waits",), folder), env=dict(self.env)) as program:
                place = folder / "waits"
                program.wait_for(lambda _: all((place / f"waits{rank}").exists() for rank in range(2)), self.limit)
                program.send(signum)
                return self._ended(program, ("waits",), folder)[0]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _arguments(self, names: tuple[str, ...], folder: Path) -> list[str]:
        return [",".join(names), json.dumps(describe(type(self))), str(folder)]

    def _ended(self, program: Program, names: tuple[str, ...], folder: Path) -> list[_Told]:
        left, code = "", 0
        try:
            # the cases that share a program run one after the other
            code = program.end(self.limit * len(names), self.patience)
        except AssertionError as error:
            ended = program.process.poll()
            left, code = str(error), 1 if ended is None else ended
        return [_collect(folder / name, code, program.output, left) for name in names]


def _collect(place: Path, code: int, output: str, left: str) -> _Told:
    ranks = {int(path.stem.removeprefix("rank")): json.loads(path.read_text()) for path in place.glob("rank*.json")}
    launches = [json.loads(path.read_text()) for path in sorted(place.glob("told*.json"))]
    unwound = {int(path.name.removeprefix("finally")) for path in place.glob("finally*")}
    return _Told(code, output, ranks, launches, unwound, left)
