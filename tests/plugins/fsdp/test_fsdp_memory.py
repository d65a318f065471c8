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
        # what is freed goes back to the system at once, so that the peak is the strategy's and not the C library's
        env = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
        ranks = run_ranks(SCRIPT, world_size, args=["held"], env=env, timeout=170)
        used.append({key: max(rank[key] for rank in ranks) for key in ("held", "peak")})
    one, two, four = used
    assert two["held"] < 0.55 * one["held"]
    assert four["held"] < 0.55 * two["held"]
    assert two["peak"] < 0.7 * one["peak"]
    assert four["peak"] < 0.7 * two["peak"]
