"""The real TorchTPU, on a machine without a TPU: what is found, and that nothing but torch touches it."""

import ast
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tpu, pytest.mark.timeout(400)]

HERE = Path(__file__).parent
OFF = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


@pytest.fixture(scope="module")
def found(tmp_path_factory, start, programs):
    return start(tmp_path_factory.mktemp("found"), programs / "without_chips.py", timeout=300)


def test_the_package_is_here():
    assert metadata.version("torch_tpu") == "0.2.0"


def test_torch_has_imported_it_and_poplin_finds_no_device(found):
    assert found["imported by torch"] is True
    assert found["auto"] == "cpu"
    reason = "TorchTPU: torch_tpu 0.2.0 is installed, and no TPU chip is on the PCI bus"
    assert reason in found["explain"]
    assert found["tpu"].startswith("HardwareAbsentError")
    assert reason in found["tpu"]
    assert found["redirected on the CPU"].startswith("SelectionError")


def test_a_chip_without_a_device_is_told_of(found):
    reason = "torch_tpu 0.2.0 is loaded and 1 TPU chip(s) are on the PCI bus, but it has registered no device"
    assert found["with a chip"] == reason


def test_it_says_itself_why_there_is_no_launch(found):
    assert found["launch"].startswith("LaunchError: TorchTPU's set_tpu_launch_env()")
    assert "expected TPU devices, got none" in found["launch"]
    assert found["environment kept"] is True


def test_without_autoload_nothing_touches_it(tmp_path, start, programs):
    told = start(tmp_path, programs / "without_chips.py", "untouched", timeout=300, **OFF)
    assert told["imported"] == []
    assert told["auto"] == "cpu"


def test_doctor_and_explain_say_that_torch_imports_it(tmp_path, start):
    line = "torch's own: `import torch` loads the backend 'torch_tpu' = torch_tpu._loader:load of torch_tpu 0.2.0"
    assert line in start(tmp_path, "-m", "poplin", "explain", timeout=300).stdout
    off = f"{line} (not now: TORCH_DEVICE_BACKEND_AUTOLOAD=0)"
    assert off in start(tmp_path, "-m", "poplin", "doctor", timeout=300, **OFF).stdout


def test_run_can_leave_it_out(tmp_path, start):
    script = tmp_path / "script.py"
    script.write_text("import sys, torch; print('FOUND', 'torch_tpu' in sys.modules)")
    for words, imported in ((("--no-torch-autoload",), False), ((), True)):
        done = start(tmp_path, "-m", "poplin", "run", "--devices=1", *words, script, timeout=300)
        assert f"FOUND {imported}" in done.stdout


def test_the_stand_in_has_no_name_that_the_real_one_has_not():
    """What the other tests put in the place of ``torch.tpu`` must be there in the real one."""
    source = ast.parse((HERE / "fakes" / "torch_tpu" / "boundary.py").read_text())
    kinds = (ast.FunctionDef, ast.ClassDef)
    names = {node.name for node in source.body if isinstance(node, kinds)} - {"_is_in_bad_fork"}
    program = f"import torch; print('MISSING', [n for n in {sorted(names)} if not hasattr(torch.tpu, n)])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert "MISSING []" in done.stdout, done.stdout + done.stderr
