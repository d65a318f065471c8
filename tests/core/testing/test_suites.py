"""How suites run: what a check may do to its processes, what is told of it, and what the others lose by it."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import torch

from poplin.errors import ArgumentValueError, UnknownNameError
from poplin.testing import (
    SEVERAL,
    Case,
    Compliance,
    ComplianceError,
    LoggerCompliance,
    Outcome,
    check,
    requirement,
    run_suite,
    suite_for,
)


class Odd(Compliance):
    """Checks that do to their processes what checks do."""

    kind = "loggers"
    limit = 6
    greeting = "hello"

    @requirement("Odd.one", processes=SEVERAL)
    def test_ranks_are_told(self, case):
        """Ranks."""
        case.expect_equal((case.rank, case.world_size), (int(os.environ["RANK"]), 2), "rank and world size")
        case.expect_equal(os.listdir("."), [], "the current folder")

    @requirement("Odd.two", processes=SEVERAL)
    def test_one_rank_crashes(self, case):
        """Does not."""
        if case.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)

    @requirement("Odd.three", processes=SEVERAL)
    def test_one_rank_hangs(self, case):
        """Does not."""
        if case.rank == 0:
            time.sleep(60)

    @requirement("Odd.four", processes=SEVERAL)
    def test_one_rank_raises(self, case):
        """Does not."""
        if case.rank == 1:
            raise LookupError("no such thing")

    @requirement("Odd.five", processes=SEVERAL)
    def test_one_rank_does_not_claim_it(self, case):
        """Claims it."""
        if case.rank == 1:
            case.not_claimed("flag = False")

    @requirement("Odd.six", processes=SEVERAL)
    def test_another_expectation(self, case):
        """Expects."""
        case.expect(case.rank == 0, "rank 0", f"rank {case.rank}")

    @requirement("Odd.seven", processes=0)
    def test_in_this_process(self, case):
        """Here."""
        case.expect_equal(os.getpid(), _here, "the process")

    @requirement("Odd.eight")
    def test_settings_reach_its_process(self, case):
        """Settings."""
        case.expect_equal(self.greeting, "hello", "the greeting")

    @requirement("Odd.nine", alone=True)
    def test_a_process_is_left(self, case):
        """None is."""
        subprocess.Popen(["sleep", "50"])


_here = os.getpid()


@pytest.fixture(scope="module")
def odd():
    return {outcome.check: outcome for outcome in run_suite(Odd)}


@pytest.mark.slow
def test_each_check_has_its_own_outcome(odd):
    assert {name: outcome.status for name, outcome in odd.items()} == {
        "ranks are told": "passed",
        "one rank crashes": "failed",
        "one rank hangs": "failed",
        "one rank raises": "failed",
        "one rank does not claim it": "not claimed",
        "another expectation": "failed",
        "in this process": "passed",
        "settings reach its process": "passed",
        "a process is left": "failed",
    }


@pytest.mark.slow
def test_a_failure_says_what_happened(odd):
    assert "was killed by SIGSEGV" in odd["one rank crashes"].message
    assert "time.sleep(60)" in odd["one rank hangs"].message or "test_one_rank_hangs" in odd["one rank hangs"].message
    assert "LookupError: no such thing" in odd["one rank raises"].message
    assert odd["one rank does not claim it"].message == "flag = False"
    assert odd["another expectation"].message == textwrap.dedent(
        """\
        Odd.test_another_expectation
          about:    Odd.six
          required: Expects.
          expected: rank 0
          found:    rank 1 (rank 1 of 2)"""
    )
    assert "sleep 50" in odd["a process is left"].message


class Exempt(Odd):
    exempt = {one: "said so" for one in dir(Odd) if one.startswith("test_") and one != "test_in_this_process"}


def test_what_is_exempt_is_not_run():
    told = {outcome.check: (outcome.status, outcome.message) for outcome in run_suite(Exempt)}
    assert told.pop("in this process")[0] == "passed"
    assert set(told.values()) == {("not claimed", "said so")}


def test_a_name_is_checked_without_a_test_file():
    outcomes = [*check("loggers/csv")]
    assert all(isinstance(outcome, Outcome) for outcome in outcomes)
    assert {outcome.subject for outcome in outcomes} == {"loggers/csv"}
    assert {outcome.status for outcome in outcomes} == {"passed", "not claimed"}
    assert [outcome.message for outcome in outcomes if outcome.check == "what was logged can be read back"] == [
        "the suite has no read(): its package can bring a suite that has"
    ]


def _told(found, expected, tolerance=1e-6):
    with pytest.raises(ComplianceError) as caught:
        Case(0, 1, Path()).expect_close(found, expected, "a weight", tolerance)
    return str(caught.value)


def test_tensors_that_differ_are_told_by_the_place_that_differs():
    """Large tensors are cut off, often before the first element that differs."""
    wanted = torch.full((8, 4), 0.25)
    found = wanted.clone()
    found[3, 2] = 0.125
    found[7] = 0.24
    told = _told(found, wanted)
    assert told.endswith("largest difference at [3, 2]: 0.125 instead of 0.25; 5 of 32 differ")
    assert _told(found, wanted, 0.05).endswith("; 1 of 32 differ")  # the others are within the tolerance
    assert _told(torch.tensor(1.0), torch.tensor(2.0)).endswith("largest difference: 1 instead of 2; 1 of 1 differ")
    told = _told(torch.tensor([1.0000003]), torch.tensor([1.0]), 0.0)
    assert "1.00000036 instead of 1;" in told  # digits enough to see it


def test_infinities_and_nan_that_differ_are_told_too():
    nan, inf = math.nan, math.inf
    alike = torch.tensor([nan, inf, -inf, 1.0])
    Case(0, 1, Path()).expect_close(alike, alike.clone(), "a weight")
    told = _told(torch.tensor([nan, inf, 5.0, 1.0]), torch.tensor([nan, inf, 1.0, nan]))
    assert told.endswith("largest difference at [3]: 1 instead of nan; 2 of 4 differ")
    told = _told(torch.tensor([inf, inf]), torch.tensor([inf, -inf]))
    assert told.endswith("largest difference at [1]: inf instead of -inf; 1 of 2 differ")


def test_a_package_is_checked_with_all_that_it_offers():
    outcomes = [*check("poplin-precision")]
    assert [outcome for outcome in outcomes if outcome.status == "failed"] == []
    subjects = list(dict.fromkeys(outcome.subject for outcome in outcomes))
    # one of each class
    assert subjects[0] == "poplin-precision"
    assert set(subjects[1:]) == {"precisions/16-mixed", "precisions/16-true", "precisions/64-true"}


def test_settings_are_those_of_the_suite():
    with pytest.raises(ArgumentValueError, match="no setting 'worldsize'"):
        list(check("csv", worldsize=3))
    with pytest.raises(ArgumentValueError, match="no suite"):
        list(check("csv", suite="poplin.testing:Outcome"))
    with pytest.raises(UnknownNameError, match="csvv"):
        list(check("csvv"))
    assert suite_for("logger") is LoggerCompliance


@pytest.mark.slow
def test_pytest_shows_what_is_not_claimed_as_skipped(tmp_path):
    (tmp_path / "test_it.py").write_text(
        "from poplin.testing import LoggerCompliance\n\n\n"
        "class TestIt(LoggerCompliance):\n    name = 'csv'\n"
        "    exempt = {'test_it_can_be_closed_at_any_time': 'it is never closed'}\n"
    )
    words = ["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not claimed: it is never closed" in done.stdout
    assert "not claimed: the suite has no read()" in done.stdout
