"""What the scripts of the multi-process tests start with: a strategy without a Fabric."""

from __future__ import annotations

import textwrap

PREAMBLE = '''
import os
import time
import warnings
from datetime import timedelta
from types import SimpleNamespace

warnings.simplefilter("error")  # a deprecated name of torch's is a failure
import torch
import torch.distributed as dist

from poplin.accelerators import CPUAccelerator
from poplin.environments.environment import ClusterEnvironment
from poplin.errors import *
from poplin.precision.precision import Precision
from poplin.selection.trace import Trace
from poplin.strategies.parallel import ParallelStrategy
from poplin.testing.ranks import report

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Ranks(ClusterEnvironment):
    """The ranks that run_ranks gives."""

    creates_processes_externally = True
    main_address, main_port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = RANK, WORLD

    @staticmethod
    def detect():
        return True

    def world_size(self):
        return self.size

    def global_rank(self):
        return self.rank

    def local_rank(self):
        return self.rank

    def node_rank(self):
        return 0

    def set_world_size(self, size):
        pass

    def set_global_rank(self, rank):
        pass


def bound(strategy, world=WORLD):
    """``strategy`` as the selection would leave it."""
    environment = Ranks()
    environment.size = world
    strategy.bind(
        SimpleNamespace(
            accelerator=CPUAccelerator(),
            devices=(torch.device("cpu"),) * world,
            num_nodes=1,
            environment=environment,
            precision=Precision(),
            checkpoint_io=None,
            launcher=None,
            trace=Trace(),
        )
    )
    return strategy


def started(timeout=30, strategy=None):
    strategy = bound(strategy or ParallelStrategy(timeout=timeout))
    strategy.setup_environment()
    return strategy


def error_of(function):
    """Class and message of what ``function`` raises, and how long it took."""
    start = time.monotonic()
    try:
        function()
    except Exception as error:
        return {"class": type(error).__name__, "text": str(error), "seconds": time.monotonic() - start}
    return {"class": None, "text": "", "seconds": time.monotonic() - start}
'''


def script(body: str) -> str:
    """A whole script: the preamble, then ``body``."""
    return textwrap.dedent(PREAMBLE) + textwrap.dedent(body)
