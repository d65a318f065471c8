"""How suites run: what a check may do to its processes, what is told of it, and what the others lose by it."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from poplin.errors import ArgumentValueError, UnknownNameError
from poplin.testing import (
    SEVERAL,
    Compliance,
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
