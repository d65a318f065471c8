"""The start of every script that the multi-process tests of this folder run."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import pytest

from poplin.testing.ranks import run_ranks

PREAMBLE = """
import os
import time
import warnings

warnings.simplefilter("error")  # a deprecated name of torch's is a failure
import torch
import torch.distributed as dist

from poplin.strategies import ParallelStrategy
from poplin.testing.ranks import report
from poplin.testing.strategies import bind_strategy, error_of, start_strategy

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def started(timeout=30, **settings):
    return start_strategy(ParallelStrategy(timeout=timeout, **settings))
"""


@pytest.fixture(scope="session")
def run_strategy() -> Callable[..., list[Any]]:
    """Run the body of a script on several ranks: ``run_strategy(body, world_size=2)``."""

    def run(body: str, **options: Any) -> list[Any]:
        return run_ranks(PREAMBLE + textwrap.dedent(body), **options)

    return run
