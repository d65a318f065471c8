"""How a launching process learns the exit code of a process that is not its child."""

import multiprocessing
import subprocess
import sys

import pytest

from poplin.launchers.host import Host, Member


def watched(codes, returned=False):
    """A rank that is gone and reaped, and whose exit code comes when ``codes`` has been asked for it often enough."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ours, theirs = multiprocessing.Pipe()
    theirs.close()
    answers = iter(codes)
    member = Member(0, gone.pid, lambda: next(answers, codes[-1]), ours, must_return=True, returned=returned)
    host = Host([member], 1, 1.0, ("POPLIN_TEST_MARK", "none"))
    while not host.ended:
        host.step(0.01)
    return host


def test_an_exit_code_that_comes_late_is_awaited():
    """A forkserver reaps its child first, and then writes the code."""
    host = watched([None, None, None, -9])
    assert "SIGKILL" in str(host.first.error(1))
    assert host.members[0].code == -9


@pytest.mark.parametrize("returned", [True, False])
def test_an_exit_code_that_somebody_else_took_is_not_awaited_for_ever(returned):
    host = watched([None], returned)
    assert host.members[0].code == 0
    assert (host.first is None) == returned
