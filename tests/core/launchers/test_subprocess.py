"""A script that runs again in the other ranks: what they get, how they fail, and what is left behind."""

import json
import signal
import sys
from pathlib import Path

import pytest

from poplin.testing.processes import Program

PROGRAMS = Path(__file__).parent / "programs"
SCRIPT = PROGRAMS / "script.py"


def test_two_processes_then_one_in_each_then_the_two_again(tmp_path):
    with Program(SCRIPT, ["one_after_the_other", str(tmp_path / "told")]) as program:
        assert program.end(timeout=60) == 0, program.output
    told = [json.loads((tmp_path / f"told.{rank}").read_text()) for rank in (0, 1)]
    ports = {rank["two"]["ranks"]["MASTER_PORT"] for rank in told}
    assert len(ports) == 1
    for rank, run in enumerate(told):
        for name in ("two", "two_again"):
            assert run[name]["total"] == 2.0
            assert run[name]["size"] == 2
            assert run[name]["ranks"]["RANK"] == run[name]["ranks"]["LOCAL_RANK"] == str(rank)
            assert run[name]["ranks"]["WORLD_SIZE"] == "2"
            assert run[name]["restored"]
        assert run["one"]["total"] == 1.0
        assert run["one"]["size"] == 1
        assert run["one"]["ranks"]["RANK"] == "0"
        assert run["one"]["ranks"]["WORLD_SIZE"] == "1"
        assert run["one"]["ranks"]["MASTER_PORT"] not in ports
        assert run["one"]["restored"]
        assert run["three"].startswith("ContradictionError: 3 device(s)")


@pytest.mark.parametrize(
    ("what", "culprit"),
    [
        ("function", 1),
        ("script", 0),
        pytest.param("function", 0, marks=pytest.mark.slow),
        pytest.param("script", 1, marks=pytest.mark.slow),
    ],
)
def test_the_rank_that_fails_is_named_first_and_the_other_cleans_up(what, culprit):
    with Program(SCRIPT, [what, str(culprit), "raises"]) as program:
        assert program.end(timeout=40) == 1, program.output
        output = program.output
    assert "finally0" in output
    assert "finally1" in output
    assert "ValueError: boom" in output
    if culprit == 1:
        assert output.index("Rank 1 of 2 failed: ValueError: boom") == output.index("Rank ")
        assert output.index("Rank 1 of 2 failed") < output.index("finally0")
        assert "in misbehave" in output


def test_a_killed_rank_is_named():
    with Program(SCRIPT, ["function", "1", "dies"]) as program:
        assert program.end(timeout=40) == 1, program.output
        assert "Rank 1 of 2 was killed by SIGKILL" in program.output
        assert "finally0" in program.output


def test_a_rank_that_fails_after_the_first_has_ended_fails_the_run():
    with Program(SCRIPT, ["late"]) as program:
        assert program.end(timeout=40) == 1, program.output
        assert "ValueError: boom" in program.output  # its Fabric is closed: the traceback is its own business again
        assert "Rank 1 of 2 ended with exit code 1" in program.output


@pytest.mark.parametrize(
    ("signum", "group", "code", "cleaned"),
    [
        (signal.SIGTERM, False, 143, ("finally0", "finally1")),
        pytest.param(signal.SIGKILL, False, -9, ("finally1",), marks=pytest.mark.slow),  # test_faults.py does it, too
        (signal.SIGINT, True, -2, ("finally0", "finally1")),
    ],
)
def test_no_rank_outlives_the_launching_one(signum, group, code, cleaned):
    with Program(SCRIPT, ["script", "-1", "sleeps"]) as program:
        program.wait_for(lambda output: "up0" in output and "up1" in output)
        program.send(signum, group=group)
        assert program.end() == code
        assert all(word in program.output for word in cleaned), program.output


def test_a_good_sys_exit_ends_the_run_well_and_another_is_its_exit_code():
    with Program(SCRIPT, ["exits", "0"]) as program:
        assert program.end(timeout=40) == 0, program.output


def test_modules_options_of_the_interpreter_and_another_folder(tmp_path):
    command = [sys.executable, "-B", "-m", "script", "hello", "it's me"]
    with Program(command, env={"PYTHONPATH": str(PROGRAMS)}, cwd=tmp_path) as program:
        assert program.end(timeout=40) == 0, program.output
        lines = sorted(line for line in program.output.splitlines() if line.startswith("hello"))
    words = ["hello", "it's me"]
    assert lines == [f"hello {rank} {words} {tmp_path} 1" for rank in (0, 1)]


def test_standard_input_is_no_script():
    source = f"import sys; sys.path.insert(0, {str(PROGRAMS)!r}); import script; script.main('hello')"
    with Program([sys.executable, "-"], stdin=source) as program:
        assert program.end(timeout=40) == 1
        assert "LaunchError" in program.output
        assert "standard input" in program.output
