"""Who a process is, where our own launchers or somebody by hand started it."""

import json
import os
import pickle
from types import SimpleNamespace

import pytest
import torch

from poplin.environments import LocalEnvironment
from poplin.environments import place as places
from poplin.environments.place import VARIABLE, Place
from poplin.errors import ContradictionError, LaunchError

NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "NODE_RANK",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@pytest.fixture(autouse=True)
def _bare(monkeypatch):
    for name in (*NAMES, VARIABLE):
        monkeypatch.delenv(name, raising=False)
    yield
    places.take(None)


def made(devices=1, nodes=1):
    environment = LocalEnvironment()
    environment.validate_settings(devices, nodes)
    return environment


def who(environment):
    return environment.global_rank(), environment.local_rank(), environment.node_rank(), environment.world_size()


def test_a_bare_process_is_rank_0_on_a_free_port_of_its_own():
    one, other = made(), made()
    assert not one.creates_processes_externally
    assert who(one) == (0, 0, 0, 1)
    assert one.main_address == "127.0.0.1"
    assert one.main_port == one.main_port != other.main_port
    one.teardown()
    other.teardown()
    assert not set(NAMES) & set(os.environ)


def test_processes_started_by_hand_on_two_nodes(monkeypatch):
    for name, value in {"LOCAL_RANK": "1", "NODE_RANK": "1", "MASTER_ADDR": "first", "MASTER_PORT": "1234"}.items():
        monkeypatch.setenv(name, value)
    environment = made(2, 2)
    assert environment.creates_processes_externally
    assert who(environment) == (3, 1, 1, 4)
    assert (environment.main_address, environment.main_port) == ("first", 1234)


def test_processes_started_by_hand_without_a_port_can_not_agree(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(LaunchError, match="MASTER_PORT is not set"):
        _ = made(2).main_port
    monkeypatch.delenv("LOCAL_RANK")
    with pytest.raises(LaunchError, match="MASTER_PORT is not set"):
        _ = made(2, 2).main_port


def test_a_variable_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "http")
    with pytest.raises(LaunchError, match="MASTER_PORT=http is no number"):
        _ = made().main_port


def test_a_world_size_set_by_hand_that_contradicts_is_an_error(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ContradictionError, match=r"makes 2 processes.*WORLD_SIZE=4"):
        made(2)


def test_a_rank_of_a_launch_joins_it_or_is_alone(monkeypatch):
    place = Place(1, 2, 0, 1, "127.0.0.1", 4321)
    for name, value in place.variables(os.getppid()).items():
        monkeypatch.setenv(name, value)
    joined, alone = made(2), made(1)
    assert joined.creates_processes_externally
    assert who(joined) == (1, 1, 0, 2)
    assert joined.main_port == 4321
    assert not alone.creates_processes_externally
    assert who(alone) == (0, 0, 0, 1)
    assert alone.main_port != 4321
    with pytest.raises(ContradictionError, match=r"3 device\(s\).*has made 2"):
        made(3)
    alone.teardown()


def test_a_program_that_a_rank_starts_is_no_rank(monkeypatch):
    place = Place(1, 2, 0, 1, "127.0.0.1", 4321)
    for launcher in (0, os.getpid()):  # its parent is a rank, and not the launching process
        for name, value in place.variables(launcher).items():
            monkeypatch.setenv(name, value)
        environment = made(2)
        assert not environment.creates_processes_externally
        assert environment.global_rank() == 0
        assert environment.main_address == "127.0.0.1"
        assert environment.main_port != 4321
        environment.teardown()


def test_a_damaged_place_is_none(monkeypatch):
    for text in (
        "",
        "nonsense",
        json.dumps({"launcher": 1}),
        json.dumps({"launcher": 1, "place": [1], "channel": None}),
    ):
        monkeypatch.setenv(VARIABLE, text)
        assert places.current() is None


def test_launchers_can_set_rank_and_size_and_teardown_forgets_them():
    environment = made(2)
    environment.set_world_size(7)
    environment.set_global_rank(3)
    assert (environment.global_rank(), environment.world_size()) == (3, 7)
    environment.teardown()
    assert (environment.global_rank(), environment.world_size()) == (0, 2)


def test_it_travels_without_its_port():
    environment = made()
    port = environment.main_port
    copy = pickle.loads(pickle.dumps(environment))
    assert copy.main_port != port
    environment.teardown()
    copy.teardown()


def test_bind_takes_the_size_of_the_run():
    environment = LocalEnvironment()
    environment.bind(SimpleNamespace(devices=(torch.device("cpu"),) * 3, num_nodes=1))
    assert environment.world_size() == 3
    environment.teardown()
