"""Arguments and environment variables: which is read, when they contradict, what legacy spellings become."""

from __future__ import annotations

import pickle
import warnings

import pytest

from poplin.errors import ArgumentTypeError, ArgumentValueError, ContradictionError, PoplinError
from poplin.selection import Request


def read(environ: dict[str, str] | None = None, **arguments: object) -> Request:
    return Request.read(environ=environ or {}, **arguments)


def test_nothing_asked_for_is_nothing_explicit():
    request = read()
    assert (request.accelerator, request.strategy, request.devices) == ("auto", "auto", "auto")
    assert (request.num_nodes, request.precision, request.plugins, request.under_cli) == (1, None, (), False)
    assert request.sources == {}


@pytest.mark.parametrize("subject", ["accelerator", "strategy", "devices", "precision"])
def test_auto_and_none_are_not_explicit(subject):
    name = subject.upper()
    for open_value in ("auto", None, " AUTO "):
        request = read({f"LT_{name}": "2"}, **{subject: open_value})
        assert getattr(request, subject) == "2"
        assert f"LT_{name}" in request.explicit(subject).origin
    request = read({f"LT_{name}": "auto"}, **{subject: "7"})
    assert getattr(request, subject) == "7"
    assert "argument" in request.explicit(subject).origin


@pytest.mark.parametrize(
    ("subject", "argument", "variable"),
    [
        ("accelerator", "cpu", "gpu"),
        ("strategy", "one", "two"),
        ("devices", 2, "3"),
        ("devices", [0, 1], "0,2"),
        ("devices", [1], "1"),  # the device 1, and one device
        ("num_nodes", 2, "3"),
        ("precision", "32-true", "64-true"),
        ("precision", 16, "bf16-mixed"),
    ],
)
@pytest.mark.filterwarnings("ignore:precision=")
def test_argument_and_variable_that_differ_are_an_error_that_names_both(subject, argument, variable):
    for prefix in ("LT_", "POPLIN_"):
        with pytest.raises(ContradictionError) as caught:
            read({prefix + subject.upper(): variable}, **{subject: argument})
        message = str(caught.value)
        assert f"{subject}={argument!r}" in message
        assert f"{prefix}{subject.upper()}={variable}" in message
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("subject", "argument", "variable"),
    [
        ("accelerator", "cpu", "CPU"),
        ("strategy", "single_device", "single-device"),
        ("devices", 2, "2"),
        ("devices", "0, 1", "0,1"),
        ("devices", [0, 1], "0,1"),
        ("devices", [1], "1,"),
        ("num_nodes", 2, "2"),
        ("precision", "bf16-mixed", "bf16"),
        ("precision", 32, "32-true"),
    ],
)
@pytest.mark.filterwarnings("ignore:precision=")
def test_the_same_written_otherwise_is_no_contradiction(subject, argument, variable):
    read({f"LT_{subject.upper()}": variable}, **{subject: argument})


def test_poplin_variables_win_over_lightnings_and_the_request_says_so():
    request = read({"LT_ACCELERATOR": "gpu", "POPLIN_ACCELERATOR": "cpu"})
    assert request.accelerator == "cpu"
    assert ("accelerator", "POPLIN_ACCELERATOR=cpu wins over LT_ACCELERATOR=gpu") in request.notes


def test_an_empty_variable_is_as_good_as_none():
    assert read({"LT_DEVICES": "", "POPLIN_STRATEGY": ""}).sources == {}


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("0", False), ("", False), ("true", True)])
def test_under_cli(value, expected):
    assert read({"LT_CLI_USED": value}).under_cli is expected
    assert read({"POPLIN_CLI_USED": value, "LT_CLI_USED": "0"}).under_cli is expected


@pytest.mark.parametrize(
    ("written", "canonical", "warns"),
    [
        (16, "16-mixed", True),
        ("16", "16-mixed", True),
        ("bf16", "bf16-mixed", True),
        (32, "32-true", False),
        ("32", "32-true", False),
        (64, "64-true", False),
        ("64", "64-true", False),
        ("16-true", "16-true", False),
        ("Transformer_Engine", "Transformer_Engine", False),
    ],
)
def test_legacy_precisions(written, canonical, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert read(precision=written).precision == canonical
    assert [canonical in str(warning.message) for warning in caught] == ([True] if warns else [])


@pytest.mark.parametrize(
    "arguments",
    [
        {"devices": True},
        {"devices": 1.5},
        {"devices": {0}},
        {"num_nodes": True},
        {"num_nodes": 1.5},
        {"num_nodes": [1]},
        {"precision": 16.0},
        {"precision": True},
        {"precision": ["32-true"]},
    ],
)
def test_wrong_types(arguments):
    with pytest.raises(ArgumentTypeError) as caught:
        read(**arguments)
    assert next(iter(arguments)) in str(caught.value)
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize(
    "arguments",
    [{"accelerator": ""}, {"strategy": " "}, {"devices": ""}, {"devices": ","}, {"precision": ""}]
    + [{"num_nodes": value} for value in (0, -1, "x", "")],
)
def test_wrong_values(arguments):
    with pytest.raises(ArgumentValueError):
        read(**arguments)


def test_a_wrong_variable_is_named():
    with pytest.raises(PoplinError, match="LT_NUM_NODES=many"):
        read({"LT_NUM_NODES": "many"})


def test_numpy_integers_are_integers():
    numpy = pytest.importorskip("numpy")
    assert read(devices=numpy.int64(2), num_nodes=numpy.int32(3)).devices == 2
    assert read(devices=[numpy.int64(0)]).devices == [0]


def test_plugins_are_one_or_several():
    one = object()
    assert read(plugins=one).plugins == (one,)
    assert read(plugins="fork").plugins == ("fork",)
    assert read(plugins=[one, "fork"]).plugins == (one, "fork")
    assert read(plugins=iter(("a", "b"))).plugins == ("a", "b")


def test_the_users_list_is_left_alone():
    devices, plugins = [0, 1], ["fork"]
    request = read(devices=devices, plugins=plugins)
    assert request.devices is not devices
    assert devices == [0, 1]
    assert plugins == ["fork"]


def test_pickles():
    request = pickle.loads(pickle.dumps(read({"LT_DEVICES": "2"}, accelerator="cpu")))
    assert request.devices == "2"
    assert request.explicit("accelerator").value == "cpu"
