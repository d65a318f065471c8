"""The trace: append-only, picklable, readable."""

from __future__ import annotations

import pickle
import types

import pytest

from poplin.selection import Decision, Trace


def filled() -> Trace:
    trace = Trace()
    provider = types.SimpleNamespace(distribution="poplin-core", version="0.1.0")
    trace.note("accelerator", "cpu", "nothing else is here", provider, [("acme (acme 1.0)", "no device\nwas found")])
    trace.add(Decision("strategy", "single_device", "poplin-core 0.1.0", "one device"))
    trace.note("launcher", "none")
    return trace


def test_decisions_are_plain_text():
    first = filled().decisions[0]
    assert (first.subject, first.choice, first.provider) == ("accelerator", "cpu", "poplin-core 0.1.0")
    assert first.passed_over[0].what == "acme (acme 1.0)"


def test_renders_aligned():
    lines = filled().render().splitlines()
    assert lines[0] == "accelerator  cpu            poplin-core 0.1.0"
    assert lines[1] == "             because nothing else is here"
    assert lines[2] == "             not acme (acme 1.0): no device was found"
    assert lines[3] == "strategy     single_device  poplin-core 0.1.0"
    assert lines[-1] == "launcher     none"


def test_empty_renders_too():
    assert "nothing" in Trace().render()


def test_pickles_and_grows_on():
    trace = pickle.loads(pickle.dumps(filled()))
    assert trace.decisions == filled().decisions
    trace.note("sampler", "sharded")
    assert len(trace) == 4


def test_can_only_be_appended_to():
    trace = filled()
    with pytest.raises(AttributeError):
        trace.decisions = ()
    with pytest.raises(AttributeError):
        trace.decisions[0].choice = "other"
    assert isinstance(trace.decisions, tuple)


def test_saying_the_same_again_adds_nothing():
    trace = filled()
    trace.note("launcher", "none")
    assert len(trace) == 3


def test_a_decision_can_be_made_of_objects():
    decision = Decision("devices", 2, None, passed_over=[("a", ValueError("b"))])
    assert decision.choice == "2"
    assert decision.passed_over == (("a", "b"),)
    assert pickle.loads(pickle.dumps(decision)) == decision
