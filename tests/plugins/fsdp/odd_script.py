"""Run by each of two ranks: odd modules, odd orders, and what is refused."""

import copy
import os
import pickle
import sys
import warnings

import torch
from torch import nn

from poplin import Fabric
from poplin.strategies import FSDPStrategy, ModelParallelStrategy
from poplin.testing import report
from poplin.testing.strategies import error_of

warnings.filterwarnings("error", module="poplin")
RANK, WORLD, FOLDER = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), sys.argv[1]
out = {}
generator = torch.Generator().manual_seed(5)
DATA = [torch.randn(8, 6, generator=generator) for _ in range(4)]


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def fabric_with(strategy=None, **options):
    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy or FSDPStrategy(timeout=30), **options)
    fabric.launch()
    return fabric


def full(fabric, model):
    return fabric.strategy.get_module_state_dict(model._forward_module)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.05)


def squares(model, x):
    return model(x).square().mean()


def steps(model, optimizer, loss, backward, clip, cut=lambda x: x):
    for x in DATA:
        optimizer.zero_grad()
        backward(loss(model, cut(x)))
        clip()
        optimizer.step()


def distance(found, module):
    own = getattr(module, "_orig_mod", module).state_dict()
    return max([(v.double() - own[k].double()).abs().max().item() for k, v in found.items() if v.numel()] or [0.0])


def equal(name, make, strategy=None, optimizer_of=adamw, loss=squares, before=None):
    """Train as one process does, which is at hand."""
    torch.manual_seed(0)
    reference = make()
    optimizer = before(reference) if before else optimizer_of(reference.parameters())
    held = list(reference.parameters())
    steps(reference, optimizer, loss, torch.Tensor.backward, lambda: nn.utils.clip_grad_norm_(held, 0.1))
    with fabric_with(strategy) as fabric:
        torch.manual_seed(0)
        model = make()
        model, optimizer = fabric.setup(model, before(model) if before else optimizer_of(model.parameters()))

        def clip():
            return fabric.clip_gradients(model, optimizer, max_norm=0.1)

        steps(model, optimizer, loss, fabric.backward, clip, lambda x: x.chunk(WORLD)[RANK])
        out[name] = distance(full(fabric, model), reference)


def units(*classes):
    return FSDPStrategy(auto_wrap_policy=set(classes), timeout=30)


class Two(nn.Module):
    """No parameter of its own."""

    def __init__(self, first=None, second=None):
        super().__init__()
        self.first = Inner() if first is None else first
        self.second = Inner() if second is None else second

    def forward(self, x):
        return self.second(self.first(x))

    def training_step(self, x):
        return self.forward(x).square().mean()

    def unmarked(self, x):
        return self.first(x).sum() + self(x).sum()


def sharing():
    inner = Inner()
    return Two(nn.Sequential(inner, nn.Linear(6, 6)), nn.Sequential(inner, nn.Linear(6, 6)))


class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrices = nn.ParameterList([torch.randn(6, 5), torch.randn(5, 7)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.randn(7))})

    def forward(self, x):
        return x @ self.matrices[0] @ self.matrices[1] + self.named["shift"]


class Odd(nn.Module):
    """Parameters of integers, without a dimension, with one row, without a row; a buffer of integers."""

    def __init__(self):
        super().__init__()
        self.numbers = nn.Parameter(torch.arange(3), requires_grad=False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.row = nn.Parameter(torch.randn(1, 6))
        self.empty = nn.Parameter(torch.empty(0))
        self.linear = nn.Linear(6, 5)
        self.register_buffer("count", torch.tensor(3))

    def forward(self, x):
        return self.linear(x * self.scale + self.row) * self.count


def stepped(model):
    """An optimizer with groups and states, before setup."""
    optimizer = torch.optim.AdamW(
        [{"params": model.first.parameters(), "lr": 0.01}, {"params": model.second.parameters(), "weight_decay": 0.3}],
        lr=0.05,
    )
    squares(model, DATA[0]).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


def compiled_parts():
    model = Two()
    for part in (model.first, model.second):
        part.compile(backend="eager")
    return model


equal("no parameter at the root", Two, units(Inner))
equal("a shared submodule, below two units", sharing, units(nn.Sequential))
equal("a shared submodule, a unit itself", sharing, units(Inner, nn.Sequential))
equal("lists of parameters", Lists)
equal("odd parameters", Odd)
equal("groups and states from before", Two, units(Inner), before=stepped)
equal("a marked method", Two, units(Inner), loss=lambda model, x: model.training_step(x))
for backend in ("eager", "aot_eager"):
    equal(f"compiled by {backend}", lambda b=backend: torch.compile(Two(), backend=b), units(Inner))
equal("compiled parts", compiled_parts, units(Inner))
both = FSDPStrategy(auto_wrap_policy={Inner}, activation_checkpointing_policy={Inner}, timeout=30)
equal("compiled and checkpointed parts", compiled_parts, both)

with fabric_with(units(Inner)) as fabric:
    model = Two(torch.compile(Inner(), backend="eager"))
    wrapped = fabric.setup(model)
    wrapped(DATA[0])
    out["names of a compiled part"] = sorted(fabric.strategy.get_module_state_dict(wrapped._forward_module, True))
    out["its class"] = [type(model) is Two, isinstance(wrapped, Two)]
    out["unmarked"] = error_of(lambda: wrapped.unmarked(DATA[0]))
    wrapped.mark_forward_method("unmarked")
    wrapped.unmarked(DATA[0]).backward()
    out["copies"] = [error_of(lambda f=f: f(wrapped))["class"] for f in (copy.deepcopy, pickle.dumps)]

    # the raw module again
    again = fabric.setup(model)
    out["the raw module again"] = [
        again._forward_module is wrapped._forward_module,
        torch.equal(again(DATA[0]), wrapped(DATA[0])),
    ]

    # two models, one in the other
    inner = fabric.setup(Inner())
    outer = fabric.setup(Two(inner))
    with fabric.no_backward_sync(outer):
        fabric.backward(outer(DATA[0]).sum())
        out["unsynchronised"] = [parameter.grad is None for parameter in outer.parameters()]
    fabric.backward(outer(DATA[0]).sum())
    out["synchronised"] = [parameter.grad is not None for parameter in outer.parameters()]

    # gradients under no_backward_sync are whole; nested contexts end one by one
    with fabric.no_backward_sync(wrapped):
        with fabric.no_backward_sync(wrapped):
            pass
        out["still off"] = [one.enabled for one in wrapped._forward_module.averagings]
    out["on again"] = [one.enabled for one in wrapped._forward_module.averagings]

    # optimizers that are made too late
    for name, between in (("after a forward", False), ("between forward and backward", True)):
        model = fabric.setup_module(nn.Linear(6, 6))
        before = full(fabric, model)
        loss = model(DATA[0]).sum()
        late = torch.optim.SGD(model.parameters(), lr=0.1)
        if not between:
            late = fabric.setup_optimizers(late)
        fabric.backward(loss)
        if between:
            late = fabric.setup_optimizers(late)
        late.step()
        after = full(fabric, model)
        out[name] = RANK > 0 or bool((before["weight"] != after["weight"]).all())

    out["without parameters"] = list(fabric.setup(nn.Sequential(nn.ReLU()))(DATA[0]).shape)
    frozen = fabric.setup(nn.Linear(6, 6).requires_grad_(False))
    out["frozen"] = [frozen(DATA[0]).requires_grad, list(frozen.weight.to_local().shape)]

    def closure():
        optimizer.zero_grad()
        loss = squares(model, DATA[0])
        fabric.backward(loss)
        return loss

    model = nn.Linear(6, 3)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    out["closure"] = float(optimizer.step(closure)) > float(optimizer.step(closure))
    optimizer.zero_grad()
    fabric.backward(model(DATA[0]).sum())
    fabric.clip_gradients(model, optimizer, clip_val=1e-3)
    out["clipped by value"] = max(p.grad.to_local().abs().max().item() for p in model.parameters())
    fabric.backward(model(DATA[0]).sum() * float("inf"))
    out["not finite"] = error_of(lambda: fabric.clip_gradients(model, optimizer, max_norm=1.0))

    # what is refused leaves the module as it was
    hooked, lists, lazy = nn.Linear(6, 6), nn.Sequential(nn.ModuleList([nn.Linear(6, 6)])), nn.LazyLinear(3)
    hooked.weight.register_hook(lambda gradient: gradient)
    weight = hooked.weight
    out["hooked"] = error_of(lambda: fabric.setup(hooked))
    out["hooked, afterwards"] = [hooked.weight is weight, type(hooked).__name__]
    out["lazy"] = error_of(lambda: fabric.setup(lazy))
    with torch.device("meta"):
        lost = nn.Sequential(nn.Linear(2, 2), Lists())
    out["lost"] = error_of(lambda: fabric.setup(lost))
    with torch.device("meta"):
        resettable = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))
    torch.manual_seed(4)
    mine = full(fabric, fabric.setup(resettable))
    torch.manual_seed(4)
    same = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).state_dict()
    out["reset"] = all(torch.equal(value, same[name]) for name, value in mine.items())

with fabric_with(FSDPStrategy(auto_wrap_policy={nn.ModuleList}, timeout=30)) as fabric:
    out["a list as a unit"] = error_of(lambda: fabric.setup(lists))
with fabric_with(ModelParallelStrategy(timeout=30)) as fabric:
    out["no plan"] = error_of(lambda: fabric.setup(Two()))
    out["data"] = [fabric.strategy.data_rank, fabric.strategy.data_world_size]
    loader = fabric.setup_dataloaders(torch.utils.data.DataLoader(range(4), batch_size=2))
    out["batches"] = [batch.tolist() for batch in loader]
out["precision"] = {}
for name in ("bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true"):
    with fabric_with(units(Inner), precision=name) as fabric:
        model = nn.Sequential(Inner(), nn.LayerNorm(6), nn.Linear(6, 6))
        model.register_buffer("kept", torch.ones(2))
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        model[1].register_forward_hook(lambda part, args, result, seen=seen: seen.append(str(args[0].dtype)))
        result = model(DATA[0])
        fabric.backward(result.square().mean())
        norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        dtypes = [result.dtype, model[2].weight.dtype, model[2].weight.grad.dtype, model.kept.dtype]
        out["precision"][name] = [str(dtype).removeprefix("torch.") for dtype in dtypes] + seen
        out["precision"][name + " norm"] = float(norm)
with fabric_with(units(Inner), precision="16-mixed") as fabric:
    model = Two()
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = full(fabric, model)
    infinite = float("inf") if RANK == 1 else 1.0  # on one rank only
    fabric.backward(model(DATA[0]).sum() * infinite)
    norm = fabric.clip_gradients(model, optimizer, max_norm=1.0)
    optimizer.step()
    skipped = [fabric.strategy.step_was_skipped(optimizer.optimizer), bool(torch.isfinite(norm))]
    same = all(torch.equal(value, before[name]) for name, value in full(fabric, model).items())
    fabric.backward(model(DATA[0]).sum())
    out["overflow"] = [*skipped, same, fabric.precision.state_dict()["scale"]]

with fabric_with(precision="bf16-mixed") as fabric:
    model = fabric.setup(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)))
    result = model(DATA[0])
    fabric.backward(result.sum())
    mean = model[1].running_mean
    out["batch norm"] = [str(result.dtype), str(mean.dtype), bool(mean.any())]
with fabric_with() as fabric:
    out["dtypes"] = error_of(lambda: fabric.setup(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())))
    images = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    out["channels last"] = list(fabric.setup(images)(torch.randn(2, 3, 5, 5)).shape)
    out["explained"] = "2 dp_shard" in fabric.explain()

# what fails leaves nothing behind


class Stop(Exception):
    pass


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        raise Stop


def stop(*arguments):
    raise Stop


with fabric_with(units(Inner)) as fabric:

    def trained(fail=None):
        torch.manual_seed(0)
        model = nn.Sequential(Inner(), Inner(), nn.Linear(6, 6))
        model, optimizer = fabric.setup(model, adamw(model.parameters()))
        for number in range(3):
            if number == 2 and fail is not None:
                assert error_of(lambda: fail(model))["class"] == "Stop"
                optimizer.zero_grad()
            fabric.backward(squares(model, DATA[number]))
            optimizer.step()
            optimizer.zero_grad()
        return full(fabric, model)

    def in_forward(model):
        handle = model[1].register_forward_hook(stop)
        try:
            model(DATA[0])
        finally:
            handle.remove()

    def in_backward(model):
        handle = model[1].register_forward_hook(lambda part, arguments, result: Failing.apply(result))
        try:
            fabric.backward(squares(model, DATA[0]))
        finally:
            handle.remove()

    whole = trained()
    for name, fail in (("a failed forward", in_forward), ("a failed backward", in_backward)):
        found = trained(fail)
        out[name] = all(torch.equal(value, found[key]) for key, value in whole.items())

asked = []


def stop_at_the_third(parameter):
    asked.append(parameter)
    if len(asked) == 3:
        raise Stop


half = FSDPStrategy(auto_wrap_policy={Inner}, shard_placement_fn=stop_at_the_third, timeout=30)
with fabric_with(half) as fabric:
    model = Two()
    weight, attributes = model.first.linear.weight, [sorted(part.__dict__) for part in model.modules()]
    out["a failed setup"] = [
        error_of(lambda: fabric.setup(model))["class"],
        type(model.first).__name__,
        model.first.linear.weight is weight,
        [sorted(part.__dict__) for part in model.modules()] == attributes,
        len(model.first._forward_pre_hooks),
    ]
    model(DATA[0])
    out["set up again"] = type(fabric.setup(model).first.linear.weight).__name__

# checkpoints, in one file and in a folder
for kind in ("full", "sharded"):
    with fabric_with(FSDPStrategy(auto_wrap_policy={Inner}, state_dict_type=kind, timeout=30)) as fabric:

        def fresh(seed):
            torch.manual_seed(seed)
            model = nn.Sequential(Inner(), nn.Linear(6, 5), nn.BatchNorm1d(5))
            return fabric.setup(model, adamw(model.parameters()))

        model, optimizer = fresh(1)
        fabric.backward(model(DATA[0]).sum())
        optimizer.step()
        fabric.save(f"{FOLDER}/{kind}", {"model": model, "optimizer": optimizer, "step": 3})
        other, its = fresh(2)
        state = {"model": other, "optimizer": its, "step": 0}
        fabric.load(f"{FOLDER}/{kind}", state)
        saved, loaded = full(fabric, model), full(fabric, other)
        moments = [o.state[m[1].weight]["exp_avg"].to_local() for m, o in ((model, optimizer), (other, its))]
        out[f"checkpoint, {kind}"] = [
            all(torch.equal(value, loaded[name]) for name, value in saved.items()),
            torch.equal(*moments),
            state["step"],
            type(fabric.strategy.checkpoint_io).__name__,
            os.path.isdir(f"{FOLDER}/{kind}"),
        ]
report(out)
