"""Which accelerator: by name, role, object; never a silent CPU."""

from __future__ import annotations

import sys

import pytest
import torch
from selection_fakes import GPU, AbsentGPU, Many

from poplin.accelerators import Accelerator, CPUAccelerator
from poplin.errors import (
    ArgumentTypeError,
    BlockedNameError,
    BrokenPluginError,
    ContradictionError,
    HardwareAbsentError,
    MisconfigurationException,
    NotInstalledError,
    UnknownNameError,
)
from poplin.selection import torch_devices


def decision(selection, subject):
    return next(item for item in selection.trace.decisions if item.subject == subject)


def test_auto_alone_is_the_cpu_and_says_why(choose):
    selection = choose()
    assert isinstance(selection.accelerator, CPUAccelerator)
    assert selection.devices == (torch.device("cpu"),)
    said = decision(selection, "accelerator")
    assert said.choice == "cpu"
    assert said.provider.startswith("poplin-core")
    assert "highest priority" in said.reason


def test_auto_takes_the_available_one_of_highest_priority(choose, offer):
    class Better(GPU):
        priority = 20

    offer("accelerators", "fakegpu", GPU)
    offer("accelerators", "better", Better)
    offer("accelerators", "absent", type("Best", (AbsentGPU,), {"priority": 30}))
    selection = choose(devices=1)
    assert type(selection.accelerator) is Better
    over = dict(decision(selection, "accelerator").passed_over)
    assert "no fake driver" in next(why for what, why in over.items() if "absent" in what)
    assert any("fakegpu" in what and "priority 10" in why for what, why in over.items())
    assert any("cpu" in what for what in over)


def test_gpu_is_a_role(choose, offer):
    offer("accelerators", "fakegpu", GPU)
    assert type(choose(accelerator="gpu", devices=1).accelerator) is GPU
    assert type(choose(accelerator="GPU", devices=1).accelerator) is GPU


def test_gpu_without_any_gives_the_reason(choose, offer):
    offer("accelerators", "absent", AbsentGPU)
    with pytest.raises(HardwareAbsentError, match="no fake driver"):
        choose(accelerator="gpu")


def test_auto_with_the_cpu_kept_out_says_what_is_kept_out(choose, offer, monkeypatch):
    offer("accelerators", "fakegpu", AbsentGPU)
    monkeypatch.setenv("POPLIN_DISABLE_PLUGINS", "accelerators/cpu")
    with pytest.raises(HardwareAbsentError, match="kept out by a control, are .*cpu") as caught:
        choose()
    assert "accelerator='auto' or" not in str(caught.value)


def test_auto_with_nothing_here_does_not_advise_auto(choose, monkeypatch):
    from poplin.accelerators import CPUAccelerator

    monkeypatch.setattr(CPUAccelerator, "availability", classmethod(lambda cls: (False, "switched off")))
    monkeypatch.delenv("POPLIN_PLUGINS")
    with pytest.raises(HardwareAbsentError, match="switched off.*name an accelerator that is here") as caught:
        choose()
    assert "'auto' or another" not in str(caught.value)


def test_gpu_without_a_plugin_says_so(choose):
    with pytest.raises((NotInstalledError, BlockedNameError), match="gpu"):
        choose(accelerator="gpu")


def test_what_must_be_asked_for_is_not_taken_by_auto(choose, offer):
    class Shy(GPU):
        roles = ()

    offer("accelerators", "shy", Shy)
    assert choose().accelerator.name() == "cpu"
    assert type(choose(accelerator="shy", devices=1).accelerator) is Shy


def test_a_broken_accelerator_and_auto_is_an_error_that_names_it(choose, offer):
    class Broken(GPU):
        @classmethod
        def availability(cls):
            raise OSError("driver library missing")

    offer("accelerators", "broken_one", Broken)
    for arguments in ({}, {"accelerator": "gpu"}):
        with pytest.raises(BrokenPluginError, match=r"broken.one.*driver library missing") as caught:
            choose(**arguments)
        assert caught.value.__cause__ is not None
    assert choose(accelerator="cpu").accelerator.name() == "cpu"


def test_an_accelerator_that_cannot_be_imported_and_auto(choose, offer):
    from poplin import lazy

    offer("accelerators", "unimportable", lazy("no_such_module_of_ours:Thing"))
    with pytest.raises(BrokenPluginError, match="no_such_module_of_ours"):
        choose()


def test_absent_by_name_and_by_object(choose, offer):
    offer("accelerators", "absent", AbsentGPU)
    for accelerator in ("absent", AbsentGPU()):
        with pytest.raises(HardwareAbsentError, match="no fake driver") as caught:
            choose(accelerator=accelerator)
        assert isinstance(caught.value, MisconfigurationException)
        assert isinstance(caught.value, RuntimeError)  # which moved `except` clauses expect


class Unregistered(Accelerator):
    """Devices of a type that no library has registered with torch."""

    device_type = "acme"

    @staticmethod
    def name():
        return "acme"


@pytest.mark.parametrize("by", ["name", "object"])
def test_a_device_type_that_torch_does_not_know_is_no_matter_of_another_machine(choose, offer, by):
    """It said "Run it where there is such a device", which helps nobody whose torch can't have one."""
    offer("accelerators", "acme", Unregistered)
    with pytest.raises(HardwareAbsentError, match=r"knows no device type 'acme'.*the library that registers") as caught:
        choose(accelerator="acme" if by == "name" else Unregistered())
    told = str(caught.value)
    assert "torch.utils.rename_privateuse1_backend" in told
    assert "group torch.backends" in told
    assert "Run it where" not in told
    assert "opengl" not in told  # torch's own words list every type there is


@pytest.mark.parametrize("devices", [1, "auto"])
@pytest.mark.parametrize("counts", [True, False])
def test_a_device_type_that_torch_does_not_know_is_not_blamed_on_the_devices(choose, offer, devices, counts):
    """Its own availability() says yes, and ``devices=1: the accelerator can't use it`` was told."""

    class Hopeful(Unregistered):
        @classmethod
        def availability(cls):
            return True, "two boards are on the bus"

        if counts:

            @classmethod
            def auto_device_count(cls):
                return 2

    offer("accelerators", "acme", Hopeful)
    with pytest.raises(HardwareAbsentError, match=r"knows no device type 'acme'.*the library that registers") as caught:
        choose(accelerator="acme", devices=devices)
    assert "opengl" not in str(caught.value)


def test_the_reason_of_an_absent_device_is_short():
    """Each skipped check of the compliance suite repeats it."""
    assert Unregistered.availability() == (False, f"this torch {torch.__version__} knows no device type 'acme'")
    nameless = type("Nameless", (Unregistered,), {"device_type": "meta"})  # a type without a module
    assert nameless.availability() == (
        False,
        f"nothing has brought torch {torch.__version__} its module for 'meta' devices",
    )


def test_torch_sees_a_device_that_nothing_serves(choose, monkeypatch):
    """`auto` must not train on the CPU in silence."""
    monkeypatch.setattr(torch_devices, "visible_device_type", lambda served: None if "cuda" in served else "cuda")
    with pytest.raises(NotInstalledError, match=r"'cuda'.*kept out.*poplin-cuda.*accelerator='cpu'"):
        choose()  # it is installed where these tests run, and not allowed in
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "site-packages" not in folder])
    with pytest.raises(NotInstalledError, match=r"'cuda'.*pip install poplin-cuda.*accelerator='cpu'"):
        choose()
    assert choose(accelerator="cpu").accelerator.name() == "cpu"


def test_torch_sees_a_device_that_nobody_knows(choose, monkeypatch):
    monkeypatch.setattr(torch_devices, "visible_device_type", lambda served: "strange")
    with pytest.raises(NotInstalledError, match="strange"):
        choose()


def test_torch_sees_a_device_whose_plugin_says_it_is_absent(choose, offer, monkeypatch):
    """The plugin that serves a device type has the last word on it; the trace has its reason."""
    offer("accelerators", "absent", AbsentGPU)
    monkeypatch.setattr(torch_devices, "visible_device_type", lambda served: None if "meta" in served else "meta")
    assert choose().accelerator.name() == "cpu"


def test_torch_is_really_asked():
    assert torch_devices.visible_device_type() is None or isinstance(torch_devices.visible_device_type(), str)


def test_object(choose):
    mine = CPUAccelerator()
    selection = choose(accelerator=mine)
    assert selection.accelerator is mine
    assert "poplin-core" in decision(selection, "accelerator").provider


@pytest.mark.parametrize("wrong", [CPUAccelerator, 3, object(), 1.5, ["cpu"], b"cpu"])
def test_what_is_no_accelerator(choose, wrong):
    with pytest.raises(ArgumentTypeError, match="accelerator"):
        choose(accelerator=wrong)


def test_unknown_name_has_close_matches(choose):
    with pytest.raises(UnknownNameError, match="cpu"):
        choose(accelerator="cpuu")


def test_contradictions(choose, offer):
    offer("accelerators", "fakegpu", GPU)
    with pytest.raises(ContradictionError, match=r"accelerator='cpu'.*Many object carries accelerator"):
        choose(accelerator="cpu", strategy=Many(accelerator=GPU()))
    with pytest.raises(ContradictionError, match="parallel_devices"):
        choose(accelerator="fakegpu", strategy=Many(parallel_devices=[torch.device("cpu")]))
    with pytest.raises(ContradictionError):
        choose(accelerator=GPU(), strategy=Many(accelerator=GPU()), devices=1)


def test_no_contradictions(choose, offer):
    offer("accelerators", "fakegpu", GPU)
    mine = GPU()
    assert choose(accelerator=mine, strategy=Many(accelerator=mine), devices=1).accelerator is mine
    assert choose(accelerator="fakegpu", strategy=Many(accelerator=mine), devices=1).accelerator is mine
    assert choose(accelerator="gpu", strategy=Many(accelerator=mine), devices=1).accelerator is mine
    assert choose(strategy=Many(accelerator=mine), devices=1).accelerator is mine


def test_an_object_and_the_variable_with_its_name_are_one(choose, monkeypatch):
    monkeypatch.setenv("LT_ACCELERATOR", "cpu")
    mine = CPUAccelerator()
    assert choose(accelerator=mine).accelerator is mine
    monkeypatch.setenv("LT_ACCELERATOR", "fakegpu")
    with pytest.raises(ContradictionError, match=r"CPUAccelerator object.*LT_ACCELERATOR=fakegpu"):
        choose(accelerator=mine)


def test_the_devices_of_a_strategy_object_decide(choose, offer):
    offer("accelerators", "fakegpu", GPU)
    selection = choose(strategy=Many(parallel_devices=[torch.device("cpu")] * 2))
    assert selection.accelerator.name() == "cpu"
    assert len(selection.devices) == 2
    selection = choose(strategy=Many(parallel_devices=[torch.device("meta", 1)]))
    assert selection.accelerator.name() == "fakegpu"
    assert selection.devices == (torch.device("meta", 1),)
