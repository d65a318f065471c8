"""A small strategy over a device mesh for the tests of sharded checkpoints: it knows nothing but where tensors lie."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from poplin.strategies import ParallelStrategy
from poplin.strategies.optimizer_state import load_optimizer_state_by_name, optimizer_state_by_name

#: name → (extent of each mesh dimension by world size, placements of a matrix, placements of a vector)
LAYOUTS = {
    "rows": (lambda world: (world,), [Shard(0)], [Shard(0)]),
    "columns": (lambda world: (world,), [Shard(1)], [Replicate()]),
    "replicas": (lambda world: (2, world // 2), [Replicate(), Shard(0)], [Replicate(), Shard(0)]),
    "grid": (lambda world: (2, world // 2), [Shard(0), Shard(1)], [Shard(0), Replicate()]),
}


class MeshStrategy(ParallelStrategy):
    """Distributes parameters as ``layout`` says; buffers stay whole on each rank."""

    checkpoint_io_name = "sharded"
    mutates_module = True

    def __init__(self, layout="rows", **kwargs):
        super().__init__(**kwargs)
        self.layout = layout

    def setup_module(self, module):
        extents, matrix, vector = LAYOUTS[self.layout]
        mesh = init_device_mesh("cpu", extents(self.world_size))
        done = {}
        for child in module.modules():
            for name, parameter in list(child._parameters.items()):
                if parameter is None or isinstance(parameter, DTensor):
                    continue
                if parameter not in done:
                    placements = matrix if parameter.dim() == 2 else vector
                    done[parameter] = nn.Parameter(distribute_tensor(parameter.detach(), mesh, placements))
                child._parameters[name] = done[parameter]
        return module

    def get_module_state_dict(self, module, sharded=False):
        state = super().get_module_state_dict(module)
        return state if sharded else type(state)((name, full(value)) for name, value in state.items())

    def load_module_state_dict(self, module, state, strict=True):
        live = module.state_dict()
        with torch.no_grad():
            for name, value in live.items():
                if name in state:
                    (value.to_local() if isinstance(value, DTensor) else value).copy_(like(state[name], value))

    def get_optimizer_state(self, optimizer, names, sharded=False):
        return optimizer_state_by_name(optimizer, names, (lambda tensor: tensor) if sharded else full)

    def load_optimizer_state(self, optimizer, state, names):
        def place(value, parameter):
            if isinstance(parameter, DTensor) and not isinstance(value, DTensor):
                return distribute_tensor(value, parameter.device_mesh, parameter.placements)
            return value

        load_optimizer_state_by_name(optimizer, state, names, place)


def full(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def like(value, live):
    """The local values of ``value`` where ``live`` stands."""
    if not isinstance(live, DTensor):
        return value
    if not isinstance(value, DTensor):
        value = distribute_tensor(value, live.device_mesh, live.placements)
    assert value.placements == live.placements
    return value.to_local()


def make(seed=0, tied=True):
    """A model of odd sizes, which no number of ranks divides evenly and some exceed, and its optimizer."""
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3), nn.Linear(5, 7, bias=False), nn.Linear(3, 1)]
    model = nn.Sequential(*layers)
    if tied:
        model[3].weight = model[0].weight
    return model, torch.optim.AdamW(model.parameters(), lr=0.01 * (seed + 1))


def step(model, optimizer, times=2):
    """Steps with gradients that are the same whatever the layout: an optimizer works on each element alone."""
    for number in range(times):
        for index, parameter in enumerate(model.parameters()):
            generator = torch.Generator().manual_seed(1000 * number + index)
            gradient = torch.randn(parameter.shape, generator=generator)
            if isinstance(parameter, DTensor):
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        optimizer.step()
    for buffer in model.buffers():
        with torch.no_grad():
            buffer.add_(1)


def values(model, optimizer):
    """Everything, whole, under names."""
    found = {f"model.{name}": full(value).clone() for name, value in model.state_dict().items()}
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        for key, value in state.items():
            found[f"optimizer.{names[parameter]}.{key}"] = full(value).clone()
    found["lr"] = torch.tensor(optimizer.param_groups[0]["lr"])
    return found


def differing(one, other):
    """Names of what is not bit-equal."""
    names = sorted(set(one) | set(other))
    return [name for name in names if name not in one or name not in other or not torch.equal(one[name], other[name])]


def reference(seed=0, steps=2):
    """What a run on one process holds."""
    model, optimizer = make(seed)
    step(model, optimizer, steps)
    return values(model, optimizer)
