"""One rank first: the others wait as long as it lives, and learn of its failure and of its death."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

BODY = """
strategy = started(timeout=1.5)  # shorter than the leader takes
folder = os.environ["FOLDER"]
out = {}

with strategy.rank_zero_first():
    if RANK == 0:
        time.sleep(2.5)
        open(f"{folder}/file", "w").close()
    out["seen"] = os.path.exists(f"{folder}/file")
with strategy.rank_zero_first(local=True):
    pass
another = started(timeout=1.5)  # a second Fabric over the same group counts on
with another.rank_zero_first():
    if RANK == 0:
        time.sleep(0.5)
        open(f"{folder}/second", "w").close()
    out["seen_second"] = os.path.exists(f"{folder}/second")
another.teardown()


def failing():
    with strategy.rank_zero_first():
        if RANK == 0:
            raise ValueError("no such host")


out["raised"] = error_of(failing)
strategy.barrier("still in step")
report(out)
if RANK == 0:
    with strategy.rank_zero_first():
        os.kill(os.getpid(), 9)


def waiting():
    with strategy.rank_zero_first():
        pass


out["died"] = error_of(waiting)
report(out)
"""


def test_rank_zero_first(run_strategy: Callable[..., list[Any]], tmp_path: Any) -> None:
    leader, other = run_strategy(BODY, world_size=2, env={"FOLDER": str(tmp_path)}, expect_failure=True)
    assert leader["exit"] == -9, leader["output"]
    assert other["exit"] == 0, other["output"]
    assert leader["report"]["seen"]
    assert other["report"]["seen_second"]
    assert other["report"]["seen"]
    assert leader["report"]["raised"]["class"] == "ValueError"
    assert other["report"]["raised"]["class"] == "CollectiveError"
    assert "rank 0 failed in rank_zero_first: ValueError: no such host" in other["report"]["raised"]["text"]
    assert other["report"]["died"]["class"] == "CollectiveError"
    assert "rank 0" in other["report"]["died"]["text"]
    assert "died" in other["report"]["died"]["text"]
    assert other["report"]["died"]["seconds"] < 10
