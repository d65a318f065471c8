"""Who a process is, where torchrun started it."""

import json
import signal
import sys
from types import SimpleNamespace

import pytest

from poplin.environments import TorchrunEnvironment
from poplin.errors import ContradictionError, LaunchError

VARIABLES = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "3",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "first",
    "MASTER_PORT": "1234",
}


@pytest.fixture
def environment(monkeypatch):
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return TorchrunEnvironment()


def test_everything_is_torchruns_word(environment):
    assert environment.detect()
    assert environment.creates_processes_externally
    environment.set_world_size(9)
    environment.set_global_rank(9)
    assert (environment.global_rank(), environment.local_rank(), environment.node_rank()) == (3, 1, 1)
    assert (environment.world_size(), environment.local_world_size()) == (4, 2)
    assert (environment.main_address, environment.main_port) == ("first", 1234)


def test_it_is_not_detected_elsewhere(environment, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    assert not environment.detect()


def test_contradictions_name_both_sides(environment):
    environment.validate_settings(2, 2)
    with pytest.raises(ContradictionError, match=r"makes 2 process.*has started 4.*devices=2, num_nodes=2"):
        environment.validate_settings(2, 1)
    with pytest.raises(ContradictionError, match=r"4 device.*started 2 process.*on this node"):
        environment.validate_settings(4, 1)


def test_a_variable_that_is_no_number_is_named(environment, monkeypatch):
    monkeypatch.setenv("RANK", "first")
    with pytest.raises(LaunchError, match="RANK=first"):
        environment.global_rank()


def test_torchrun_is_told_why_a_rank_ends_and_hook_and_signal_are_given_back(environment, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    told = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: told.append(error))
    before = sys.excepthook, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    environment.bind(SimpleNamespace())
    assert signal.getsignal(signal.SIGTERM) is not before[1]
    try:
        raise ValueError("boom")
    except ValueError as error:
        sys.excepthook(ValueError, error, error.__traceback__)
    environment.teardown()
    assert (sys.excepthook, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    message = json.loads((tmp_path / "error.json").read_text())["message"]
    assert message["message"] == "ValueError: boom"
    assert "raise ValueError" in message["extraInfo"]["py_callstack"]
    assert len(told) == 1  # and it was printed as ever
