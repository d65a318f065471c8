"""Whatever is given: a selection, or one error of our own classes; and nothing is left behind."""

from __future__ import annotations

import os
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from selection_fakes import GPU, Cluster, Files, Half, Many, Rerun

from poplin import registry
from poplin.accelerators import CPUAccelerator
from poplin.environments import LocalEnvironment
from poplin.errors import PoplinError
from poplin.extension import Extension
from poplin.precision import Precision
from poplin.selection import Request, Selection, explain_request, select
from poplin.strategies import SingleDeviceStrategy

OFFERS = [
    ("accelerators", "fakegpu", GPU),
    ("strategies", "many", Many),
    ("precisions", "16-fake", Half),
    ("launchers", "twofold", Rerun),
    ("checkpoint_ios", "twofold", Files),
]


@pytest.fixture(autouse=True, scope="module")
def fakes():
    for kind, name, target in OFFERS:
        registry.register(kind, name, target)
    yield
    for kind, name, _ in OFFERS:
        registry.unregister(kind, name)


nothing = (st.none(),) * 4  # mostly, so that not everything contradicts everything
carried = {
    "accelerator": st.one_of(*nothing, st.builds(CPUAccelerator), st.builds(GPU)),
    "precision": st.one_of(*nothing, st.builds(Precision), st.builds(Half)),
    "checkpoint_io": st.one_of(*nothing, st.builds(Files)),
    "cluster_environment": st.one_of(*nothing, st.builds(LocalEnvironment), st.builds(Cluster)),
}
plugins = st.one_of(
    st.sampled_from(["fork", "spawn", "torch", "local", "32-true", "twofold", "launchers/twofold", "torchrun"]),
    st.builds(Half),
    st.builds(Files),
    st.builds(LocalEnvironment),
    st.builds(Cluster),
    st.builds(Rerun),
)
#: What each argument can sensibly be.
sensible = {
    "accelerator": st.one_of(
        st.sampled_from(["auto", "cpu", "CPU", "gpu", "fakegpu", "poplin-core:cpu", None]),
        st.builds(CPUAccelerator),
        st.builds(GPU),
    ),
    "strategy": st.one_of(
        st.sampled_from(["auto", "single_device", "many", "runtime:many", None]),
        st.builds(SingleDeviceStrategy, st.sampled_from([None, "cpu", "meta"])),
        st.builds(Many, **carried),
    ),
    "devices": st.sampled_from(["auto", -1, 1, 2, "1", "2", "0,1", [0], [1, 2], None]),
    "num_nodes": st.sampled_from([1, 2, None]),
    "precision": st.sampled_from([None, 32, "32", "32-true", "16-fake", 16, "bf16"]),
    "plugins": st.one_of(*nothing, plugins, st.lists(plugins, max_size=2)),
}
#: And what it can't.
junk = st.one_of(
    st.sampled_from(
        ["", " ", 0, -2, 2.5, True, object(), b"x", (), [], {}, "a/b", "x:y", ":", "/", 10**25, "9", [0, 0]]
    ),
    st.sampled_from([CPUAccelerator, Half(), "cpuu", "16-mixd", "deepspeed", {1, 2}, [[]], ["0"], range(2)]),
    st.text(max_size=6),
)
overlay = st.one_of(
    st.just({}), st.just({}), st.dictionaries(st.sampled_from(sorted(sensible)), junk, min_size=1, max_size=2)
)
names = [prefix + subject.upper() for prefix in ("LT_", "POPLIN_") for subject in [*sensible, "cli_used"]]
values = st.one_of(st.sampled_from(["cpu", "fakegpu", "many", "2", "1", "32-true", "auto", "0"]), st.text(max_size=4))
variables = st.one_of(st.just({}), st.just({}), st.dictionaries(st.sampled_from(names), values, max_size=2))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.fixed_dictionaries(sensible), overlay, variables)
def test_any_combination(sensible, overlay, environ):
    arguments = {**sensible, **overlay}
    given_objects = [value for value in arguments.values() if isinstance(value, Extension)]
    attributes = [dict(vars(value)) for value in given_objects]
    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        selection, error = attempt(arguments, environ)
        if selection is None:
            assert error.strip()
            assert [dict(vars(value)) for value in given_objects] == attributes
        else:
            assert isinstance(selection, Selection)
            assert selection.strategy.root_device == selection.devices[0]
            assert selection.trace.render()
            for part in reversed(selection.parts()):
                part.teardown()
            assert "refused" not in explain_request(Request.read(**arguments, environ=environ))
    assert dict(os.environ) == before


def attempt(arguments, environ):
    """The selection, or the message of the one error that there may be."""
    try:
        return select(Request.read(**arguments, environ=environ)), ""
    except PoplinError as error:
        return None, str(error)
