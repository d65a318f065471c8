"""Functions in processes that are forked or spawned: results, failures, and what is left behind."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poplin.errors import ArgumentValueError
from poplin.launchers import MultiProcessingLauncher
from poplin.testing.processes import Program

PROGRAMS = Path(__file__).parent / "programs"


def run(folder, method, *cases):
    with Program(PROGRAMS / "functions.py", [method, str(folder), *cases]) as program:
        code = program.end(timeout=170)
        output = program.output
    assert code == 0, output
    told = [json.loads(line.removeprefix("RESULT ")) for line in output.splitlines() if line.startswith("RESULT ")]
    assert [case["case"] for case in told] == list(cases), output
    assert all(case["environment_restored"] for case in told)
    return {case["case"]: case for case in told}


#: The cases of a program run one after the other, the programs side by side: most of the time they wait.
FORKED = (
    "ok big raises raises_asleep awkward kill os_exit os_exit_0",
    "exit_3 exit_0 deaf in_collective unpicklable_result lingering nested in_thread shared",
)
SPAWNED = "ok own_class shared unpicklable raises"


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    runs = [("fork", cases) for cases in FORKED] + [("spawn", SPAWNED)]
    with ThreadPoolExecutor() as pool:
        pending = [pool.submit(run, tmp_path_factory.mktemp("words"), how, *cases.split()) for how, cases in runs]
        return [one.result() for one in pending]


@pytest.fixture(scope="module")
def forked(programs):
    return {**programs[0], **programs[1]}


@pytest.fixture(scope="module")
def spawned(programs):
    return programs[2]


def test_ranks_and_environment_variables_are_set_and_the_processes_meet(forked, spawned):
    for told in (forked, spawned):
        result = told["ok"]["result"]
        assert result["total"] == 2.0
        assert result["size"] == 2
        assert result["ranks"]["RANK"] == result["ranks"]["LOCAL_RANK"] == result["ranks"]["NODE_RANK"] == "0"
        assert result["ranks"]["WORLD_SIZE"] == result["ranks"]["LOCAL_WORLD_SIZE"] == "2"
        assert "2 process(es)" in told["ok"]["trace"]


def test_workers_start_processes_as_the_launching_one_does(spawned):
    assert spawned["ok"]["result"]["start_method"] == "fork"


def test_what_a_script_registered_and_defined_is_known_in_spawned_workers(spawned):
    assert spawned["own_class"]["result"] == ["Awkward", "Registered"]


def test_tensors_are_copied_and_queues_go_along(spawned, forked):
    for told in (spawned, forked):
        assert told["shared"]["result"] == [1.0, 1.0]
        assert told["shared"]["ours"] == [0.0, 0.0]
        assert told["shared"]["queue"] == [0, 1]


def test_a_large_result_comes_back(forked):
    assert forked["big"]["result"] == [20_000_000]


def test_launching_from_another_thread(forked):
    assert forked["in_thread"]["result"] == 2.0


def test_the_failing_ranks_own_exception_is_raised_with_its_traceback_first(forked, spawned):
    for case in (forked["raises"], forked["raises_asleep"], spawned["raises"]):
        assert (case["error"], case["text"]) == ("ValueError", "boom")
        assert "(raised in rank 1 of 2)" in case["notes"]
        assert case["chain"].index("Rank 1 of 2 failed: ValueError: boom") < case["chain"].index("direct cause")
        assert "in boom" in case["chain"]
        assert case["words"] == ["finally0", "finally1"]  # both ranks cleaned up


def test_an_exception_that_cannot_be_rebuilt_is_told_as_text(forked):
    assert forked["awkward"]["error"] == "WorkerError"
    assert "Rank 1 of 2 failed" in forked["awkward"]["text"]
    assert "in awkward" in forked["awkward"]["text"]


@pytest.mark.parametrize(
    ("case", "words"),
    [("kill", "was killed by SIGKILL"), ("os_exit", "exit code 3"), ("os_exit_0", "exit code 0")],
)
def test_a_rank_that_ends_without_a_word_is_named(forked, case, words):
    assert forked[case]["error"] == "WorkerError"
    assert "Rank 1 of 2" in forked[case]["text"]
    assert words in forked[case]["text"]
    assert "finally0" in forked[case]["words"]  # the other rank cleaned up
    assert forked[case]["seconds"] < 30  # the grace


def test_sys_exit_in_a_rank_is_one_here(forked):
    assert (forked["exit_3"]["error"], forked["exit_3"]["text"]) == ("SystemExit", "3")
    assert "finally0" in forked["exit_3"]["words"]
    assert (forked["exit_0"]["error"], forked["exit_0"]["text"]) == ("SystemExit", "None")


def test_a_rank_that_does_not_end_is_killed_with_its_children_and_the_first_failure_stands(forked):
    case = forked["deaf"]
    assert case["error"] == "ValueError"
    assert case["words"] == ["told0"]
    assert "Rank 0 did not end to the end of the grace period of 2 s and was killed" in case["notes"][0]
    assert "in deaf" in case["notes"][0]


def test_the_cause_stands_before_a_lost_connection(forked):
    assert forked["in_collective"]["error"] == "ValueError"
    assert forked["in_collective"]["seconds"] < 30  # the grace


def test_a_result_that_cannot_be_sent_is_an_error_that_says_so(forked):
    assert forked["unpicklable_result"]["error"] == "LaunchError"
    assert "can't be sent back" in forked["unpicklable_result"]["text"]


def test_a_worker_with_a_thread_of_its_own_does_not_hold_up_the_end(forked):
    assert forked["lingering"]["result"] == "done"
    assert forked["lingering"]["seconds"] < 30  # the grace


def test_a_launch_inside_a_rank_is_a_run_of_its_own(forked):
    assert forked["nested"]["result"] == [[0, 1, "1"], "0"]


def test_what_cannot_be_pickled_is_named(spawned):
    assert spawned["unpicklable"]["error"] == "LaunchError"
    assert "argument 2" in spawned["unpicklable"]["text"]
    assert "['model'][0]" in spawned["unpicklable"]["text"]


@pytest.mark.slow
def test_a_forkserver_serves_too(tmp_path):
    assert run(tmp_path, "forkserver", "ok")["ok"]["result"]["total"] == 2.0


def test_an_unknown_start_method_is_refused():
    with pytest.raises(ArgumentValueError, match="'thread'"):
        MultiProcessingLauncher("thread")


def test_only_fork_works_in_notebooks():
    compatible = [
        method
        for method in ("spawn", "fork", "forkserver")
        if MultiProcessingLauncher(method).is_interactive_compatible
    ]
    assert compatible == ["fork"]
    assert MultiProcessingLauncher.needs_function


SLEEPING = """
    import os, sys, time
    sys.path.insert(0, sys.argv[1])
    from stand_in import selection
    from poplin.launchers import MultiProcessingLauncher

    def sleep(environment):
        if os.fork() == 0:
            time.sleep(100)
            os._exit(0)
        try:
            print(f"up{environment.global_rank()}", flush=True)
            time.sleep(100)
        finally:
            print(f"finally{environment.global_rank()}", flush=True)

    if __name__ == "__main__":
        launcher = MultiProcessingLauncher(sys.argv[2], grace=3)
        chosen = selection()
        launcher.bind(chosen)
        try:
            launcher.launch(sleep, chosen.environment)
        finally:
            print("finally-parent", flush=True)
"""


@pytest.mark.parametrize(
    ("method", "signum"),
    [
        ("fork", signal.SIGINT),
        ("fork", signal.SIGKILL),
        pytest.param("fork", signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param("spawn", signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_the_launching_one(method, signum):
    with Program(SLEEPING, [str(PROGRAMS), method]) as program:
        program.wait_for(lambda output: "up0" in output and "up1" in output)
        program.send(signum)
        assert program.end() == -signum
        assert "finally0" in program.output
        assert "finally1" in program.output
        assert ("finally-parent" in program.output) == (signum == signal.SIGINT)


def test_ctrl_c_in_a_terminal_reaches_everybody_and_twice_is_no_harm():
    with Program(SLEEPING, [str(PROGRAMS), "fork"]) as program:
        program.wait_for(lambda output: "up0" in output and "up1" in output)
        program.send(signal.SIGINT, group=True)
        program.send(signal.SIGINT, group=True)
        assert program.end() == -signal.SIGINT


def test_a_script_without_main_guard_is_told_of_it():
    source = SLEEPING.replace('if __name__ == "__main__":', "if True:")
    with Program(source, [str(PROGRAMS), "spawn"]) as program:
        assert program.end(timeout=40) == 1
        assert '`if __name__ == "__main__":`' in program.output
        assert "had not begun its work" in program.output
