"""Launchers with one planted fault each: the check that names it fails, and no other.

Each forks as the built-in does, but for the fault. They are slow: every case launches real ranks.
"""

import os
import subprocess
import sys
import threading

import pytest

from poplin.errors import WorkerError
from poplin.launchers import MultiProcessingLauncher
from poplin.testing import LauncherCompliance, run_suite

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Forks(MultiProcessingLauncher):
    def __init__(self):
        super().__init__("fork")


class Suite(LauncherCompliance):
    launcher = Forks

    def create(self):
        return self.launcher()


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class launcher(Forks):
        def kill(self, signum, group):
            pass


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class launcher(Forks):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()


class LosesTheResult(Suite):
    finds = ("the result comes back", "a large result comes back whole", "a closure runs or is refused by name")

    class launcher(Forks):
        def launch(self, function, *args, **kwargs):
            super().launch(function, *args, **kwargs)


class LosesTheException(Suite):
    finds = "an exception of a rank comes back"

    class launcher(Forks):
        def launch(self, function, *args, **kwargs):
            try:
                return super().launch(function, *args, **kwargs)
            except LookupError:
                return None


class NamesNobody(Suite):
    finds = "a rank that is killed is named"

    class launcher(Forks):
        def launch(self, function, *args, **kwargs):
            try:
                return super().launch(function, *args, **kwargs)
            except WorkerError as error:
                raise WorkerError("a process has failed") from error


class LeavesAProcess(Suite):
    finds = (
        "no process is left",
        "a signal to the launching process ends the ranks",
        "ranks die with the launching process",
    )

    class launcher(Forks):
        def launch(self, function, *args, **kwargs):
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"], start_new_session=True)
            return super().launch(function, *args, **kwargs)


class LeavesVariables(Suite):
    finds = "the launching process is as it was"

    class launcher(Forks):
        def launch(self, function, *args, **kwargs):
            os.environ["ACME_WORLD"] = "2"
            return super().launch(function, *args, **kwargs)


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


@pytest.mark.parametrize("suite", FAULTS, ids=lambda suite: suite.__name__)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    wanted = {suite.finds} if isinstance(suite.finds, str) else set(suite.finds)
    assert set(failed) == wanted, "\n".join(failed.values())
