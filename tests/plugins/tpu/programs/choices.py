"""What is chosen on two TPUs of (a stand-in for) TorchTPU."""

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


class Stubborn:
    """Sends everyone back."""

    @hookimpl
    def poplin_redirect_strategy(self, name, accelerator):
        return "xla" if name == "ddp" else None


poplin.register(Stubborn())
results["circle"] = refusal(accelerator="tpu", strategy="ddp", devices=2)
report(**results)
