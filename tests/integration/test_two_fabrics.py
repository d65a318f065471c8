"""Fabrics one after the other in one script behave as in fresh processes, and give back what they took."""

import json
import signal
import sys
from pathlib import Path

import pytest

from poplin.testing.processes import Program

SCRIPT = Path(__file__).parent / "programs" / "two_fabrics.py"
THREADS = {"OMP_NUM_THREADS": None}  # Fabric's own choice, which it must give back


def run(case, folder, command=None, timeout=100):
    with Program(command or SCRIPT, [case, str(folder)], env=THREADS) as program:
        code = program.end(timeout)
        assert code == 0, program.output
        return program.output


def read(path):
    return json.loads(path.read_text())


# --- in the processes that run the script


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    run("one_after_the_other", folder)
    return [read(folder / f"told{rank}.json") for rank in (0, 1)]


def test_two_processes_then_one_then_two_again_each_as_if_it_were_the_first(ranks):
    for rank, told in enumerate(ranks):
        assert told["two"]["rank"] == told["two_again"]["rank"] == rank
        assert [told[name]["size"] for name in ("two", "one", "two_again", "ddp_of_one")] == [2, 1, 2, 1]
        assert [told[name]["sum"] for name in ("two", "one", "two_again", "ddp_of_one")] == [2, 1, 2, 1]
        assert [told[name]["group"] for name in ("two", "one", "two_again")] == [True, False, True]
        assert told["one"]["rank"] == told["ddp_of_one"]["rank"] == 0
        assert told["two"]["weight"] == told["two_again"]["weight"]
        assert told["one"]["weight"] == told["ddp_of_one"]["weight"] != told["two"]["weight"]
        assert told["one"]["strategy"] == "SingleDeviceStrategy"
    assert ranks[0]["two"]["weight"] == ranks[1]["two"]["weight"]


@pytest.mark.parametrize("name", ["two", "one", "two_again", "ddp_of_one"])
def test_each_gives_back_environment_signals_group_threads_and_hooks(ranks, name):
    assert ranks[0][name]["left_behind"] == {}
    # Of the other process the first Fabric learned that it is a rank of a launch: what it was born with stays.
    assert ranks[1][name]["left_behind"] == {}


# --- in workers that run a function


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("told")
    run("functions", folder, timeout=150)
    return read(folder / "told.json")


def test_what_the_script_registered_is_known_in_spawned_workers(told):
    assert told["spawned"].get("registered") == "OfTheScript", told["spawned"]
    assert told["spawned"]["strategy"] == "Subclass"
    assert (told["spawned"]["size"], told["spawned"]["sum"]) == (2, 2.0)


def test_one_process_after_workers_is_as_fresh(told):
    for name in ("alone", "alone_again"):
        assert told[name]["strategy"] == "OfTheScript", told[name]
        assert (told[name]["size"], told[name]["rank"], told[name]["group"]) == (1, 0, False)
    assert told["alone"]["weight"] == told["alone_again"]["weight"]


def test_a_result_of_200_megabytes_comes_back_whole(told):
    assert told["large"]["bytes"] == 200_000_000, told["large"]
    assert told["large"]["sum_of_it"] == 50_000_000


@pytest.mark.parametrize(("case", "named"), [("closure", "local"), ("lambda", "<lambda>"), ("argument", "argument 1")])
def test_what_cannot_be_sent_to_a_worker_is_named_with_what_to_do(told, case, named):
    assert told[case]["error"] == "LaunchError", told[case]
    assert named in told[case]["text"]
    assert "can't be sent to the worker processes" in told[case]["text"]
    assert "fork" in told[case]["text"]


def test_the_launching_process_is_as_it_was_after_each(told):
    for name, case in told.items():
        assert case["left_behind"] == {}, name


# --- a process group of the script's own


def test_a_process_group_that_the_script_made_is_used_and_never_destroyed(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(SCRIPT)]
    run("adopted", tmp_path, torchrun)
    for rank in (0, 1):
        told = read(tmp_path / f"told{rank}.json")
        for name in ("first", "second"):
            assert told[name]["same_group"]
            assert (told[name]["size"], told[name]["rank"], told[name]["sum"]) == (2, rank, 2.0)
            assert told[name]["left_behind"] == {}
            assert "adopt" in told[name]["explain"] or "exist" in told[name]["explain"]
        assert told["sum"] == 2.0


# --- Ctrl-C


def test_ctrl_c_in_the_terminal_ends_all_ranks_and_their_finally_blocks_run(tmp_path):
    with Program(SCRIPT, ["sleeps", str(tmp_path)]) as program:
        program.wait_for(lambda output: "up0" in output and "up1" in output, timeout=90)
        program.send(signal.SIGINT, group=True)
        assert program.end(timeout=20) in (-signal.SIGINT, 130), program.output
        assert "finally0" in program.output
        assert "finally1" in program.output
        assert "Rank 1 of 2 failed" not in program.output
