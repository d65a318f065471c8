"""One process, one device: all that a first-class accelerator does. The last line is a report."""

import json
import sys
from pathlib import Path

import torch
import training
from torch.utils.data import DataLoader, TensorDataset

from poplin import Fabric, seed_everything

folder = Path(sys.argv[1])
report = {}


def run(accelerator, precision=None, loggers=None):
    fabric = Fabric(accelerator=accelerator, devices=1, precision=precision, loggers=loggers)
    model, optimizer = fabric.setup(*training.make())
    end = training.train(fabric, model, optimizer, training.batches())
    return fabric, model, optimizer, end


fabric, model, optimizer, end = run("acme", loggers="acme_lines")
report["device"] = [str(fabric.device), str(next(model.parameters()).device), str(model.device)]
report["explained"] = fabric.explain()
report["end"] = end
fabric.save(folder / "device.ckpt", {"model": model, "optimizer": optimizer, "step": 5})
seed_everything(1234, verbose=False)
report["seed"] = torch.acme.initial_seed()
accelerator = fabric.accelerator
report["memory"] = accelerator.memory()
accelerator.empty_cache()
accelerator.synchronize()
state = accelerator.rng_state()
accelerator.set_rng_state(state)
report["peak"] = accelerator.peak_flops(torch.float32)
with fabric.init_module():
    made = torch.nn.Linear(2, 2)
with fabric.init_tensor():
    tensor = torch.ones(2)
report["made"] = [str(made.weight.device), str(tensor.device)]
loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(4, 6)), batch_size=2))
report["batches"] = [str(batch[0].device) for batch in loader]
with fabric.autocast():
    report["autocast at 32-true"] = torch.is_autocast_enabled("acme")
fabric.close()

# the device's checkpoint on the CPU, and back
cpu, cpu_model, cpu_optimizer, report["cpu end"] = run("cpu")
cpu_model, cpu_optimizer = training.make()
cpu_model, cpu_optimizer = cpu.setup(cpu_model, cpu_optimizer)
rest = cpu.load(folder / "device.ckpt", {"model": cpu_model, "optimizer": cpu_optimizer, "step": 0})
report["rest"] = rest
report["on cpu"] = training.numbers(cpu_model) == end
cpu_again = training.train(cpu, cpu_model, cpu_optimizer, training.batches())
cpu.save(folder / "cpu.ckpt", {"model": cpu_model, "optimizer": cpu_optimizer})
cpu.close()
fabric = Fabric(accelerator="acme", devices=[1])
report["second device"] = str(fabric.device)
model, optimizer = fabric.setup(*training.make())
fabric.load(folder / "cpu.ckpt", {"model": model, "optimizer": optimizer})
report["back"] = training.numbers(model) == cpu_again
report["optimizer back"] = sorted({str(state["exp_avg"].device) for state in optimizer.state.values()})
fabric.load(folder / "device.ckpt", {"model": model, "optimizer": optimizer})
again = training.train(fabric, model, optimizer, training.batches())
report["continued"] = max(abs(a - b) for a, b in zip(again, cpu_again, strict=True))
fabric.close()

# its own precision, and those of poplin-precision
for precision in ("acme-mixed", "bf16-mixed", "16-mixed", "bf16-true"):
    fabric, model, optimizer, end = run("acme", precision)
    scaler = getattr(fabric.strategy.precision, "scaler", None)
    report[precision] = {
        "seen": model.seen,
        "finite": all(value == value for value in end),
        "distance": max(abs(a - b) for a, b in zip(end, report["end"], strict=True)),
        "scaler": None if scaler is None else [scaler.is_enabled(), scaler.get_scale()],
        "type": fabric.strategy.precision.device_type,
    }
    if scaler is not None:  # a gradient that is no number: the step is skipped, and the scale backs off
        before, scale = training.numbers(model), scaler.get_scale()
        inputs, _ = fabric.to_device(training.batches()[0])
        fabric.backward(model(inputs).sum() * float("inf"))
        optimizer.step()
        fabric.save(folder / "scaled.ckpt", {"model": model, "optimizer": optimizer})
        report["skipped"] = [training.numbers(model) == before, scaler.get_scale() / scale]
    fabric.close()

for accelerator, precision in (("cpu", "acme-mixed"),):
    try:
        Fabric(accelerator=accelerator, devices=1, precision=precision)
    except Exception as error:
        report["elsewhere"] = f"{type(error).__name__}: {error}"
for role in ("auto", "gpu"):
    with Fabric(accelerator=role, devices=1) as fabric:
        report[role] = [str(fabric.device), fabric.explain()]
print("REPORT", json.dumps(report))
