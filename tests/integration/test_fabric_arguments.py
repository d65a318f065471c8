"""Whatever Fabric is given, in any combination: it works, or there is one error of ours; and nothing is left behind."""

import contextlib
import os
import signal
import warnings
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from poplin import Fabric
from poplin.accelerators import CPUAccelerator
from poplin.errors import PoplinError
from poplin.loggers import CSVLogger
from poplin.plugins import CheckpointIO, ClusterEnvironment, Precision, TorchCheckpointIO
from poplin.plugins.environments import LocalEnvironment
from poplin.strategies import DDPStrategy, SingleDeviceStrategy
from poplin.utilities.rank_zero import rank_zero_only


class Callback:
    def on_after_setup(self, fabric, module):
        self.seen = module


class NoCallback:
    on_after_setup = "not a method"


class NoLogger:
    pass


class Odd(str):
    """A text of the user's own class."""


def make(function, *args, **kwargs):
    """A fresh object in each example."""
    return st.builds(function, *(st.just(arg) for arg in args), **{k: st.just(v) for k, v in kwargs.items()})


WRONG = st.one_of(
    st.sampled_from(
        [3.5, True, False, b"cpu", (), {}, "", "  ", "no such thing", "cpu\n", "ünïcode", Odd("cpu"), nn.Linear]
    ),
    make(object),
    st.text(max_size=5),
)


def mostly(fine, *others):
    """Most often what works, sometimes one of the others, now and then something that can't be meant."""
    chances = [fine] * 6 + [st.one_of(*others)] * 3 + [WRONG] if others else [fine] * 9 + [WRONG]
    return st.integers(0, len(chances) - 1).flatmap(chances.__getitem__)


ACCELERATORS = mostly(
    st.sampled_from(["cpu", "cpu", "CPU", " cpu "]),
    st.sampled_from(["auto", None, "gpu", "cuda", "tpu", "cqu", "poplin-core:cpu", CPUAccelerator]),
    make(CPUAccelerator),
)
STRATEGIES = mostly(
    st.sampled_from(["auto", "single_device", "ddp", "DDP", "ddp_spawn", "ddp_fork", None]),
    st.sampled_from(
        ["single-device", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true", "poplin-ddp:ddp"]
    ),
    st.sampled_from(["fsdp", "dpp", "dp", "deepspeed", "xla", SingleDeviceStrategy]),
    make(SingleDeviceStrategy),
    make(DDPStrategy),
    make(DDPStrategy, start_method="spawn", timeout=30),
    make(SingleDeviceStrategy, accelerator=CPUAccelerator()),
)
DEVICES = mostly(
    st.sampled_from(["auto", 1, "1", 2, "2", None]),
    st.sampled_from([[0], "0,", 0, -1, -2, "0,1", [0, 1], [0, 0], [], ["a"], [None], 10**9, 10**30, "x"]),
)
NODES = mostly(st.sampled_from([1, 1, 1, "1", None]), st.sampled_from([0, -1, 2, "two", 1.0, [1]]))
PRECISIONS = mostly(
    st.sampled_from([None, "32-true", 32, "32", "bf16-mixed", "64-true", 64]),
    st.sampled_from(
        [16, "16", "bf16", "16-mixed", "16-true", "bf16-true", "16-mixd", "transformer-engine", 8, Precision]
    ),
    make(Precision),
)
PLUGINS = st.one_of(
    st.none(),
    st.lists(
        st.one_of(
            make(Precision),
            make(LocalEnvironment),
            make(TorchCheckpointIO),
            make(CPUAccelerator),
            st.sampled_from(["local", "torch", "subprocess", "fork", "64-true", "torchrun", "csv", "slurm", "nothing"]),
            st.sampled_from(
                ["precisions/64-true", "checkpoint_ios/torch", "strategies/ddp", CheckpointIO, ClusterEnvironment]
            ),
            WRONG,
        ),
        max_size=2,
    ),
    st.sampled_from(["torch", "local", ("local",), {"torch"}]),
    WRONG,
)
CALLBACKS = st.one_of(
    st.none(),
    make(Callback),
    st.lists(make(Callback), max_size=2),
    st.builds(lambda: iter([Callback()])),
    make(NoCallback),
    WRONG,
)
LOGGERS = st.one_of(
    st.none(),
    st.none(),
    st.sampled_from(["csv", "tensorbord", ["csv", "csv"], CSVLogger]),
    st.builds(lambda: CSVLogger("logs")),
    make(NoLogger),
    WRONG,
)
VARIABLES_SET = st.dictionaries(
    st.sampled_from(
        [
            f"{prefix}_{name}"
            for prefix in ("LT", "POPLIN")
            for name in ("ACCELERATOR", "STRATEGY", "DEVICES", "NUM_NODES")
        ]
        + ["LT_PRECISION", "POPLIN_PRECISION", "LT_CLI_USED", "POPLIN_CLI_USED", "POPLIN_GRACE", "POPLIN_DEBUG"]
        + ["POPLIN_DISABLE_PLUGINS", "POPLIN_STRICT_PLUGINS"]
    ),
    st.sampled_from(["auto", "cpu", "ddp", "1", "0", "", "32-true", "x", "-1", "poplin-ddp"]),
    max_size=2,
)
VARIABLES = st.integers(0, 3).flatmap(lambda chance: VARIABLES_SET if chance == 0 else st.just({}))


@contextlib.contextmanager
def environment(variables):
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def outside():
    """What a Fabric may change and must give back."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}  # torch's own
    return {
        "environ": environ,
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)],
        "group": dist.is_initialized(),
        "dtype": torch.get_default_dtype(),
        "threads": torch.get_num_threads(),
        "rank": rank_zero_only.rank,
        "autocast": torch.is_autocast_enabled("cpu"),
    }


def use(fabric):
    """It says what was chosen, and trains where that needs no other process."""
    assert "accelerator" in fabric.explain()
    if fabric.strategy.needs_launch and not fabric.launched:
        with pytest.raises(PoplinError, match="launch"):
            fabric.setup(nn.Linear(2, 1))
        launcher = fabric._selection.launcher
        if len(fabric._selection.devices) > 1 or fabric._selection.num_nodes > 1 or launcher.needs_function:
            return "needs processes"
    fabric.launch()
    model = nn.Linear(2, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(1, 2, device=fabric.device)).sum())
    optimizer.step()
    return "trained"


OUTCOMES = Counter()


@settings(max_examples=700, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(
    accelerator=ACCELERATORS,
    strategy=STRATEGIES,
    devices=DEVICES,
    num_nodes=NODES,
    precision=PRECISIONS,
    plugins=PLUGINS,
    callbacks=CALLBACKS,
    loggers=LOGGERS,
    variables=VARIABLES,
    left_out=st.sets(
        st.sampled_from(
            ["accelerator", "strategy", "devices", "num_nodes", "precision", "plugins", "callbacks", "loggers"]
        ),
        min_size=2,
    ),
)
def check(variables, left_out, **arguments):
    for name in left_out:
        del arguments[name]
    with environment(variables), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = outside()
        try:
            with Fabric(**arguments) as fabric:
                OUTCOMES[use(fabric)] += 1
        except PoplinError as error:
            OUTCOMES["refused"] += 1
            said = str(error)
        else:
            said = None
        assert said is None or len(said) > 20
        assert outside() == before


def test_any_combination_of_arguments_works_or_is_one_clear_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("LT_", "POPLIN_")):
            monkeypatch.delenv(name)
    OUTCOMES.clear()
    check()
    assert OUTCOMES["trained"] > 20, OUTCOMES
    assert OUTCOMES["refused"] > 50, OUTCOMES
    assert OUTCOMES["needs processes"] > 5, OUTCOMES
