"""Binding: the documented order; what raises leaves nothing behind; objects can be used again."""

from __future__ import annotations

import pytest
import torch
from selection_fakes import Files, Half, Many, Metrics, Rerun

from poplin.accelerators import CPUAccelerator
from poplin.environments import LocalEnvironment
from poplin.errors import ArgumentTypeError, BrokenPluginError, ContradictionError, PoplinError, SelectionError
from poplin.loggers import Logger
from poplin.precision import Precision
from poplin.selection import Request, Selection, explain_request, reader_for, released_on_error, select, select_loggers


def recorded(cls, log):
    """A subclass of ``cls`` that writes into ``log`` when it is bound and torn down."""

    def bind(self, selection):
        log.append(("bind", cls.__name__))
        cls.bind(self, selection)

    def teardown(self):
        log.append(("teardown", cls.__name__))
        cls.teardown(self)

    return type(cls.__name__, (cls,), {"bind": bind, "teardown": teardown})


ORDER = ["CPUAccelerator", "LocalEnvironment", "Many", "Precision", "Files", "Rerun"]


def parts(log):
    accelerator, environment, strategy, precision, files, rerun = (
        recorded(cls, log)() for cls in (CPUAccelerator, LocalEnvironment, Many, Precision, Files, Rerun)
    )
    return {"accelerator": accelerator, "strategy": strategy, "plugins": [files, rerun, precision, environment]}


def test_bound_once_in_the_documented_order():
    log = []
    selection = select(Request.read(**parts(log)))
    assert log == [("bind", name) for name in ORDER]
    assert selection.strategy.precision is selection.precision
    assert selection.strategy.parallel_devices == [torch.device("cpu")]
    assert selection.strategy.launcher is selection.launcher
    assert [type(part).__name__ for part in selection.parts()] == ORDER


def test_a_bind_that_raises_undoes_those_before_it():
    log = []
    arguments = parts(log)

    class Bad(Half):
        precision = "32-true"

        def bind(self, selection):
            self.touched = True
            raise RuntimeError("no")

    bad = Bad()
    arguments["plugins"][2] = bad
    before = {name: dict(vars(arguments[name])) for name in ("accelerator", "strategy")}
    with pytest.raises(BrokenPluginError, match="Bad") as caught:
        select(Request.read(**arguments))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert log == [("bind", name) for name in ORDER[:3]] + [("teardown", name) for name in reversed(ORDER[:3])]
    assert {name: vars(arguments[name]) for name in before} == before
    assert vars(bad) == {}


def test_a_refused_selection_binds_nothing():
    log = []
    arguments = parts(log)
    arguments["precision"] = "16-mixed"
    with pytest.raises(ContradictionError):
        select(Request.read(**arguments))
    assert log == []


def test_a_veto_with_another_error_is_a_broken_plugin():
    class Veto(Many):
        def check(self, selection):
            raise KeyError("x")

    with pytest.raises(BrokenPluginError, match="check"):
        select(Request.read(strategy=Veto()))


def test_check_comes_before_any_bind():
    log = []

    class Veto(recorded(Many, log)):
        def check(self, selection):
            assert isinstance(selection, Selection)
            assert log == []
            raise SelectionError("use another")

    with pytest.raises(SelectionError, match="use another"):
        select(Request.read(strategy=Veto()))
    assert log == []


def test_a_strategy_object_can_serve_one_fabric_after_the_other():
    """What binding put on the object is not taken for the user's own wish the next time."""
    strategy = Many()
    select(Request.read(accelerator="cpu", strategy=strategy, devices=2))
    selection = select(Request.read(accelerator=CPUAccelerator(), strategy=strategy, devices=3, plugins=Half()))
    assert len(selection.devices) == 3
    assert strategy.precision is selection.precision
    carried = Half()
    strategy = Many(precision=carried)
    for _ in range(2):
        assert select(Request.read(strategy=strategy)).precision is carried
    strategy.precision = other = Half()  # set by the user since
    assert select(Request.read(strategy=strategy)).precision is other
    with pytest.raises(ContradictionError):
        select(Request.read(strategy=strategy, plugins=carried))


def test_nothing_of_the_selection_before_stays_on_a_strategy_object():
    strategy = Many()
    half, files = Half(), Files()
    select(Request.read(strategy=strategy, plugins=[half, files]))
    assert strategy.precision is half
    selection = select(Request.read(strategy=strategy))
    assert selection.precision.precision == "32-true"
    assert selection.checkpoint_io is not files


def test_a_strategy_that_does_not_call_its_base_class():
    class Bare(Many):
        def __init__(self):
            pass

    selection = select(Request.read(strategy=Bare(), devices=2, accelerator="cpu"))
    assert len(selection.strategy.parallel_devices) == 2


@pytest.mark.parametrize(
    "carried",
    [
        {"precision": 3},
        {"precision": "16-mixd"},
        {"accelerator": 3},
        {"accelerator": CPUAccelerator},
        {"checkpoint_io": object()},
        {"cluster_environment": "nowhere"},
        {"launcher": 3},
        {"parallel_devices": ["cpu"]},
        {"parallel_devices": [torch.device("cpu"), torch.device("meta")]},
        {"parallel_devices": [torch.device("meta")]},
    ],
)
def test_a_strategy_object_that_carries_what_cannot_be_used(carried):
    with pytest.raises(PoplinError, match=next(iter(carried)) + "|nowhere|16-mixd"):
        select(Request.read(strategy=Many(**carried)))


def test_a_strategy_object_may_carry_names():
    selection = select(Request.read(strategy=Many(precision="32-true", accelerator="cpu", checkpoint_io="torch")))
    assert selection.strategy.precision is selection.precision


def test_two_selections_share_nothing():
    one, two = select(Request.read()), select(Request.read())
    assert one.trace is not two.trace
    assert not {id(part) for part in one.parts()} & {id(part) for part in two.parts()}


def test_immutable():
    with pytest.raises(AttributeError):
        select(Request.read()).devices = ()


# --- explain


def test_explain_makes_nothing():
    log = []
    text = explain_request(Request.read(**parts(log)))
    assert log == []
    for word in ("accelerator", "cpu", "poplin-core", "because", "strategy", "precision", "32-true", "launcher"):
        assert word in text


def test_explain_shows_how_far_a_refused_request_came():
    text = explain_request(accelerator="cpu", strategy="single_devise")
    assert text.startswith("accelerator")
    assert "refused (UnknownNameError)" in text
    assert "single_device" in text
    assert "refused (ContradictionError)" in explain_request(Request.read(precision="32-true", plugins=Half()))
    assert explain_request(devices=[]).startswith(("accelerator", "refused"))


# --- loggers


class Log(Logger):
    bound = None

    def bind(self, selection):
        self.bound = selection

    def log_metrics(self, metrics, step=None): ...


def test_loggers(offer):
    selection = select(Request.read())
    assert select_loggers(None, selection) == []
    mine, log = Metrics(), Log()
    assert select_loggers(mine, selection) == [mine]
    assert select_loggers([mine, log], selection) == [mine, log]
    assert log.bound is selection
    assert select_loggers(iter((log,)), selection) == [log]
    assert set(select_loggers({mine, log}, selection)) == {mine, log}
    offer("loggers", "fake_log", Metrics)
    assert type(select_loggers("fake_log", selection)[0]) is Metrics
    assert type(select_loggers(("fake_log", mine), selection)[0]) is Metrics
    assert sum(item.subject == "logger" for item in selection.trace.decisions) >= 3


@pytest.mark.parametrize("wrong", [3, object(), Metrics, {"a": Metrics()}, [None], "no_such_logger", [["x"]]])
def test_what_is_no_logger(wrong):
    selection = select(Request.read())
    with pytest.raises(PoplinError):
        select_loggers(wrong, selection)
    assert not any(item.subject == "logger" for item in selection.trace.decisions)


def test_a_logger_whose_bind_raises():
    log = Log()

    class Bad(Log):
        def bind(self, selection):
            raise OSError("read-only")

    with pytest.raises(BrokenPluginError, match="read-only"):
        select_loggers([log, Bad()], select(Request.read()))
    assert log.bound is None


def test_a_strangers_method_called_bind_is_not_ours():
    class Structured(Metrics):
        def bind(self, **fields):
            raise AssertionError

    select_loggers(Structured(), select(Request.read()))
    with pytest.raises(ArgumentTypeError, match="log_metrics"):
        select_loggers(object(), select(Request.read()))


# --- readers


def test_reader(tmp_path, offer):
    default = select(Request.read()).checkpoint_io
    assert reader_for(tmp_path / "nothing", default) is default
    offer("checkpoint_ios", "fake_files", Files)
    selection = select(Request.read())
    assert type(reader_for(tmp_path / "a.fake", default, selection.trace)) is Files
    assert "recognises" in selection.trace.render()
    mine = Files()
    assert reader_for("b.fake", mine) is mine


def test_what_fails_after_the_selection_releases_it():
    log = []
    selection = select(Request.read(**parts(log)))
    with pytest.raises(PoplinError), released_on_error(selection):
        select_loggers("no_such_logger", selection)
    assert log[len(ORDER) :] == [("teardown", name) for name in reversed(ORDER)]
