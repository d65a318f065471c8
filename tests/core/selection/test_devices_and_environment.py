"""Devices, nodes, and who started this process."""

from __future__ import annotations

import pytest
import torch
from selection_fakes import GPU, Cluster, Many, Notebook

from poplin.environments import LocalEnvironment
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BrokenPluginError,
    ContradictionError,
    HardwareAbsentError,
    PoplinError,
    SelectionError,
)

META = [torch.device("meta", index) for index in range(4)]


@pytest.fixture
def gpu(offer):
    offer("accelerators", "fakegpu", GPU)
    offer("strategies", "many", Many)


@pytest.mark.parametrize(
    ("written", "expected"),
    [(1, [0]), (2, [0, 1]), ("2", [0, 1]), ("0,1", [0, 1]), ([1, 3], [1, 3]), ((2,), [2]), ("3,", [3])]
    + [(value, [0, 1, 2, 3]) for value in (-1, "-1", "auto", None, "AUTO")],
)
def test_devices(choose, gpu, written, expected):
    selection = choose(accelerator="fakegpu", strategy="many", devices=written)
    assert list(selection.devices) == [META[index] for index in expected]


@pytest.mark.parametrize("wrong", [0, -2, "x", "0,x", [], [9], [0, 0], "9,", 5, "5", 10**30])
def test_impossible_devices(choose, gpu, wrong):
    with pytest.raises(ArgumentValueError, match="devices"):
        choose(accelerator="fakegpu", strategy="many", devices=wrong)


@pytest.mark.parametrize("wrong", [[0.5], [None], ["0"], [[0]], 1.0, {0: 1}])
def test_devices_of_the_wrong_type(choose, gpu, wrong):
    with pytest.raises(ArgumentTypeError, match="devices"):
        choose(accelerator="fakegpu", strategy="many", devices=wrong)


def test_cpu_devices_are_processes(choose, gpu):
    selection = choose(accelerator="cpu", strategy="many", devices=3)
    assert selection.devices == (torch.device("cpu"),) * 3
    with pytest.raises(PoplinError, match="devices"):
        choose(accelerator="cpu", devices=[0, 1])


def test_a_plugins_own_errors_become_ours(choose, offer):
    class Odd(GPU):
        @classmethod
        def parse_devices(cls, devices):
            raise KeyError("odd")

    class Odder(GPU):
        @classmethod
        def get_parallel_devices(cls, devices):
            return ["meta"]

    offer("accelerators", "odd", Odd)
    offer("accelerators", "odder", Odder)
    with pytest.raises(ArgumentValueError, match="odd"):
        choose(accelerator="odd", devices=1)
    with pytest.raises(BrokenPluginError, match="get_parallel_devices"):
        choose(accelerator="odder", devices=1)


def test_available_and_yet_no_device(choose, offer):
    offer("accelerators", "hollow", type("Hollow", (GPU,), {"auto_device_count": classmethod(lambda cls: 0)}))
    with pytest.raises(HardwareAbsentError):
        choose(accelerator="hollow")


def test_devices_of_a_strategy_object(choose, gpu):
    assert choose(strategy=Many(parallel_devices=META[:2]), devices=2).devices == tuple(META[:2])
    assert choose(strategy=Many(parallel_devices=META[1:3]), devices=[1, 2]).devices == tuple(META[1:3])
    with pytest.raises(ContradictionError, match=r"devices=3.*parallel_devices"):
        choose(strategy=Many(parallel_devices=META[:2]), devices=3)


def test_interactive_sessions_take_one_device_unless_told(choose, gpu, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    selection = choose(accelerator="fakegpu", strategy=Many(launcher=Notebook()))
    assert len(selection.devices) == 1
    assert selection.interactive
    assert "interactive" in selection.trace.render()
    assert len(choose(accelerator="fakegpu", strategy=Many(launcher=Notebook()), devices=2).devices) == 2


def test_nodes(choose, gpu):
    assert choose(strategy="many", accelerator="cpu", num_nodes=2).num_nodes == 2
    assert choose(strategy="many", accelerator="cpu", num_nodes="2").num_nodes == 2


# --- environments


def test_local_is_last(choose):
    selection = choose()
    assert isinstance(selection.environment, LocalEnvironment)
    said = next(item for item in selection.trace.decisions if item.subject == "environment")
    assert any("torchrun" in what for what, _ in said.passed_over)


def test_the_innermost_launcher_wins(choose, offer):
    class Inner(Cluster):
        priority = 1000

    offer("environments", "outer_cluster", Cluster)
    offer("environments", "inner_cluster", Inner)
    offer("strategies", "many", Many)
    selection = choose(strategy="many", accelerator="cpu")
    assert type(selection.environment) is Inner
    assert "detected too" in selection.trace.render()
    assert selection.launcher is None


def test_auto_devices_are_the_processes_that_exist(choose, offer, monkeypatch):
    offer("environments", "cluster", Cluster)
    offer("strategies", "many", Many)
    monkeypatch.setattr(Cluster, "world", 6)
    selection = choose(strategy="many", accelerator="cpu")
    assert (len(selection.devices), selection.num_nodes) == (2, 3)
    monkeypatch.setattr(Cluster, "local", None)
    selection = choose(strategy="many", accelerator="cpu")
    assert (len(selection.devices), selection.num_nodes) == (1, 1)


def test_a_broken_detection_is_warned_about_and_traced(choose, offer):
    class Broken(Cluster):
        @staticmethod
        def detect():
            raise RuntimeError("scontrol not found")

    offer("environments", "broken_cluster", Broken)
    with pytest.warns(UserWarning, match=r"broken.cluster.*scontrol"):
        selection = choose()
    assert isinstance(selection.environment, LocalEnvironment)
    assert "scontrol" in selection.trace.render()


def test_environment_by_object_name_and_strategy(choose, offer):
    offer("environments", "cluster", type("Off", (Cluster,), {"detect": staticmethod(lambda: False)}))
    mine = LocalEnvironment()
    assert choose(plugins=mine).environment is mine
    assert choose(plugins="local").environment.detect()
    assert choose(strategy=Many(cluster_environment=mine)).environment is mine
    assert choose(strategy=Many(cluster_environment=mine), plugins=[mine]).environment is mine
    with pytest.raises(ContradictionError, match=r"plugins='cluster'.*cluster_environment"):
        choose(strategy=Many(cluster_environment=mine), plugins="cluster")
    with pytest.raises(ContradictionError):
        choose(strategy=Many(cluster_environment=mine), plugins=LocalEnvironment())


def test_the_environment_is_asked_whether_the_settings_fit(choose, offer):
    class Strict(Cluster):
        def validate_settings(self, num_devices, num_nodes):
            if num_devices != 2:
                raise SelectionError(f"devices={num_devices}, and the cluster started 2 tasks")

    offer("strategies", "many", Many)
    with pytest.raises(SelectionError, match="started 2 tasks"):
        choose(strategy="many", accelerator="cpu", devices=3, plugins=Strict())
    assert len(choose(strategy="many", accelerator="cpu", plugins=Strict()).devices) == 2


def test_torchrun_is_detected(choose, offer, monkeypatch):
    offer("strategies", "many", Many)
    variables = {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0}
    for name, value in {**variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29511}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    selection = choose(strategy="many", accelerator="cpu")
    assert type(selection.environment).__name__ == "TorchrunEnvironment"
    assert len(selection.devices) == 2
    assert selection.launcher is None
    with pytest.raises(SelectionError):
        choose(strategy="many", accelerator="cpu", devices=3)
