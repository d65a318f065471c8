"""``plugins=``, precision, checkpoint IO and launcher."""

from __future__ import annotations

import pytest
from selection_fakes import Cluster, Files, Half, Many, Metrics, Notebook, Rerun

from poplin.accelerators import CPUAccelerator
from poplin.environments import LocalEnvironment
from poplin.errors import (
    ArgumentTypeError,
    ArgumentValueError,
    BrokenPluginError,
    ContradictionError,
    LookupFailedError,
    PoplinError,
    SelectionError,
    UnknownNameError,
)
from poplin.precision import Precision


def decision(selection, subject):
    return next(item for item in selection.trace.decisions if item.subject == subject)


# --- precision


def test_default_precision(choose):
    assert choose().precision.precision == "32-true"
    assert type(choose(precision="32").precision) is Precision
    assert type(choose(plugins="32-true").precision) is Precision


def test_precision_object(choose):
    mine = Half()
    assert choose(plugins=mine).precision is mine
    assert choose(plugins=[mine], precision="16-mixed").precision is mine
    assert choose(precision=mine).precision is mine
    assert choose(strategy=Many(precision=mine)).precision is mine
    assert choose(strategy=Many(precision=mine), precision="16_MIXED").precision is mine


def test_precision_contradictions(choose):
    with pytest.raises(ContradictionError, match=r"precision='32-true'.*plugins=<Half object>"):
        choose(plugins=Half(), precision="32-true")
    with pytest.raises(ContradictionError):
        choose(plugins=Half(), strategy=Many(precision=Half()))
    with pytest.raises(ContradictionError, match="carries precision"):
        choose(precision=32, strategy=Many(precision=Half()))


def test_the_strategys_own_precision_comes_before_the_registrys(choose):
    class Own(Many):
        def make_precision(self, name):
            self.asked = name
            return Half() if name == "32-true" else None

    strategy = Own()
    assert type(choose(strategy=strategy).precision) is Half
    assert strategy.asked == "32-true"
    selection = choose(strategy=Own(), precision="poplin-core:32-true")
    assert type(selection.precision) is Precision
    mine = Precision()
    assert choose(strategy=Own(), plugins=mine).precision is mine


def test_a_strategy_that_makes_no_precision_of_it(choose):
    class Wrong(Many):
        def make_precision(self, name):
            return "16-mixed"

    with pytest.raises(PoplinError, match="make_precision"):
        choose(strategy=Wrong())


def test_the_strategys_veto_of_a_precision(choose):
    class Owner(Many):
        owns_backward = True

    with pytest.raises(SelectionError, match="loss scaling"):
        choose(strategy=Owner(), plugins=Half())


def test_device_types(choose):
    class Elsewhere(Half):
        device_types = ("elsewhere",)

    with pytest.raises(SelectionError, match=r"'cpu'.*elsewhere"):
        choose(plugins=Elsewhere(), accelerator="cpu")


@pytest.mark.parametrize(
    ("typo", "hint"), [("16-mixd", "16-mixed"), ("bf16mixed", "bf16-mixed"), ("32-treu", "32-true"), ("99", "32-true")]
)
def test_a_typo_is_one_error_with_close_matches(choose, typo, hint):
    with pytest.raises(UnknownNameError, match=hint):
        choose(precision=typo)


def test_precision_spelling(choose):
    for spelling in ("32-true", "32_true", "32-TRUE", " 32.true "):
        assert choose(precision=spelling).precision.precision == "32-true"


@pytest.mark.parametrize("wrong", [object(), Precision, Files(), 1.0])
def test_what_is_no_precision(choose, wrong):
    with pytest.raises(ArgumentTypeError, match="precision"):
        choose(precision=wrong)


# --- checkpoint IO


def test_checkpoint_io(choose, offer):
    assert type(choose().checkpoint_io).__name__ == "TorchCheckpointIO"
    mine = Files()
    assert choose(plugins=mine).checkpoint_io is mine
    assert choose(strategy=Many(checkpoint_io=mine)).checkpoint_io is mine
    with pytest.raises(ContradictionError, match="checkpoint"):
        choose(strategy=Many(checkpoint_io=mine), plugins=[Files()])
    offer("checkpoint_ios", "fake_files", Files)
    assert type(choose(plugins="fake_files").checkpoint_io) is Files

    class Wants(Many):
        checkpoint_io_name = "fake_files"

    selection = choose(strategy=Wants())
    assert type(selection.checkpoint_io) is Files
    assert "Wants wants it" in decision(selection, "checkpoint_io").reason
    assert choose(strategy=Wants(), plugins=mine).checkpoint_io is mine


# --- launcher


def test_launcher(choose, offer):
    selection = choose(accelerator="cpu")
    assert selection.launcher is None
    assert "needs no" in decision(selection, "launcher").reason
    assert type(choose(strategy=Many()).launcher).__name__ == "SubprocessLauncher"
    mine = Rerun()
    assert choose(strategy=Many(), plugins=mine).launcher is mine
    assert choose(strategy=Many(launcher=mine)).launcher is mine
    with pytest.raises(ContradictionError, match="launcher"):
        choose(strategy=Many(launcher=mine), plugins="fork")
    offer("launchers", "fake_rerun", Rerun)

    class Wants(Many):
        launcher_name = "fake_rerun"

    assert type(choose(strategy=Wants()).launcher) is Rerun
    assert type(choose(strategy=Many(), plugins="spawn").launcher).__name__ == "MultiProcessingLauncher"


def test_nothing_is_launched_where_the_processes_exist(choose):
    selection = choose(strategy=Many(), plugins=[Cluster(), Rerun()])
    assert selection.launcher is None
    assert any("nothing to launch" in why for _, why in decision(selection, "launcher").passed_over)


def test_interactive_sessions_need_a_launcher_for_them(choose, monkeypatch):
    monkeypatch.setattr("sys.ps1", ">>> ", raising=False)
    with pytest.raises(SelectionError, match=r"notebook.*'fork'"):
        choose(strategy=Many(), accelerator="cpu", devices=2)
    assert choose(strategy=Many(), accelerator="cpu", plugins=Notebook()).launcher is not None
    assert choose(strategy=Many(), accelerator="cpu", plugins="fork").launcher is not None
    assert choose(accelerator="cpu").launcher is None


# --- plugins=


def test_several_plugins(choose):
    files, half = Files(), Half()
    selection = choose(plugins=(files, half, "local", "fork"), strategy=Many())
    assert selection.checkpoint_io is files
    assert selection.precision is half
    assert type(selection.environment) is LocalEnvironment
    assert selection.launcher is not None


@pytest.mark.parametrize("pair", [(Half(), Precision()), ("spawn", "fork"), (Files(), "torch"), (Half(), "32-true")])
def test_two_of_one_kind(choose, pair):
    with pytest.raises(ContradictionError, match="one kind"):
        choose(plugins=list(pair))


def test_the_same_twice_is_fine(choose):
    files = Files()
    assert choose(plugins=[files, files]).checkpoint_io is files
    choose(plugins=["fork", "launchers/fork", "FORK"], strategy=Many())


def test_a_name_of_several_kinds_shows_the_longer_forms(choose, offer):
    offer("launchers", "twofold", Rerun)
    offer("checkpoint_ios", "twofold", Files)
    with pytest.raises(ArgumentValueError, match=r"'checkpoint_ios/twofold' or 'launchers/twofold'"):
        choose(plugins="twofold")
    assert type(choose(plugins="checkpoint_ios/twofold").checkpoint_io) is Files
    assert type(choose(plugins="launcher/runtime:twofold").launcher) is Rerun
    with pytest.raises(ArgumentValueError, match="launchers/runtime:twofold"):
        choose(plugins="runtime:twofold")


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        (3, "Precision"),
        (Half, r"Half\("),
        (Many(), "strategy="),
        (CPUAccelerator(), "accelerator="),
        (Metrics(), "Precision"),
        ([None], "Precision"),
        ("cpu", "accelerator="),
        ("single_device", "strategy="),
        ("csv", "loggers="),
        ("accelerators/cpu", "accelerator="),
        ("ambient/x", "by itself"),
        ("bf16", "bf16-mixed"),
        ("nonsense/x", "kinds"),
        ("", "names nothing"),
    ],
)
def test_what_does_not_belong_there(choose, wrong, hint):
    with pytest.raises(PoplinError, match=hint):
        choose(plugins=wrong)


def test_unknown_and_not_installed_plugin_names(choose):
    with pytest.raises(UnknownNameError, match="launchers/fork"):
        choose(plugins="frok")
    with pytest.raises(LookupFailedError, match=r"pip install|kept out"):
        choose(plugins="slurm")
    with pytest.raises(LookupFailedError, match=r"pip install|kept out"):
        choose(plugins="bf16-mixed")


def test_an_offer_that_cannot_be_made(choose, offer):
    class Needy(Files):
        def __init__(self, path):
            self.path = path

    offer("checkpoint_ios", "needy", Needy)
    offer("checkpoint_ios", "no_io", Metrics)
    with pytest.raises(BrokenPluginError, match="needy") as caught:
        choose(plugins="needy")
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(BrokenPluginError, match="CheckpointIO"):
        choose(plugins="no_io")
