"""What each process holds falls with their number, and so does its peak."""

from pathlib import Path

import pytest

from poplin.testing import run_ranks

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "bench_fsdp.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_of_each_process_falls_with_the_number_of_processes():
    used = []
    for world_size in (1, 2, 4):
        ranks = run_ranks(SCRIPT, world_size, args=["held"], env={"OMP_NUM_THREADS": "1"}, timeout=170)
        used.append({key: max(rank[key] for rank in ranks) for key in ("held", "peak")})
    one, two, four = used
    assert two["held"] < 0.55 * one["held"]
    assert four["held"] < 0.55 * two["held"]
    assert four["peak"] < two["peak"] < one["peak"]
