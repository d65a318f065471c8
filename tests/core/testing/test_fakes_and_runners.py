"""What the kit has beside the suites: fakes, and functions that are called in several ranks."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import poplin
from poplin import Fabric, registry
from poplin.errors import ArgumentTypeError, HardwareAbsentError, UnknownNameError
from poplin.strategies import ParallelStrategy
from poplin.testing import Program, call_in_ranks, fake_accelerator, plugin_source, start_strategy
from poplin.testing.fixtures import fake_distribution  # noqa: F401 - a fixture

STRATEGY = """
from poplin.strategies import SingleDeviceStrategy


class Acme(SingleDeviceStrategy):
    pass
"""


def summed(start):
    strategy = start_strategy(ParallelStrategy(timeout=30))
    return strategy.all_reduce(torch.tensor(start + strategy.global_rank), reduce_op="sum").item()


def failing_on_one(rank):
    if int(os.environ["RANK"]) == rank:
        raise ValueError("this one fails")
    print("this one speaks")
    return os.environ["GREETING"]


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_rank_returns_its_own():
    assert [told.value for told in call_in_ranks(summed, 1)] == [3, 3]
    assert [told.value for told in call_in_ranks(summed, 5, world_size=3)] == [18, 18, 18]


def test_a_rank_that_fails_is_told_by_its_traceback():
    fine, failed = call_in_ranks(failing_on_one, 1, env={"GREETING": "hello"})
    assert (fine.value, fine.traceback, fine.code) == ("hello", "", 0)
    assert "this one speaks" in fine.output
    assert failed.value is None
    assert failed.code == 1
    assert failed.traceback.rstrip().endswith("ValueError: this one fails")


def test_a_rank_that_is_killed_is_told_by_its_code():
    assert [told.code for told in call_in_ranks(killed)] == [-signal.SIGKILL] * 2


def test_only_a_function_that_can_be_found_is_called():
    with pytest.raises(ArgumentTypeError, match="top of a module"):
        call_in_ranks(lambda: None)


@pytest.fixture
def registered():
    names = []

    def register(cls):
        poplin.register("accelerators", cls.name(), cls)
        names.append(cls.name())
        return cls

    yield register
    for name in names:
        registry.unregister("accelerators", name)


def test_a_fake_accelerator_is_chosen_and_told_what_happens(registered):
    cls = registered(fake_accelerator("fake", devices=3))
    with Fabric(accelerator="fake", devices=1, strategy="single_device") as fabric:
        model = fabric.setup(torch.nn.Linear(2, 1))
        assert model(torch.ones(1, 2)).shape == (1, 1)
    assert cls.calls[0][0] == "setup_device"
    assert cls.calls[-1][0] == "teardown"
    assert cls.auto_device_count() == 3
    assert fake_accelerator().calls == []


def test_one_that_is_absent_says_so(registered):
    registered(fake_accelerator("gone", available=False, reason="its driver is on holiday"))
    with pytest.raises(HardwareAbsentError, match="its driver is on holiday"):
        Fabric(accelerator="gone", devices=1)


def test_one_on_meta_shows_where_things_are(registered):
    registered(fake_accelerator("nowhere", device_type="meta"))
    with Fabric(accelerator="nowhere", devices=1, strategy="single_device") as fabric:
        assert fabric.to_device(torch.ones(1)).is_meta


def test_a_fake_distribution_is_installed_for_a_test(fake_distribution):  # noqa: F811
    folder = fake_distribution(
        "acme-poplin",
        "1.2",
        entry_points={"poplin.strategies": {"acme": "acme_poplin.plugin"}},
        modules={
            "acme_poplin/__init__.py": "",
            "acme_poplin/plugin.py": plugin_source("strategies", "acme", target="acme_poplin.strategy:Acme"),
            "acme_poplin/strategy.py": STRATEGY,
        },
        requires=["poplin-core>=0.1,<0.2"],
    )
    assert (folder / "METADATA").exists()
    assert type(registry.find("strategies", "acme").create()).__name__ == "Acme"
    listed = subprocess.run([sys.executable, "-m", "poplin", "plugins"], capture_output=True, text=True, check=True)
    assert "acme-poplin 1.2" in listed.stdout


def test_and_gone_after_it():
    assert "acme_poplin" not in sys.modules
    with pytest.raises(UnknownNameError):
        registry.find("strategies", "acme")


INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path

from poplin.testing import call_in_ranks


def sleeps(pids):
    (Path(pids) / str(os.getpid())).touch()
    time.sleep(120)


if __name__ == "__main__":
    def interrupt():
        while len(os.listdir(sys.argv[1])) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    call_in_ranks(sleeps, sys.argv[1])
"""


def test_a_program_heeds_interrupts_where_the_tests_ignore_them():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell does for what it starts by `&`
    try:
        with Program("import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)") as program:
            assert program.end() == 0
            assert program.output == "True\n"
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_an_interrupt_leaves_no_rank(tmp_path):
    script, pids = tmp_path / "script.py", tmp_path / "pids"
    script.write_text(INTERRUPTED)
    pids.mkdir()
    with Program(script, [str(pids)]) as program:
        assert program.end(150) != 0
        assert "KeyboardInterrupt" in program.output
    ranks = os.listdir(pids)
    assert len(ranks) == 2
    assert [pid for pid in ranks if os.path.exists(f"/proc/{pid}")] == []
