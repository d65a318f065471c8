"""The suite for loggers.

How to use it::

    from poplin.testing import LoggerCompliance

    class TestAcme(LoggerCompliance):
        name = "acme"                 # or: def create(self): return AcmeLogger("some folder")

        def read(self, logger):       # what it has written: a mapping for each call of log_metrics, in order
            return json_lines(logger.log_dir)

Each check runs in an empty working directory of its own, so a logger that writes below the current folder litters
nothing. Without ``read`` what was written is not looked at: those checks are reported as not claimed.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from poplin import Fabric
from poplin.strategies import ParallelStrategy
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.extension import Common
from poplin.testing.suites.listening import Listening

_HYPERPARAMETERS = {"lr": 0.1, "name": "small", "nested": {"layers": [1, 2], "flag": True, "nothing": None}}


class LoggerCompliance(Common):
    """What every logger must do: take metrics by keyword, write on rank 0 alone, lose nothing, close at any time."""

    kind = "loggers"

    def read(self, logger: Any) -> Sequence[Mapping[str, float]] | None:
        """What ``logger`` has written, a mapping for each call of ``log_metrics``; None if nobody can tell."""
        return None

    def _rows(self, case: Case, logger: Any) -> Sequence[Mapping[str, float]]:
        rows = self.read(logger)
        if rows is None:
            case.not_claimed("the suite has no read(): its package can bring a suite that has")
        return rows

    @requirement("Logger.log_metrics")
    def test_metrics_are_taken_by_keyword_with_and_without_a_step(self, case: Case) -> None:
        """``log_metrics(metrics=..., step=...)`` takes plain numbers; the step may be None."""
        logger = self.create()
        for step in (0, 3, None):
            error = error_or_none(lambda step=step: logger.log_metrics(metrics={"loss": 0.5, "n": 2}, step=step))  # type: ignore[misc]
            case.expect(error is None, f"log_metrics(metrics=..., step={step}) without an error", repr(error))

    @requirement("Logger.log_metrics")
    def test_numbers_that_are_not_finite_are_no_error(self, case: Case) -> None:
        """A loss that is NaN or infinite is logged: it is when metrics are needed most."""
        logger = self.create()
        metrics = {"nan": math.nan, "inf": math.inf, "minus": -math.inf}
        error = error_or_none(lambda: logger.log_metrics(metrics=metrics, step=0))
        case.expect(error is None, "NaN and infinity without an error", repr(error))

    @requirement("Logger.log_metrics")
    def test_what_was_logged_can_be_read_back(self, case: Case) -> None:
        """Each call's metrics are there when the run is over, with their names and values."""
        logger = self.create()
        logged = [{"loss": 0.5, "deep/accuracy": 0.25}, {"loss": 0.125, "deep/accuracy": 1.0}, {"late": 3.0}]
        for step, metrics in enumerate(logged):
            logger.log_metrics(metrics=metrics, step=step)
        _call(logger, "finalize", "success")
        rows = self._rows(case, logger)
        case.expect_equal(len(rows), len(logged), "the number of rows")
        for row, metrics in zip(rows, logged, strict=True):
            found = {name: value for name, value in row.items() if name in metrics}
            case.expect(
                found.keys() == metrics.keys()
                and all(math.isclose(float(found[name]), value, rel_tol=1e-6) for name, value in metrics.items()),
                f"the metrics {metrics}",
                dict(row),
            )

    @requirement("Logger.save")
    def test_what_was_saved_outlives_a_crash(self, case: Case) -> None:
        """After ``save`` the metrics are on the disk, whatever becomes of the process."""
        if type(self).read is LoggerCompliance.read:
            case.not_claimed("the suite has no read(): its package can bring a suite that has")
        logger = self.create()
        for name in ("version", "log_dir"):
            getattr(logger, name, None)  # both processes mean the same run from here on
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                for step in range(2):
                    logger.log_metrics(metrics={"loss": 0.5}, step=step)
                _call(logger, "save")
                code = 0
            finally:
                os._exit(code)  # nothing is closed or flushed
        case.expect_equal(os.waitpid(pid, 0)[1], 0, "exit code of a process that logs, saves and crashes")
        case.expect_equal(len(self._rows(case, logger)), 2, "the number of rows on the disk")

    @requirement("Logger.log_hyperparams")
    def test_hyperparameters_may_be_a_dictionary_or_a_namespace(self, case: Case) -> None:
        """Nested dictionaries and a Namespace are taken without an error."""
        logger = self.create()
        if not hasattr(logger, "log_hyperparams"):
            case.not_claimed("it has no log_hyperparams")
        for params in (_HYPERPARAMETERS, argparse.Namespace(**_HYPERPARAMETERS)):
            error = error_or_none(lambda params=params: logger.log_hyperparams(params))  # type: ignore[misc]
            case.expect(error is None, f"hyperparameters as a {type(params).__name__}", repr(error))

    @requirement("Logger.finalize")
    def test_it_can_be_closed_at_any_time(self, case: Case) -> None:
        """``finalize`` and ``save`` do nothing where nothing was logged, and may be called again."""
        for used in (False, True):
            logger = self.create()
            if used:
                logger.log_metrics(metrics={"loss": 0.5}, step=0)
            for name, arguments in (("save", ()), ("finalize", ("success",)), ("finalize", ("failed",)), ("save", ())):
                error = error_or_none(lambda: _call(logger, name, *arguments))  # noqa: B023 - called at once
                case.expect(error is None, f"{name}{arguments} without an error", repr(error))

    @requirement("Logger.log_metrics")
    def test_fabric_logs_to_it_and_closes_it(self, case: Case) -> None:
        """``fabric.log`` reaches it with plain numbers, and ``close`` finalizes it."""
        import torch

        logger = self.create()
        fabric = case.use(Fabric(accelerator="cpu", devices=1, strategy="single_device", loggers=logger))
        fabric.log("loss", torch.tensor(0.5), step=0)
        fabric.close()
        rows = self._rows(case, logger)
        case.expect_equal([float(row["loss"]) for row in rows], [0.5], "the one metric that was logged")

    @requirement("Logger.every_rank", processes=SEVERAL)
    def test_only_rank_zero_writes(self, case: Case) -> None:
        """Ranks but the first open no file for writing and connect to nobody, unless ``every_rank`` says so."""
        logger = self.create()
        if getattr(logger, "every_rank", False):
            case.not_claimed("every_rank = True")
        fabric = self._fabric(case, logger)
        with Listening("write", "os.mkdir", "os.rename", "socket.connect", "subprocess.Popen") as heard:
            for step in range(2):
                fabric.log_dict({"loss": 0.5}, step=step)
            _call(logger, "log_hyperparams", {"lr": 0.1})
            _call(logger, "save")
        fabric.barrier("logged")
        fabric.close()
        if case.rank:
            case.expect(not heard.events, f"nothing written on rank {case.rank}", ", ".join(heard.events))

    @requirement("Logger.log_dir", processes=SEVERAL)
    def test_every_rank_knows_the_same_run(self, case: Case) -> None:
        """``name``, ``version`` and ``log_dir`` are the same on every rank once the processes are up."""
        logger = self.create()
        fabric = self._fabric(case, logger)
        mine = [getattr(logger, name, None) for name in ("name", "version", "log_dir")]
        first = fabric.broadcast(mine)
        case.expect_equal(mine, first, "name, version and log_dir, as on rank 0")

    def _fabric(self, case: Case, logger: Any) -> Fabric:
        strategy = ParallelStrategy(timeout=30)
        return case.use(Fabric(accelerator="cpu", strategy=strategy, devices=case.world_size, loggers=logger))


def _call(logger: Any, name: str, *arguments: Any) -> None:
    """Call what a logger may leave out."""
    if hasattr(logger, name):
        getattr(logger, name)(*arguments)
