"""One device of torch_xla's, beside the CPU."""

import sys
import warnings

import torch
import torch_xla  # (before any backward pass: torch counts the device types once)
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


# what two processes have and one device too: other formats, a copy for later, a second device
with Fabric(accelerator="xla", devices=[1], plugins="sharded") as fabric:
    results["second device"] = [str(fabric.device)]
    model, optimizer = set_up(fabric)
    train(fabric, model, optimizer)
    results["second device"].append(str(model.first.weight.device))
    fabric.seed_everything(3, verbose=False)
    first = torch.randn(4, device=fabric.device).cpu()
    fabric.seed_everything(3, verbose=False)
    results["seeded there"] = torch.equal(first, torch.randn(4, device=fabric.device).cpu())
    before = values(model.state_dict())
    fabric.save(f"{folder}/sharded", {"model": model, "optimizer": optimizer})
    saving = fabric.save_async(f"{folder}/later", {"model": model, "optimizer": optimizer})
    train(fabric, model, optimizer)
    saving.wait()
for name in ("sharded", "later"):
    with Fabric(accelerator="cpu", devices=1) as fabric:
        model, optimizer = set_up(fabric)
        fabric.load(f"{folder}/{name}", {"model": model, "optimizer": optimizer})
        results[name] = distance(values(model.state_dict()), before)
with Fabric(accelerator="xla", devices=1) as fabric:
    results["first again"] = str(torch_xla.device())
    model, optimizer = set_up(fabric)
    train(fabric, model, optimizer)
    saving = fabric.save_async(f"{folder}/file.ckpt", {"model": model, "optimizer": optimizer})
    saving.wait()
    results["later, a file"] = distance(values(torch.load(f"{folder}/file.ckpt")["model"]), values(model.state_dict()))
    data = fabric.setup_dataloaders(loader())
    batches = iter(data)
    next(batches)
    position = data.state_dict()
    rest = [batch[0].sum().item() for batch in batches]
    data = fabric.setup_dataloaders(loader())
    data.load_state_dict(position)
    results["position"] = [len(rest), [batch[0].sum().item() for batch in data] == rest]
    compiled = fabric.setup(torch.compile(Plain(), backend="openxla"))
    results["compiled"] = str(compiled(torch.zeros(2, 8, device=fabric.device)).device)
    # an optimizer of before, with states
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    start = values(model.state_dict())
    train(fabric, *fabric.setup(model, optimizer))
    devices = {str(state["exp_avg"].device) for state in optimizer.state.values()}
    results["of before"] = [sorted(devices), distance(values(model.state_dict()), start) > 0]


# refusals and redirects
def refusal(**options):
    try:
        Fabric(**options).close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


results["16-mixed"] = refusal(accelerator="xla", devices=1, precision="16-mixed")
results["three"] = refusal(accelerator="xla", devices=3)
results["on the CPU"] = refusal(accelerator="cpu", devices=1, strategy="single_xla")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    for name in ("ddp", "fsdp", "single_device", "single_tpu"):
        with Fabric(accelerator="xla", devices=1, strategy=name) as fabric:
            results[f"redirect {name}"] = [type(fabric.strategy).__name__, "redirected" in fabric.explain()]
report(**results)
