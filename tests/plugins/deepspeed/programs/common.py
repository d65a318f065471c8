"""What the programs share: a model with what is hard about models, data, and ways to compare."""

import os
import traceback

import torch
from torch import nn

from poplin import Fabric
from poplin.strategies import DeepSpeedStrategy

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
#: Without it every parameter of a small model would stay whole at stage 3.
PARTITIONED = {"zero_optimization": {"stage3_param_persistence_threshold": 0}}


class Model(nn.Module):
    """Tied weights, sizes that no number of ranks divides, a buffer, and methods to be marked."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(5, 7)
        self.back = nn.Linear(7, 5, bias=False)
        self.again = nn.Linear(5, 7, bias=False)
        self.again.weight = self.hidden.weight
        self.out = nn.Linear(7, 1)
        self.sometimes = nn.Linear(5, 1)
        self.register_buffer("seen", torch.zeros(2))
        self.uses_all = True
        self.fails = False

    def forward(self, x):
        h = self.again(self.back(torch.tanh(self.hidden(x))))
        if self.fails:
            raise ArithmeticError("in the forward")
        y = self.out(h)
        return y + self.sometimes(x) if self.uses_all else y

    def training_step(self, batch, scale=1.0):
        return scale * self(batch).square().mean()

    def encode(self, x):
        return self.hidden(x)


def model_of(seed=0):
    torch.manual_seed(seed)
    return Model()


def groups_of(model):
    bias = [p for name, p in model.named_parameters() if name.endswith("bias")]
    weight = [p for name, p in model.named_parameters() if not name.endswith("bias")]
    return [{"params": weight}, {"params": bias, "lr": 0.01}]


def adamw(model, weight_decay=0.1):
    return torch.optim.AdamW(groups_of(model), lr=0.02, weight_decay=weight_decay)


def batches(count=4):
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(8, 5, generator=generator).chunk(WORLD)[RANK] for _ in range(count)]


def zero(stage, precision=None, config=PARTITIONED, plugins=None, **arguments):
    strategy = DeepSpeedStrategy(stage=stage, config=config, **arguments)
    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy, precision=precision, plugins=plugins)
    fabric.launch()
    return fabric


def ddp(precision=None):
    strategy = "ddp_find_unused_parameters_true"
    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy, precision=precision)
    fabric.launch()
    return fabric


def train(fabric, model, optimizer, data, micro_batches=1, clip=None):
    for batch in data:
        # (gradients of zero, not None: ZeRO steps what was left out, too)
        optimizer.zero_grad(set_to_none=False)
        for number, part in enumerate(batch.chunk(micro_batches)):
            if number % 2:
                loss = model(part).square().mean() / micro_batches
            else:
                loss = model.training_step(part, 1 / micro_batches)
            fabric.backward(loss, model=model)
        if clip is not None:
            fabric.clip_gradients(model, optimizer, max_norm=clip)
        optimizer.step()


def weights(fabric, model):
    """Full values on every rank, as rank 0 has them."""
    state = fabric.strategy.get_module_state_dict(model._forward_module)
    return {name: value.clone() for name, value in fabric.broadcast(dict(state)).items()}


def states(fabric, model, optimizer):
    """Weights and the optimizer's state by name, on every rank."""
    from poplin.strategies import parameter_names

    names = parameter_names({"": model.module})
    state = fabric.strategy.get_optimizer_state(model._forward_module, names)
    flat = {f"{name}.{key}": torch.as_tensor(v) for name, one in state["state"].items() for key, v in one.items()}
    return weights(fabric, model) | fabric.broadcast({name: value.clone() for name, value in flat.items()})


def same(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def distance(one, other):
    return max((one[name].float() - other[name].float()).abs().max().item() for name in other)


def error_of(function):
    """Class, the built-in class among its bases, and text of what ``function`` raises."""
    try:
        function()
    except Exception as error:
        bases = [cls.__name__ for cls in type(error).__mro__ if cls.__module__ == "builtins"]
        return [type(error).__name__, bases[0], str(error)]
    return [None, None, ""]


class Cases(dict):
    """What each case found, or the traceback of its failure."""

    def run(self, name, function, *args):
        try:
            self[name] = function(*args)
        except Exception:
            self[name] = "FAILED " + traceback.format_exc()
