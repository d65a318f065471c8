"""What goes wrong in a run: it ends soon, says whose fault it was, and leaves no process, half file or lost checkpoint.

Two real ranks each time. `Program.end` fails where a process is left, or where the end takes longer than 20 s.
"""

import json
import os
import random
import re
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from poplin import Fabric
from poplin.errors import DamagedCheckpointError
from poplin.testing.processes import Program
from poplin.testing.ranks import run_ranks

PROGRAMS = Path(__file__).parent / "programs"
STARTING = 90  # seconds: imports of torch on a busy machine


def run(case, folder, signum=None, group=False, grace=4):
    """Run a case until both ranks are up (or the fault has struck), send a signal, and wait for the end."""
    with Program(PROGRAMS / "faults.py", [case, str(folder)], env={"POPLIN_GRACE": str(grace)}) as program:
        program.wait_for(lambda output: "up0" in output and "up1" in output, timeout=STARTING)
        if signum is not None:
            program.send(signum, group=group)
        code = program.end(timeout=20)
        return code, program.output


def assert_the_checkpoint_is_whole(folder, step=3):
    """The checkpoint of the last whole step is there, loads, and nothing stands beside it."""
    assert os.listdir(folder) == ["run.ckpt"]
    with Fabric(accelerator="cpu", devices=1) as fabric:
        content = fabric.load(folder / "run.ckpt")
    assert content["step"] >= step
    assert all(torch.isfinite(value).all() for value in content["model"].values())
    assert set(content["optimizer"]["state"])


# --- every rank runs the script


@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_that_raises_ends_the_run_and_is_named(tmp_path, culprit):
    code, output = run(f"rank_{culprit}_raises", tmp_path)
    assert code == 1, output
    assert f"ValueError: boom on rank {culprit}" in output
    assert f"in raise_on_{culprit}" in output  # the traceback
    assert "grace period" not in output  # the other one waits for gradients, and sees at once that they don't come
    if culprit == 1:
        assert output.index("Rank 1 of 2 failed: ValueError: boom on rank 1") < output.index("Traceback")
    assert "Rank 0 of 2 failed" not in output
    assert_the_checkpoint_is_whole(tmp_path)


def test_a_rank_that_sits_in_a_backward_pass_to_the_end_of_the_grace_is_told_of(tmp_path):
    code, output = run("rank_0_raises_while_1_is_stuck", tmp_path, grace=2)
    assert code == 1, output
    assert "ValueError: boom on rank 0" in output
    where = r"poplin: Rank 1 sat in the collective of the backward pass \(\S+faults\.py:\d+\) to the end of the grace"
    assert re.search(where, output), output
    assert output.count("to the end of the grace") == 1


def test_a_rank_that_is_killed_ends_the_run_and_is_named(tmp_path):
    code, output = run("rank_1_is_killed", tmp_path)
    assert code == 1, output
    assert "Rank 1 of 2 was killed by SIGKILL" in output
    assert_the_checkpoint_is_whole(tmp_path)


@pytest.mark.parametrize(
    ("signum", "expected"), [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow), (signal.SIGKILL, -9)]
)
def test_when_the_launching_process_is_ended_in_the_middle_of_saves_all_end(tmp_path, signum, expected):
    code, output = run("goes_on", tmp_path, signum)
    assert code == expected, output
    assert_the_checkpoint_is_whole(tmp_path)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.slow
def test_when_the_process_that_spawned_the_ranks_is_ended_all_end(tmp_path, signum):
    code, output = run("goes_on_spawned", tmp_path, signum)
    assert code == -signum, output
    assert_the_checkpoint_is_whole(tmp_path)


def test_sigterm_to_the_whole_process_group_leaves_time_to_save_with_loader_workers_alive(tmp_path):
    code, output = run("preempted_with_loader_workers", tmp_path, signal.SIGTERM, group=True)
    assert code == 0, output
    reads = dict(re.findall(r"stopped(\d) (\d+)\.", output))
    assert set(reads) == {"0", "1"}, output
    assert reads["0"] == reads["1"]
    assert "end0" in output
    assert "end1" in output
    assert "Traceback" not in output, output
    with Fabric(accelerator="cpu", devices=1) as fabric:
        assert fabric.load(tmp_path / "last.ckpt")["step"] == int(reads["0"])
    assert os.listdir(tmp_path) == ["last.ckpt"]


# --- workers run a function


@pytest.mark.slow
def test_workers_that_fail_are_named_and_the_launching_process_goes_on(tmp_path):
    with Program(PROGRAMS / "faults.py", ["workers", str(tmp_path)]) as program:
        code = program.end(timeout=150)
        output = program.output
    assert code == 0, output
    told = {}
    for line in output.splitlines():
        if line.startswith("RESULT "):
            case = json.loads(line.removeprefix("RESULT "))
            told[case["case"]] = case
    assert set(told) == {"spawned_1_raises", "forked_0_raises", "forked_1_is_killed"}, output
    for name, rank in (("spawned_1_raises", 1), ("forked_0_raises", 0)):
        assert told[name]["error"] == "ValueError"
        assert told[name]["text"] == f"boom on rank {rank}"
        assert f"(raised in rank {rank} of 2)" in told[name]["whole"]
        assert f"in raise_on_{rank}" in told[name]["whole"]
    assert told["forked_1_is_killed"]["error"] == "WorkerError"
    assert "Rank 1 of 2 was killed by SIGKILL" in told["forked_1_is_killed"]["text"]
    for case in told.values():
        assert case["environment_restored"]
        assert case["files"] == ["run.ckpt"]
        if case["case"].startswith("forked"):  # a spawned one imports torch first
            assert case["seconds"] < 20
    assert_the_checkpoint_is_whole(tmp_path)


# --- faults that the ranks survive


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory):
    """A file system of 256 KB, or None where this user may mount none."""
    folder = tmp_path_factory.mktemp("small")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "poplin", str(folder)], capture_output=True)
    yield folder if mounted.returncode == 0 else None
    if mounted.returncode == 0:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, small_disk):
    folder = tmp_path_factory.mktemp("run")
    return run_ranks(PROGRAMS / "faults_in_step.py", args=[str(folder), str(small_disk or "")], timeout=150)


CASES = [
    *(f"{what}_on_{rank}" for what in ("no_state", "unsafe", "async") for rank in (0, 1)),
    *("full_bucket", "no_room", "rank_zero_first", "rank_1_does_not_find_it", "uneven_all_gather", "uneven_kinds"),
]


@pytest.mark.parametrize("case", CASES)
def test_both_ranks_raise_and_stay_in_step_and_the_old_checkpoint_is_whole(ranks, case):
    for rank in ranks:
        told = rank[case]
        assert told["error"] is not None
        assert told["sum"] == 3.0  # 1 of rank 0 and 2 of rank 1: they are in one and the same collective
        assert told["old_one_loads"]
        assert told["files"] == ["run.ckpt"]
        assert told["seconds"] < 10


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("what", ["no_state", "unsafe", "async"])
def test_a_save_that_fails_on_one_rank_names_it_on_the_other(ranks, what, culprit):
    own, other = ranks[culprit][f"{what}_on_{culprit}"], ranks[1 - culprit][f"{what}_on_{culprit}"]
    assert f"Rank {culprit} failed" in other["error"]["text"]
    assert other["error"]["ours"]
    if what == "unsafe":
        assert own["error"]["class"] == "UnsafeCheckpointError"
        assert "extra" in own["error"]["text"]
    else:
        assert "no state here" in own["error"]["text"]


def test_a_full_disk_is_an_error_on_every_rank_and_leaves_nothing(ranks):
    for rank in ranks:
        for error in (rank["full_bucket"]["error"], rank["no_room"]["error"], rank["no_room"]["later"]):
            assert error["class"] == "CheckpointError"
        assert "No space left on device" in rank["full_bucket"]["error"]["text"]
        assert "full://bucket/run.ckpt" in rank["full_bucket"]["error"]["text"]
        assert "File too large" in rank["no_room"]["error"]["text"]
        assert rank["full_bucket"]["left"] == []


def test_a_small_file_system_that_is_full_keeps_the_old_checkpoint(ranks, small_disk):
    if small_disk is None:
        pytest.skip("this user may mount no file system")
    for rank in ranks:
        assert rank["full_disk"]["error"]["class"] == "CheckpointError"
        assert "No space left on device" in rank["full_disk"]["error"]["text"]
        assert rank["full_disk"]["left"] == ["run.ckpt"]
        assert rank["full_disk"]["old"] == 1


def test_rank_0_that_fails_in_rank_zero_first_is_named_on_the_other(ranks):
    assert ranks[0]["rank_zero_first"]["error"]["class"] == "ValueError"
    other = ranks[1]["rank_zero_first"]["error"]
    assert other["class"] == "CollectiveError"
    assert "Rank 0 failed" in other["text"] or "rank 0 failed" in other["text"].lower()
    assert "the download failed" in other["text"]


def test_a_damaged_checkpoint_is_told_from_a_whole_one_and_touches_nothing(ranks):
    for rank in ranks:
        assert len(rank["damage"]) == 12
        for name, error in rank["damage"].items():
            assert error is not None, name
            assert error["class"] == "DamagedCheckpointError", (name, error)
            assert "bad.ckpt" in error["text"], name
            assert error["untouched"], name


def test_a_checkpoint_that_one_rank_does_not_find_is_loaded_by_none(ranks):
    assert ranks[1]["rank_1_does_not_find_it"]["error"]["class"] == "CheckpointNotFoundError"
    assert ranks[0]["rank_1_does_not_find_it"]["error"]["class"] == "CheckpointNotFoundError"
    assert "Rank 1 failed" in ranks[0]["rank_1_does_not_find_it"]["error"]["text"]


def test_uneven_shapes_are_an_error_with_both_shapes_on_every_rank(ranks):
    for rank in ranks:
        assert rank["uneven_all_gather"]["error"]["class"] == "CollectiveError"
        assert "(2,)" in rank["uneven_all_gather"]["error"]["text"]
        assert "(3,)" in rank["uneven_all_gather"]["error"]["text"]


def test_a_skipped_collective_is_an_error_that_names_both_sides(ranks):
    for rank in ranks:
        error = rank["skipped"]["error"]
        assert error["class"] == "CollectiveError"
        assert "all_reduce" in error["text"] or "after the mean" in error["text"]
        assert rank["skipped"]["seconds"] < 20
    assert any("rank 1" in rank["skipped"]["error"]["text"] for rank in ranks)


def test_one_rank_told_to_end_stops_all_at_the_same_read(ranks):
    assert ranks[0]["preempted"] == ranks[1]["preempted"]
    told = ranks[0]["preempted"]
    assert 21 <= told["reads"] <= 21 + 16
    assert told["saved"] == told["reads"]
    assert told["again"]
    assert told["handlers_given_back"]


# --- in one process


def test_ctrl_c_in_the_middle_of_a_save_stays_one_and_the_old_checkpoint_is_whole(tmp_path):
    def interrupt(signum, frame):
        raise KeyboardInterrupt

    path, interrupted = tmp_path / "run.ckpt", 0
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with Fabric(accelerator="cpu", devices=1) as fabric:
            fabric.save(path, {"step": 0})
            state = {"step": 1, "weights": [torch.ones(500_000) for _ in range(50)]}
            for milliseconds in (2, 5, 10, 20, 30, 50):
                try:
                    signal.setitimer(signal.ITIMER_REAL, milliseconds / 1000)
                    fabric.save(path, state)
                except KeyboardInterrupt:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                assert fabric.load(path)["step"] in (0, 1)
                assert os.listdir(tmp_path) == ["run.ckpt"]
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert interrupted


def test_any_byte_that_changed_or_is_missing_is_found_or_harmless(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=1)
    path, bad = tmp_path / "run.ckpt", tmp_path / "bad.ckpt"
    written = {"weights": torch.arange(64.0), "step": 3}
    fabric.save(path, written)
    whole, chance, found = path.read_bytes(), random.Random(0), 0
    for _ in range(800):
        content, offset, length = bytearray(whole), chance.randrange(len(whole)), chance.choice([1, 4, 50, 500])
        match chance.randrange(5):
            case 0:
                content[offset] ^= 1 << chance.randrange(8)
            case 1:
                content[offset : offset + length] = bytes(len(content[offset : offset + length]))
            case 2:
                del content[offset : offset + length]
            case 3:
                content[offset:offset] = chance.randbytes(length)
            case 4:
                del content[offset:]
        bad.write_bytes(content)
        try:
            read = fabric.load(bad)
        except DamagedCheckpointError:
            found += 1
        else:  # alignment and names of the archive's own, which nobody reads
            assert read["step"] == 3
            assert torch.equal(read["weights"], written["weights"])
    assert found > 500
    fabric.close()
