"""Loggers with one planted fault each: the check that names it fails, and no other."""

import json
import os
import threading
from argparse import Namespace
from pathlib import Path

import pytest

from poplin.loggers import Logger
from poplin.testing import LoggerCompliance, run_suite


class Lines(Logger):
    """One line of JSON for each call, below the current folder. Without a fault."""

    def __init__(self):
        self.rows = []

    def log_metrics(self, metrics, step=None):
        self.append(metrics)

    def append(self, metrics):
        with open("metrics.jsonl", "a") as file:
            file.write(json.dumps(metrics) + "\n")


class Suite(LoggerCompliance):
    slow = True  # those that are not are run with the ordinary tests
    logger = Lines

    def create(self):
        return self.logger()

    def read(self, logger):
        path = Path("metrics.jsonl")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


class Sound(Suite):
    slow = False
    finds = None


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class logger(Lines):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class logger(Lines):
        def log_graph(self):
            pass


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class logger(Lines):
        def teardown(self):
            if not hasattr(self, "used"):
                raise AttributeError("the file was never opened")

        def log_metrics(self, metrics, step=None):
            self.used = True
            self.append(metrics)

        def processes_launched(self, strategy):
            self.used = True


class NeedsStep(Suite):
    finds = "metrics are taken by keyword with and without a step"

    class logger(Lines):
        def log_metrics(self, metrics, step=None):
            self.append({**metrics, "step": int(step)})


class RefusesNaN(Suite):
    finds = "numbers that are not finite are no error"

    class logger(Lines):
        def log_metrics(self, metrics, step=None):
            json.dumps(metrics, allow_nan=False)
            self.append(metrics)


class LosesNewColumns(Suite):
    slow = False
    finds = "what was logged can be read back"

    class logger(Lines):
        def log_metrics(self, metrics, step=None):
            self.columns = getattr(self, "columns", None) or set(metrics)
            if set(metrics) <= self.columns:
                self.append(metrics)


class SavesAtTheEnd(Suite):
    finds = "what was saved outlives a crash"

    class logger(Lines):
        def log_metrics(self, metrics, step=None):
            self.rows.append(metrics)

        def save(self):
            pass

        def finalize(self, status):
            for row in self.rows:
                self.append(row)
            self.rows.clear()


class NoNamespace(Suite):
    finds = "hyperparameters may be a dictionary or a namespace"

    class logger(Lines):
        def log_hyperparams(self, params, *args, **kwargs):
            if isinstance(params, Namespace):
                raise TypeError("a dictionary, please")


class ClosesOnce(Suite):
    finds = "it can be closed at any time"

    class logger(Lines):
        def finalize(self, status):
            if hasattr(self, "closed"):
                raise ValueError("I/O operation on closed file")
            self.closed = True


class ForgetsOnClose(Suite):
    finds = "fabric logs to it and closes it"

    class logger(Lines):
        def finalize(self, status):
            if len(Path("metrics.jsonl").read_text().splitlines()) == 1 if Path("metrics.jsonl").exists() else False:
                os.truncate("metrics.jsonl", 0)


class WritesOnEveryRank(Suite):
    slow = False
    finds = "only rank zero writes"

    class logger:
        """No subclass of Logger, whose guard it lacks."""

        def log_metrics(self, metrics, step=None):
            Lines.append(self, metrics)


class VersionOfItsOwn(Suite):
    finds = "every rank knows the same run"

    class logger(Lines):
        @property
        def version(self):
            return os.getpid()


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    outcomes = [*run_suite(suite)]
    failed = {outcome.check: outcome.message for outcome in outcomes if outcome.status == "failed"}
    assert set(failed) == ({suite.finds} if suite.finds else set()), "\n".join(failed.values())
    for outcome in outcomes:
        if outcome.status == "failed":
            for part in (
                outcome.check.replace(" ", "_"),
                f"about:    {outcome.member}",
                "required:",
                "expected:",
                "found:",
            ):
                assert part in outcome.message


def test_every_check_of_loggers_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    named = {suite.finds for suite in FAULTS} - {None} | {"it is made without arguments and is of its kind"}
    assert {one.title for one in requirements(LoggerCompliance)} == named
