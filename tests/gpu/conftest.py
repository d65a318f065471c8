"""Everything here needs a GPU, is marked so, and is skipped with the reason where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for gpu_support


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def gpu() -> None:
    """A GPU with no memory of the test before."""
    from gpu_support import REHEARSAL, why_not

    if (reason := why_not()) is not None:
        pytest.skip(reason)
    import torch

    if not REHEARSAL:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


@pytest.fixture
def only_gpu(gpu: None) -> None:
    """For what can't be rehearsed."""
    from gpu_support import REHEARSAL

    if REHEARSAL:
        pytest.skip("a rehearsal on the CPU has no GPU")
