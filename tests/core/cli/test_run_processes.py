"""``poplin run`` with several processes: what reaches them, how they fail, and what is left behind."""

import json
import re
import signal
import sys

import pytest

from poplin.testing.processes import Program
from poplin.testing.ranks import free_port

SCRIPT = """
import json, os, sys, time
import torch
import torch.distributed as dist
from types import SimpleNamespace
from poplin.environments import TorchrunEnvironment
from poplin import registry

environment = TorchrunEnvironment()
environment.validate_settings(2, 1)
environment.bind(SimpleNamespace())
rank, attempt = environment.global_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
url = f"tcp://{environment.main_address}:{environment.main_port}?rank={rank}&world_size=2"
store, _, _ = next(iter(dist.rendezvous(url)))
dist.init_process_group("cpu:gloo", store=dist.PrefixStore(attempt, store), rank=rank, world_size=2)
tensor = torch.ones(1)
dist.all_reduce(tensor)
what = sys.argv[1]

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

try:
    if what == "tell":
        names = ("POPLIN_DEVICES", "LT_DEVICES", "POPLIN_CLI_USED", "POPLIN_GRACE", "OMP_NUM_THREADS",
                 "TORCH_DEVICE_BACKEND_AUTOLOAD")
        told = {name: os.environ.get(name) for name in names}
        told |= {"total": tensor.item(), "argv": sys.argv[1:], "name": __name__, "loggers": registry.names("loggers")}
        say("TOLD", json.dumps(told))
    if what == "raise" and rank == 1:
        raise ValueError("boom")
    if what == "die" and rank == 1 and attempt == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if what in ("raise", "sleep") or (what == "die" and attempt == "0"):
        say("up")
        time.sleep(60)
    say(f"attempt{attempt}-rank{rank}")
finally:
    say(f"finally{rank}")
    # A group that is left to the end of the interpreter aborts the process now and then: its threads want the GIL.
    dist.destroy_process_group()
""".replace("import json, os", "import json, os, signal", 1)


def command(*words):
    return [sys.executable, "-m", "poplin", "run", *words]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "mine.py").write_text("import poplin\npoplin.register('loggers', 'mine', dict)\n")
    return tmp_path


@pytest.mark.parametrize("target", [("-m", "train"), pytest.param(("train.py",), marks=pytest.mark.slow)])
def test_two_processes_of_a_script_and_of_a_module(folder, target):
    options = ["--devices", "2", "--accelerator=cpu", "--grace=7", "--no-torch-autoload", "-p", "mine"]
    with Program(
        command(*options, *target, "tell", "--devices", "9"), cwd=folder, env={"OMP_NUM_THREADS": "1"}
    ) as program:
        assert program.end(timeout=60) == 0, program.output
        told = [json.loads(line) for line in re.findall("TOLD (.*)", program.output)]
    assert len(told) == 2
    for rank in told:
        assert rank["total"] == 2.0
        assert rank["argv"] == ["tell", "--devices", "9"]
        assert rank["name"] == "__main__"
        assert rank["POPLIN_DEVICES"] == rank["LT_DEVICES"] == "2"
        assert rank["POPLIN_CLI_USED"] == "1"
        assert rank["POPLIN_GRACE"] == "7"
        assert rank["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        assert "mine" in rank["loggers"]


def test_the_rank_that_failed_is_named_with_its_traceback_and_the_other_cleans_up(folder):
    with Program(command("--devices=2", f"--main-port={free_port()}", "train.py", "raise"), cwd=folder) as program:
        assert program.end(timeout=60) == 1
        output = program.output
    assert "poplin: rank 1 of 2 failed with exit code 1." in output
    assert "ValueError: boom" in output.partition("poplin: rank 1 of 2")[2]
    assert "finally0" in output
    assert "finally1" in output


def test_a_killed_rank_is_started_again_with_the_others(folder):
    with Program(command("--devices=2", "--max-restarts=1", "train.py", "die"), cwd=folder) as program:
        assert program.end(timeout=90) == 0, program.output
        assert "attempt1-rank0" in program.output
        assert "attempt1-rank1" in program.output


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_process_outlives_the_command(folder, signum, code):
    with Program(command("--devices=2", "train.py", "sleep"), cwd=folder) as program:
        program.wait_for(lambda output: output.count("up") == 2)
        program.send(signum)
        assert program.end() == code
        assert "finally0" in program.output
        assert "finally1" in program.output


def test_what_can_not_be_run_starts_nothing(folder):
    for words, text in (
        (("nowhere.py",), "There is no script 'nowhere.py'"),
        (("--devices=0", "--accelerator=cpu", "train.py"), "devices='0'"),
    ):
        with Program(command(*words), cwd=folder) as program:
            assert program.end() == 1
            assert text in program.output
