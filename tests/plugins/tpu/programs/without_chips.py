"""What is found beside the real TorchTPU where no chip is."""

import os
import sys
import tempfile
from pathlib import Path

import torch
from common import report

from poplin import Fabric
from poplin.errors import PoplinError
from poplin_tpu import launch_environment, runtime


def refusal(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except PoplinError as error:
        return f"{type(error).__name__}: {error}"
    return ""


results = {"imported by torch": "torch_tpu" in sys.modules}
with Fabric() as fabric:
    results["auto"] = str(fabric.device)
    results["explain"] = fabric.explain()
results["tpu"] = refusal(Fabric, accelerator="tpu")
results["redirected on the CPU"] = refusal(Fabric, accelerator="cpu", strategy="xla")
if sys.argv[1:] == ["untouched"]:
    results["imported"] = [name for name in sys.modules if name.startswith(("torch_tpu", "libtpu"))]
else:
    before = dict(os.environ)
    results["launch"] = refusal(launch_environment.variables, 2, 1)
    results["environment kept"] = before == dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        runtime._PCI = Path(folder)
        chip = Path(folder, "0000:00:04.0")
        chip.mkdir()
        (chip / "vendor").write_text("0x1ae0\n")
        (chip / "class").write_text("0x120000\n")
        results["with a chip"] = runtime.torch_tpu().reason
assert torch.accelerator.is_available() is False
report(**results)
