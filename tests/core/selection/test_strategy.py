"""Which strategy: objects, names, redirects, and what plugins answer for ``auto``."""

from __future__ import annotations

import pytest
from selection_fakes import GPU, Cluster, Many

from poplin import hookimpl
from poplin.errors import (
    ArgumentTypeError,
    ContradictionError,
    LookupFailedError,
    NotInstalledError,
    SelectionError,
    UnknownNameError,
)
from poplin.strategies import SingleDeviceStrategy


def decision(selection, subject):
    return next(item for item in selection.trace.decisions if item.subject == subject)


class Answers:
    """An ambient plugin that answers for ``auto``, and redirects by a table."""

    def __init__(self, answer=None, redirects=None):
        self.answer = answer
        self.redirects = redirects or {}
        self.asked = []

    @hookimpl
    def poplin_select_strategy(self, accelerator, num_devices, num_nodes, interactive):
        self.asked.append((accelerator.name(), num_devices, num_nodes, interactive))
        return self.answer

    @hookimpl
    def poplin_redirect_strategy(self, name):
        return self.redirects.get(name)


def test_auto_on_one_device_is_single_device(choose):
    selection = choose(accelerator="cpu")
    assert type(selection.strategy) is SingleDeviceStrategy
    assert selection.strategy.root_device.type == "cpu"
    assert "one device" in decision(selection, "strategy").reason


def test_auto_on_several_devices_with_no_plugin_is_an_error_with_the_pip_command(choose, monkeypatch):
    monkeypatch.setattr("poplin.selection.strategy.kept_out", lambda *_: "")  # as if none were installed
    for arguments in ({"devices": 2}, {"num_nodes": 2}):
        with pytest.raises(NotInstalledError, match=r"pip install poplin-\w+"):
            choose(accelerator="cpu", **arguments)


def test_the_first_answer_counts_for_auto(choose, offer, plugin):
    offer("strategies", "many", Many)
    answers = plugin(Answers("many"))
    selection = choose(accelerator="cpu", devices=3)
    assert type(selection.strategy) is Many
    assert answers.asked == [("cpu", 3, 1, False)]


def test_who_has_no_answer_is_in_the_trace(choose, plugin):
    plugin(Answers(None))
    selection = choose(accelerator="cpu")
    assert any("no strategy for these devices" in why for _, why in decision(selection, "strategy").passed_over)


def test_an_answer_that_cannot_be_had_is_an_error(choose, plugin):
    plugin(Answers("no-such-strategy"))
    with pytest.raises(UnknownNameError, match="no-such-strategy"):
        choose(accelerator="cpu")


def test_a_hook_that_raises_does_not_count(choose, plugin):
    class Raises(Answers):
        @hookimpl
        def poplin_select_strategy(self):
            raise ZeroDivisionError("oh")

    plugin(Raises())
    with pytest.warns(UserWarning, match="ZeroDivisionError"):
        selection = choose(accelerator="cpu")
    assert type(selection.strategy) is SingleDeviceStrategy
    assert "ZeroDivisionError" in selection.trace.render()


def test_redirect(choose, offer, plugin):
    offer("strategies", "many", Many, label="target")
    plugin(Answers(redirects={"old": "many"}))
    selection = choose(accelerator="cpu", strategy="old", devices=2)
    assert selection.strategy.label == "target"
    assert "redirected: 'old' is 'many' on this accelerator" in decision(selection, "strategy").reason


def test_a_chain_of_three_redirects_is_followed_and_no_longer_one(choose, offer, plugin):
    offer("strategies", "e", Many)
    table = plugin(Answers(redirects={"b": "c", "c": "d", "d": "e"})).redirects
    assert type(choose(accelerator="cpu", strategy="b").strategy) is Many
    table["a"] = "b"
    with pytest.raises(SelectionError, match="more than 3"):
        choose(accelerator="cpu", strategy="a")


def test_redirects_in_a_circle_are_an_error(choose, offer, plugin):
    offer("strategies", "many", Many)
    plugin(Answers(redirects={"many": "single_device", "single-device": "Many", "single_device": "MANY"}))
    with pytest.raises(SelectionError, match="circle"):
        choose(accelerator="cpu", strategy="many")


def test_a_redirect_to_itself_is_an_error(choose, plugin):
    plugin(Answers(redirects={"single_device": "single_device"}))
    with pytest.raises(SelectionError, match="circle"):
        choose(accelerator="cpu", strategy="single_device")


def test_objects_are_never_redirected(choose, plugin):
    plugin(Answers(redirects={"single_device": "no-such-thing"}))
    mine = SingleDeviceStrategy()
    assert choose(strategy=mine).strategy is mine


def test_presets_reach_the_constructor_and_nothing_else(choose, offer):
    offer("strategies", "many", Many, label="preset")
    assert choose(strategy="many").strategy.label == "preset"
    assert choose(strategy="runtime:many").strategy.label == "preset"
    assert choose(strategy="strategies/many").strategy.label == "preset"


@pytest.mark.parametrize("wrong", [SingleDeviceStrategy, 3, object(), [], b"x"])
def test_what_is_no_strategy(choose, wrong):
    with pytest.raises(ArgumentTypeError, match="strategy"):
        choose(strategy=wrong)


def test_unknown_and_known_names(choose):
    with pytest.raises(UnknownNameError, match="single_device"):
        choose(strategy="single_devise")
    with pytest.raises(LookupFailedError, match=r"pip install|kept out"):
        choose(strategy="deepspeed")


def test_object_and_variable_are_a_contradiction(choose, monkeypatch):
    monkeypatch.setenv("LT_STRATEGY", "single_device")
    with pytest.raises(ContradictionError, match=r"SingleDeviceStrategy.*LT_STRATEGY"):
        choose(strategy=SingleDeviceStrategy())


def test_the_variable_alone_decides(choose, offer, monkeypatch):
    offer("strategies", "many", Many)
    monkeypatch.setenv("LT_STRATEGY", "many")
    monkeypatch.setenv("LT_DEVICES", "2")
    monkeypatch.setenv("LT_CLI_USED", "1")
    selection = choose(plugins=Cluster())
    assert type(selection.strategy) is Many
    assert len(selection.devices) == 2
    assert selection.under_cli
    assert "LT_STRATEGY" in decision(selection, "strategy").reason


def test_a_variable_of_the_command_line_without_its_processes_is_an_error_and_no_wait_for_them(
    choose, offer, monkeypatch
):
    offer("strategies", "many", Many)
    monkeypatch.setenv("LT_CLI_USED", "1")
    with pytest.raises(SelectionError, match=r"LT_CLI_USED.*2 are needed.*poplin run"):
        choose(strategy="many", devices=2)
    assert choose(strategy="many", devices=1).under_cli


def test_vetoes(choose, offer):
    offer("accelerators", "fakegpu", GPU)
    with pytest.raises(SelectionError, match="single_device"):
        choose(strategy="single_device", accelerator="cpu", devices=2)

    class Picky(GPU):
        def check(self, selection):
            raise SelectionError(f"not with {type(selection.strategy).__name__}")

    with pytest.raises(SelectionError, match="not with SingleDeviceStrategy"):
        choose(accelerator=Picky(), devices=1)


def test_an_ambient_plugin_can_veto(choose, plugin):
    class Veto:
        @hookimpl
        def poplin_check_selection(self, selection):
            if len(selection.devices) == 1:
                raise SelectionError("this platform wants two devices")

    plugin(Veto())
    with pytest.raises(SelectionError, match="wants two"):
        choose(accelerator="cpu")
