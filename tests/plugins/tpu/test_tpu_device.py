"""The general strategies on a device called `tpu`: the compiled test device of tests/integration/stranger, in torch's
slot for out-of-tree devices, with what stands for ``torch.tpu`` (fakes/torch_tpu). Its process groups do their work by
gloo.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "integration" / "stranger" / "acme-torch" / "src" / "acme_torch" / "device.cpp"
NEAR = 1e-6
SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="torch_tpu",
    ext_modules=[CppExtension("torch_tpu._C", ["torch_tpu/device.cpp"], extra_compile_args=["-O0", "-g0"])],
    cmdclass={"build_ext": BuildExtension},
)
"""

pytestmark = [
    pytest.mark.slow,  # compiles
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("c++") is None or shutil.which("ninja") is None, reason="needs a compiler and ninja"
    ),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory, install_into, start, programs):
    """``report(what)``: what programs/tpu_device.py tells."""
    folder = tmp_path_factory.mktemp("device")
    site = folder / "site"
    install_into(site, "torch_tpu", version="0.2.0")
    (site / "setup.py").write_text(SETUP)
    shutil.copy(SOURCE, site / "torch_tpu")
    build = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
        cwd=site,
        env=os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "MAX_JOBS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    return lambda what: start(folder, programs / "tpu_device.py", folder, what, timeout=400)


@pytest.fixture(scope="module")
def one(report):
    return report("one")


@pytest.mark.parametrize("case", ["plain", "closure", "accumulated"])
def test_training_equals_the_cpu(one, case):
    assert one[case] < NEAR


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", "bfloat16"), ("bf16-true", "bfloat16"), ("16-mixed", "float16")]
)
def test_precisions(one, precision, dtype):
    (within, loss), (on_cpu, cpu_loss) = one[precision]
    assert within == on_cpu == f"torch.{dtype}"
    assert loss == pytest.approx(cpu_loss, abs=1e-5)


def test_everything_is_on_the_device_and_tied_weights_stay_tied(one):
    assert one["redirected"] == "SingleDeviceStrategy"
    assert one["device"] == ["tpu:0", "tpu:0"]
    assert one["batch"] == one["made"] == one["compiled"] == "tpu:0"
    assert one["tied"] is True
    assert one["seeded"] is True


def test_checkpoints_load_on_the_cpu_and_training_goes_on(one):
    assert one["resumed on tpu"] == 0
    assert one["resumed on cpu"] < NEAR


@pytest.mark.parametrize(("strategy", "name"), [("ddp", "DDPStrategy"), ("fsdp", "FSDPStrategy")])
def test_two_processes(report, strategy, name):
    told = report(strategy)
    assert told["strategy"] == name
    assert told["backend"] == "cpu:gloo,tpu:tpu_dist"
    assert told["device"] == "tpu:0"
    assert told["variables"] == "localhost:8070,localhost:8071"
    assert told["collectives"] == [[0, 1], 1, 6, 1]
    assert told["distance"] < NEAR  # trained by both, loaded on one CPU
    assert "TORCH_TPU_SLICEBUILDER_ADDRESSES" in told["explain"]
