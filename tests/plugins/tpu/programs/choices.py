"""What is chosen on two TPUs of (a stand-in for) TorchTPU."""

import os
import sys

from common import report

import poplin
from poplin import Fabric, hookimpl
from poplin.errors import PoplinError

results = {"strategies": {}}


def refusal(**options):
    try:
        Fabric(**options).close()
    except PoplinError as error:
        return f"{type(error).__name__}: {error}"
    return ""


with Fabric() as fabric:
    results["auto"] = [fabric.accelerator.name(), str(fabric.strategy.root_device)]
    results["backend"] = type(fabric.accelerator).collective_backend
    results["explain"] = fabric.explain()
for name, devices in (
    *(("auto", 1), ("auto", 2), ("xla", 2), ("xla_fsdp", 2), ("single_xla", 1), ("single_tpu", 1)),
    *(("fsdp", 2), ("ddp", 2)),
):
    fabric = Fabric(accelerator="tpu", strategy=name, devices=devices)
    results["strategies"][f"{name} {devices}"] = [type(fabric.strategy).__name__, "redirected" in fabric.explain()]
    fabric.close()
results["xla_spmd"] = refusal(accelerator="tpu", strategy="xla_spmd", devices=1)
results["three"] = refusal(accelerator="tpu", devices=3)
results["imported"] = [name for name in ("torch_xla",) if name in sys.modules]


# what processes of a launch find in their environment, and nobody finds afterwards
before = dict(os.environ)
accelerator = type(fabric.accelerator)
results["variables"] = accelerator.launch_variables(2, 1)
os.environ["TORCH_TPU_TOPOLOGY"] = "mine"
results["variables set"] = accelerator.launch_variables(2, 1)
del os.environ["TORCH_TPU_TOPOLOGY"]
os.environ["FAKE_FAILS"] = "1"
try:
    accelerator.launch_variables(2, 1)
except PoplinError as error:
    results["variables fail"] = f"{type(error).__name__}: {error}"
del os.environ["FAKE_FAILS"]
os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", GROUP_RANK="0")
os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="1", TORCHELASTIC_RUN_ID="run")
results["unprepared"] = refusal(accelerator="tpu", devices=2, strategy="ddp")
os.environ.clear()
os.environ.update(before)


class Stubborn:
    """Sends everyone back."""

    @hookimpl
    def poplin_redirect_strategy(self, name, accelerator):
        return "xla" if name == "ddp" else None


poplin.register(Stubborn())
results["circle"] = refusal(accelerator="tpu", strategy="ddp", devices=2)
report(**results)
