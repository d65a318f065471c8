"""One device of torch_xla's, beside the CPU."""

import sys
import warnings

import torch
import torch_xla  # noqa: F401  (before any backward pass: torch counts the device types once)
from common import Net, Plain, distance, loader, report, set_up, train, values

from poplin import Fabric

folder = sys.argv[1]


def run(accelerator, **options):
    training = {name: options.pop(name) for name in ("closure", "accumulate", "epochs") if name in options}
    with Fabric(accelerator=accelerator, devices=1, **options) as fabric:
        model, optimizer = set_up(fabric)
        loss = train(fabric, model, optimizer, **training)
        assert model.first.weight is model.second.weight
        return loss, values(model.state_dict())


results = {}
for name, options in {
    "plain": {},
    "closure": {"closure": True},
    "accumulated": {"accumulate": 2},
    "epochs": {"epochs": 2},
}.items():
    (_, here), (_, there) = run("xla", **options), run("cpu", **options)
    results[name] = distance(here, there)
for precision in ("bf16-true", "bf16-mixed"):
    (here, _), (there, _) = run("xla", precision=precision), run("cpu", precision=precision)
    results[precision] = abs(here - there)

# checkpoints: from XLA to CPU and back, and a resume that goes on as if nothing had been
with Fabric(accelerator="xla", devices=1) as fabric:
    results["explain"] = fabric.explain()
    model, optimizer = set_up(fabric)
    train(fabric, model, optimizer)
    fabric.save(f"{folder}/xla.ckpt", {"model": model, "optimizer": optimizer, "fabric": fabric})
    train(fabric, model, optimizer)
    whole = values(model.state_dict())
saved = torch.load(f"{folder}/xla.ckpt")
results["devices in the file"] = sorted({str(value.device) for value in saved["model"].values()})
results["tied in the file"] = saved["model"]["first.weight"].data_ptr() == saved["model"]["second.weight"].data_ptr()
for accelerator in ("xla", "cpu"):
    with Fabric(accelerator=accelerator, devices=1) as fabric:
        model, optimizer = set_up(fabric)
        fabric.load(f"{folder}/xla.ckpt", {"model": model, "optimizer": optimizer})
        train(fabric, model, optimizer)
        results[f"resumed on {accelerator}"] = distance(values(model.state_dict()), whole)
        fabric.save(f"{folder}/{accelerator}2.ckpt", {"model": model, "optimizer": optimizer})
with Fabric(accelerator="xla", devices=1) as fabric:
    model, optimizer = set_up(fabric)
    fabric.load(f"{folder}/cpu2.ckpt", {"model": model, "optimizer": optimizer})
    results["cpu to xla"] = distance(values(model.state_dict()), values(torch.load(f"{folder}/cpu2.ckpt")["model"]))
    results["loader"] = [
        len(fabric.setup_dataloaders(loader())),
        str(next(iter(fabric.setup_dataloaders(loader())))[0].device),
    ]
    fabric.seed_everything(3, verbose=False)
    first = torch.randn(4, device=fabric.device).cpu()
    fabric.seed_everything(3, verbose=False)
    results["seeded"] = torch.equal(first, torch.randn(4, device=fabric.device).cpu())
    frozen = fabric.setup(Plain().requires_grad_(False))
    results["frozen"] = str(frozen(torch.zeros(1, 8, device=fabric.device)).device)
    with fabric.init_module():
        results["init_module"] = str(next(Net().parameters()).device)


# refusals and redirects
def refusal(**options):
    try:
        Fabric(**options).close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


results["16-mixed"] = refusal(accelerator="xla", devices=1, precision="16-mixed")
results["two"] = refusal(accelerator="xla", devices=2)
results["on the CPU"] = refusal(accelerator="cpu", devices=1, strategy="single_xla")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("ddp", "fsdp", "single_device", "single_tpu"):
        with Fabric(accelerator="xla", devices=1, strategy=name) as fabric:
            results[f"redirect {name}"] = [type(fabric.strategy).__name__, "redirected" in fabric.explain()]
report(**results)
