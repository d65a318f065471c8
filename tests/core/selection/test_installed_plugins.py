"""The selection over installed distributions: real metadata folders, real modules."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from poplin import registry
from poplin.errors import BrokenPluginError, IncompatiblePluginError, NameConflictError, SelectionError
from poplin.selection import explain_request
from poplin.testing.distributions import make_distribution

STRATEGY = """
import torch
from poplin.strategies import Strategy

class Twin(Strategy):
    needs_launch = True
    settings = None

    def __init__(self, tuned=False, **carried):
        super().__init__(**carried)
        self.tuned = tuned

    @property
    def root_device(self):
        return self.parallel_devices[0]
"""
ACCELERATOR = """
from poplin.accelerators import Accelerator

class Card(Accelerator):
    device_type = "meta"
    roles = ("auto", "gpu")
    priority = 5

    @staticmethod
    def name():
        return "card"

    @classmethod
    def availability(cls):
        return {available}, "the driver says so"

    @classmethod
    def auto_device_count(cls):
        return 2
"""


@pytest.fixture
def install(tmp_path, monkeypatch) -> Callable[..., Any]:
    """``install(name, entry_points, **modules)``: a distribution, for the length of a test."""
    monkeypatch.delenv("POPLIN_PLUGINS")
    monkeypatch.setenv("POPLIN_DISABLE_PLUGINS", "poplin-ddp")  # of the developer's environment
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    allowed: list[str] = []

    def make(name, entry_points, requires=(), version="1.0", **modules):
        allowed.append(name)
        monkeypatch.delenv("POPLIN_DISABLE_PLUGINS", raising=False)
        monkeypatch.setenv("POPLIN_PLUGINS", ",".join(allowed))
        files = {f"{module}.py": source for module, source in modules.items()}
        make_distribution(tmp_path, name, version, entry_points, modules=files, requires=requires)
        registry.refresh()

    yield make
    for module in set(sys.modules) - before:
        if getattr(sys.modules[module], "__file__", None) and str(tmp_path) in str(sys.modules[module].__file__):
            del sys.modules[module]
    monkeypatch.undo()
    registry.refresh()


PLUGIN = """
from poplin import hookimpl, lazy

@hookimpl
def poplin_{kind}():
    return {{{offers}}}
{extra}
"""


def twin(install, name="acme-twin", module="acme_twin", entries=("twin", "twin_tuned"), extra="", roles=()):
    offers = ""
    for entry in entries:
        presets = ", tuned=True" if "tuned" in entry else ""
        offers += f'"{entry}": lazy("{module}_strategy:Twin"{presets}), '
    files = {
        module: PLUGIN.format(kind="strategies", offers=offers, extra=extra),
        f"{module}_strategy": STRATEGY,
    }
    install(name, {"poplin.strategies": dict.fromkeys((*entries, *roles), module)}, **files)


def card(install, available=True, extra="", roles=("auto", "gpu")):
    offers = '"card": lazy("acme_card_device:Card")'
    files = {
        "acme_card": PLUGIN.format(kind="accelerators", offers=offers, extra=extra),
        "acme_card_device": ACCELERATOR.format(available=available),
    }
    install("acme-card", {"poplin.accelerators": dict.fromkeys(("card", *roles), "acme_card")}, **files)


def test_by_name_with_presets_and_nothing_else_is_imported(choose, install):
    twin(install)
    twin(install, "other-twin", "other_twin", ("other",))
    selection = choose(strategy="twin_tuned", devices=2)
    assert selection.strategy.tuned
    assert "acme-twin 1.0" in selection.trace.render()
    assert "acme_twin" in sys.modules
    assert "other_twin" not in sys.modules
    choose(strategy="other")
    assert "other_twin" in sys.modules


def test_a_named_run_asks_no_role(choose, install):
    twin(install, roles=("auto",))
    card(install)
    choose(accelerator="cpu", strategy="single_device")
    assert not {"acme_twin", "acme_card"} & set(sys.modules)


def test_a_role_plugin_answers_for_auto(choose, install):
    twin(
        install,
        roles=("auto",),
        extra="@hookimpl\ndef poplin_select_strategy(num_devices):\n    return 'twin' if num_devices > 1 else None\n",
    )
    selection = choose(accelerator="cpu", devices=2)
    assert type(selection.strategy).__name__ == "Twin"
    assert "acme-twin 1.0 answered first" in selection.trace.render()
    assert type(choose(accelerator="cpu").strategy).__name__ == "SingleDeviceStrategy"


def test_an_accelerator_takes_its_roles(choose, install):
    card(install)
    for accelerator in ("auto", "gpu", "card", "acme-card:card"):
        selection = choose(accelerator=accelerator, devices=1)
        assert type(selection.accelerator).__name__ == "Card"
        assert "acme-card 1.0" in selection.trace.render()


def test_an_absent_accelerator_leaves_auto_to_the_cpu_with_its_reason_in_the_trace(choose, install):
    card(install, available=False)
    selection = choose()
    assert selection.accelerator.device_type == "cpu"
    assert "not card (acme-card 1.0): the driver says so" in selection.trace.render()


@pytest.mark.parametrize("fault", ["raise OSError('libcard.so: cannot open')", "import sys; sys.exit('libcard.so')"])
def test_a_plugin_that_breaks_at_import_is_no_silent_cpu_run(choose, install, fault):
    card(install, extra=fault)
    for accelerator in ("auto", "gpu"):
        with pytest.raises(BrokenPluginError, match=r"acme-card 1\.0.*libcard\.so"):
            choose(accelerator=accelerator)
    assert choose(accelerator="cpu").accelerator.device_type == "cpu"
    text = explain_request()
    assert "refused (BrokenPluginError)" in text
    assert "acme-card" in text


def test_a_role_that_the_metadata_forgot_is_told(choose, install):
    card(install, roles=("auto",))
    assert choose(devices=1).accelerator.name() == "card"
    with pytest.raises(SelectionError, match=r"Never asked was 'card' of acme-card 1\.0: .*the role 'gpu'"):
        choose(accelerator="gpu")
    rows = {(row.kind, row.name): row for row in registry.rows(load=True)}
    assert rows["accelerators", "card"].status == "loaded"
    assert "takes the role 'gpu'" in rows["accelerators", "card"].reason
    assert rows["accelerators", "cpu"].reason == ""


def test_an_incompatible_accelerator_plugin_is_no_silent_cpu_run(choose, install):
    install(
        "acme-card",
        {"poplin.accelerators": {"card": "acme_card_future", "auto": "acme_card_future"}},
        requires=["poplin-core>=99"],
        acme_card_future="raise AssertionError('imported')",
    )
    with pytest.raises(BrokenPluginError, match=r"acme-card.*99"):
        choose()
    with pytest.raises(IncompatiblePluginError, match="99"):
        choose(accelerator="card")
    assert "acme_card_future" not in sys.modules


def test_two_distributions_with_one_name(choose, install):
    twin(install)
    twin(install, "zeta-twin", "zeta_twin", ("twin",))
    with pytest.raises(NameConflictError, match=r"acme-twin:twin.*zeta-twin:twin"):
        choose(strategy="twin")
    assert "zeta-twin 1.0" in choose(strategy="zeta-twin:twin").trace.render()


def test_the_accelerators_plugin_redirects_a_name(choose, install):
    twin(install)
    card(
        install,
        extra="@hookimpl\ndef poplin_redirect_strategy(name):\n    return {'classic': 'twin'}.get(name)\n",
    )
    selection = choose(accelerator="card", strategy="classic", devices=1)
    assert type(selection.strategy).__name__ == "Twin"
    assert "'classic' is 'twin' on this accelerator by acme-card 1.0" in selection.trace.render()
    with pytest.raises(SelectionError, match="classic"):
        choose(accelerator="cpu", strategy="classic")


PLATFORM = """
from poplin import hookimpl
from poplin.errors import SelectionError

@hookimpl(wrapper=True)
def poplin_select_strategy():
    yield
    return "twin_tuned"

@hookimpl
def poplin_check_selection(selection):
    if selection.num_nodes > 1:
        raise SelectionError("This platform has one node. Use num_nodes=1.")
"""


def test_a_platform_team_overrides_auto_and_vetoes(choose, install):
    twin(install, roles=("auto",), extra="@hookimpl(tryfirst=True)\ndef poplin_select_strategy():\n    return 'twin'\n")
    install("acme-platform", {"poplin.ambient": {"platform": "acme_platform"}}, acme_platform=PLATFORM)
    selection = choose(accelerator="cpu", devices=2)
    assert selection.strategy.tuned
    text = selection.trace.render()
    assert "acme-platform" in text
    assert "not twin: acme-twin 1.0 says so" in text
    with pytest.raises(SelectionError, match="one node"):
        choose(accelerator="cpu", num_nodes=2)


def test_a_broken_strategy_plugin_with_the_role_is_warned_about_and_traced(choose, install):
    twin(install, roles=("auto",), extra="raise RuntimeError('no engine')")
    with pytest.warns(UserWarning, match="no engine"):
        selection = choose(accelerator="cpu")
    assert type(selection.strategy).__name__ == "SingleDeviceStrategy"
    assert "no engine" in selection.trace.render()
    with pytest.raises(SelectionError, match="no engine"):
        choose(accelerator="cpu", devices=2)


def test_a_blocked_plugin_is_named_where_it_would_have_been_needed(choose, install, monkeypatch):
    twin(install, roles=("auto",))
    monkeypatch.setenv("POPLIN_DISABLE_PLUGINS", "acme-twin")
    with pytest.raises(SelectionError, match="kept out: acme-twin"):
        choose(accelerator="cpu", devices=2)


def test_a_plugin_that_could_not_be_asked_is_not_among_those_that_were(choose, install):
    source = "from poplin import hookimpl\n@hookimpl\ndef poplin_check_selection(): {}"
    install("asked", {"poplin.ambient": {"asked": "asked_p"}}, asked_p=source.format("..."))
    install("broken", {"poplin.ambient": {"broken": "broken_p"}}, broken_p="import not_there_at_all")
    install(
        "stumbles",
        {"poplin.ambient": {"stumbles": "stumbles_p"}},
        stumbles_p=source.format("raise OSError('no quota')"),
    )
    with pytest.warns(UserWarning, match="installed but broken"):
        selection = choose(accelerator="cpu", strategy="single_device")
    (checks,) = [decision for decision in selection.trace.decisions if decision.subject == "checks"]
    assert checks.reason.endswith(": the accelerator, the strategy, asked 1.0")
    failed = dict(checks.passed_over)
    assert "not_there_at_all" in failed["broken 1.0"]
    assert "no quota" in failed["stumbles 1.0"]
