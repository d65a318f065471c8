"""What any strategy saves at any world size, every other loads at any other: model and optimizer, bit for bit."""

from pathlib import Path

import pytest

pytest.importorskip("poplin_fsdp")

from poplin.testing import run_ranks

PROGRAM = Path(__file__).parent / "programs" / "checkpoints_that_move.py"
BESIDE = Path(__file__).parents[1] / "core" / "checkpoint"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("moving")

    def run(world_size, saving, loading, folder=folder):
        arguments = [str(folder), str(BESIDE), saving, loading]
        return run_ranks(PROGRAM, world_size, args=arguments, env={"OMP_NUM_THREADS": "1"}, timeout=300)

    everything = {}
    for ranks in (
        run(1, "auto", ""),
        run(2, "ddp,fsdp,tp", ""),
        run(4, "fsdp,hsdp,2d,full", "ddp,fsdp,hsdp,2d"),
        run(2, "", "ddp,fsdp,full,tp"),
        run(1, "", "auto,fsdp"),
    ):
        for found in ranks:
            for name, wrong in found.items():
                everything[name] = everything.get(name, []) + wrong
    return everything


def test_every_strategy_trains_to_the_same_bits(seen):
    trained = {name: wrong for name, wrong in seen.items() if name.endswith("trains")}
    assert len(trained) == 8
    assert {name: wrong for name, wrong in trained.items() if wrong} == {}


def test_every_strategy_loads_what_every_other_saved(seen):
    pairs = {name: wrong for name, wrong in seen.items() if "->" in name}
    assert len(pairs) == 8 * (4 + 4 + 2)
    assert {name: wrong for name, wrong in pairs.items() if wrong} == {}
