"""The package without DeepSpeed: its names, what a run without the library says, and locks of extensions."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from poplin.accelerators import CPUAccelerator
from poplin.errors import ContradictionError, LaunchError, SelectionError
from poplin.precision import Precision
from poplin.selection.trace import Trace
from poplin_deepspeed import extensions, installation, plugin
from poplin_deepspeed.errors import BuildError, DeepSpeedMissingError, EngineLimitError
from poplin_deepspeed.precision import DeepSpeedPrecision
from poplin_deepspeed.strategy import DeepSpeedStrategy

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "plugins/deepspeed/pyproject.toml").read_text())["project"]


@pytest.fixture
def installed(monkeypatch):
    """As if this version of DeepSpeed were installed."""

    def pretend(version):
        real = installation.metadata.version

        def asked(name):
            if name != "deepspeed":
                return real(name)
            if version is None:
                raise installation.metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(installation.metadata, "version", asked)

    pretend("0.19.8")
    return pretend


def checked(strategy, precision=None, accelerator=None):
    selection = SimpleNamespace(
        accelerator=accelerator or CPUAccelerator(), precision=precision or Precision(), trace=Trace()
    )
    strategy.check(selection)


# --- names


def test_the_metadata_and_the_hooks_agree():
    points = PROJECT["entry-points"]
    assert set(points["poplin.strategies"]) == set(plugin.poplin_strategies())
    assert set(points["poplin.checkpoint_ios"]) == {"auto", *plugin.poplin_checkpoint_ios()}
    needed = next(one for one in PROJECT["dependencies"] if one.startswith("deepspeed"))
    assert needed == f"deepspeed>={installation.OLDEST}"


def test_each_name_makes_its_strategy():
    for name, offer in plugin.poplin_strategies().items():
        strategy = offer()
        assert isinstance(strategy, DeepSpeedStrategy)
        zero = strategy.config["zero_optimization"]
        if "stage" in name:
            assert strategy.stage == int(name.split("_")[2])
        device = "nvme" if name.endswith("nvme") else "cpu"
        assert zero.get("offload_optimizer", {}).get("device") == (device if "offload" in name else None)
        offloads_parameters = strategy.stage == 3 and "offload" in name
        assert zero.get("offload_param", {}).get("device") == (device if offloads_parameters else None)
    assert plugin.poplin_strategies()["deepspeed"]().stage == 2


def test_offering_names_imports_neither_torch_nor_deepspeed():
    program = "import sys; import poplin_deepspeed.plugin as p; p.poplin_strategies(); p.poplin_checkpoint_ios(); "
    program += "print([m for m in ('torch', 'deepspeed', 'poplin_deepspeed.strategy') if m in sys.modules])"
    path = os.pathsep.join([str(ROOT / "plugins/deepspeed/src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_strategy_and_its_checkpoints_do_not_import_deepspeed():
    assert "poplin_deepspeed.checkpoint" in sys.modules
    assert not any(name.partition(".")[0] == "deepspeed" for name in sys.modules)


def test_a_strategy_can_be_sent_to_another_process():
    import pickle

    strategy = DeepSpeedStrategy(stage=3, config={"steps_per_print": 5})
    assert pickle.loads(pickle.dumps(strategy)).config == strategy.config


# --- the library, the device, the precision


def test_deepspeed_missing_too_old_or_newer(installed):
    checked(DeepSpeedStrategy())
    installed("0.99.0")
    checked(DeepSpeedStrategy())
    installed("0.15.4")
    with pytest.raises(DeepSpeedMissingError, match=r"0\.19\.8 or newer, and 0\.15\.4 is installed: pip install"):
        checked(DeepSpeedStrategy())
    installed(None)
    with pytest.raises(DeepSpeedMissingError, match="pip install 'deepspeed>=0.19.8'") as caught:
        checked(DeepSpeedStrategy())
    assert isinstance(caught.value, SelectionError)
    assert isinstance(caught.value, ImportError)


def test_a_broken_installation_is_told_with_its_cause(installed, monkeypatch):
    def broken(name):
        raise ImportError("undefined symbol: _ZN3c10")

    before = dict(os.environ)
    monkeypatch.setattr(installation.importlib, "import_module", broken)
    with pytest.raises(DeepSpeedMissingError, match="can't be imported.*undefined symbol") as caught:
        installation.load("cpu")
    assert isinstance(caught.value.__cause__, ImportError)
    assert dict(os.environ) == before


@pytest.mark.parametrize("name", ["32-true", "bf16-mixed", "bf16-true"])
def test_precisions_that_the_cpu_serves(installed, name):
    strategy = DeepSpeedStrategy()
    precision = strategy.make_precision(name)
    assert isinstance(precision, DeepSpeedPrecision)
    assert precision.precision == name
    assert strategy.accepts_precision(precision) is None
    checked(strategy, precision)


def test_precisions_that_are_refused(installed):
    strategy = DeepSpeedStrategy()
    for name in ("16-mixed", "16-true"):
        with pytest.raises(SelectionError, match="no float16 on the CPU"):
            checked(strategy, strategy.make_precision(name))
    assert strategy.make_precision("64-true") is None

    class Another(Precision):
        precision = "another"

    assert "bf16-mixed" in strategy.accepts_precision(Another())
    assert strategy.accepts_precision(Precision()) is None


@pytest.mark.parametrize(
    ("config", "precision", "message"),
    [
        ({"bf16": {"enabled": True}}, "32-true", "precision='bf16-mixed' or 'bf16-true'"),
        ({"fp16": {"enabled": True}}, "bf16-mixed", "precision='16-mixed' or '16-true'"),
        ({"bf16": {"enabled": False}}, "bf16-mixed", "turns bf16 off"),
        ({"torch_autocast": {"enabled": True}}, "32-true", "torch_autocast"),
    ],
)
def test_a_config_that_asks_for_another_precision(installed, config, precision, message):
    with pytest.raises(ContradictionError, match=message):
        checked(DeepSpeedStrategy(config=config), DeepSpeedPrecision(precision))


def test_other_combinations_that_cannot_be(installed):
    config = {"data_types": {"grad_accum_dtype": "fp32"}}
    with pytest.raises(SelectionError, match="Use stage 2"):
        checked(DeepSpeedStrategy(stage=1, config=config), DeepSpeedPrecision("bf16-mixed"))
    checked(DeepSpeedStrategy(stage=2, config=config), DeepSpeedPrecision("bf16-mixed"))

    class Tpu(CPUAccelerator):
        device_type = "tpu"

    class Mute(CPUAccelerator):
        collective_backend = None

    with pytest.raises(SelectionError, match="no accelerator for devices of type 'tpu'"):
        checked(DeepSpeedStrategy(), accelerator=Tpu())
    with pytest.raises(SelectionError, match="process_group_backend"):
        checked(DeepSpeedStrategy(), accelerator=Mute())
    with pytest.raises(SelectionError, match="strategy='ddp'"):
        DeepSpeedStrategy(zero_optimization=False)


def test_a_precision_casts_what_it_should():
    true, mixed = DeepSpeedPrecision("bf16-true"), DeepSpeedPrecision("bf16-mixed")
    batch = {"x": torch.ones(2), "y": [torch.ones(2, dtype=torch.int64)]}
    assert true.convert_input(batch)["x"].dtype == torch.bfloat16
    assert true.convert_input(batch)["y"][0].dtype == torch.int64
    assert mixed.convert_input(batch) is batch
    assert true.convert_output(torch.ones(2, dtype=torch.bfloat16)).dtype == torch.float32
    with true.module_init_context():
        assert torch.nn.Linear(1, 1).weight.dtype == torch.bfloat16
    assert torch.get_default_dtype() == torch.float32
    with mixed.forward_context():
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="not '8-true'"):
        DeepSpeedPrecision("8-true")


# --- extensions


def test_a_lock_that_nobody_holds_is_told(tmp_path):
    for folder in ("cpu_adam", "py311_cpu/async_io"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "lock").touch()
    held = tmp_path / "fused_adam" / "lock"
    held.parent.mkdir()
    with held.open("w"):
        stale = extensions.stale_locks(tmp_path)
        assert [path.parent.name for path in stale] == ["cpu_adam", "async_io"]
        extensions.check_locks(["fused_adam"], tmp_path)
    with pytest.raises(BuildError, match=f"rm {tmp_path}/fused_adam/lock") as caught:
        extensions.check_locks(["fused_adam"], tmp_path)
    assert isinstance(caught.value, LaunchError)


def test_a_lock_that_another_process_holds_is_no_stale_one(tmp_path):
    lock = tmp_path / "cpu_adam" / "lock"
    lock.parent.mkdir()
    program = f"import sys, time; f = open({str(lock)!r}, 'x'); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert extensions.stale_locks(tmp_path) == []
        holder.kill()
        holder.wait()
    assert extensions.stale_locks(tmp_path) == [lock]


def test_a_run_that_needs_the_extension_is_refused_before_it_would_hang(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    assert extensions.folder() == tmp_path
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    with pytest.raises(BuildError, match="was cut off"):
        DeepSpeedStrategy(stage=2, offload_optimizer=True)._check_builds()
    strategy = DeepSpeedStrategy(stage=2)
    strategy._trace = Trace()
    strategy._check_builds()
    assert "cpu_adam/lock" in strategy._trace.render()


def test_no_compiler_and_no_ninja(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match="no C\\+\\+ compiler"):
        extensions.check_compiler()
    compiler = tmp_path / "g++"
    compiler.touch()
    compiler.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(BuildError, match="pip install ninja"):
        extensions.check_compiler()


def test_the_command_says_what_is_wrong(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    (tmp_path / "cpu_adam").mkdir()
    (tmp_path / "cpu_adam" / "lock").touch()
    assert extensions.main(["cpu_adam"]) == 1
    assert f"rm {tmp_path}/cpu_adam/lock" in capsys.readouterr().err


def test_the_checkpoint_io_alone_writes_nothing(tmp_path):
    from poplin_deepspeed.checkpoint import DeepSpeedCheckpointIO

    with pytest.raises(EngineLimitError, match="this run has none"):
        DeepSpeedCheckpointIO().save_checkpoint({"a": 1}, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_the_config_is_json():
    json.dumps(DeepSpeedStrategy(stage=3, offload_optimizer=True, partition_activations=True).config)
