"""Run by each rank: every strategy, and each way of using it, against one plain process."""

import os
import warnings

import torch
from models import CLIP, PLAN, Block, Net, adamw, data, parallelize, plain, seeded
from torch import nn

from poplin import Fabric
from poplin.strategies import FSDPStrategy, ModelParallelStrategy, TensorParallelStrategy
from poplin.testing import report

warnings.filterwarnings("error", module="poplin")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
BLOCKS = {"auto_wrap_policy": {Block}, "timeout": 60}
out = {}


def fabric_with(strategy, **options):
    fabric = Fabric(accelerator="cpu", devices=WORLD, strategy=strategy, **options)
    fabric.launch()
    return fabric


def full(fabric, model):
    return fabric.strategy.get_module_state_dict(model._forward_module)


def distance(found, expected):
    """0 on the ranks that get no values."""
    return max([(value - expected[name]).abs().max().item() for name, value in found.items()] or [0.0])


def train(fabric, model, optimizer, *, micro=1, step="forward", clip=CLIP):
    strategy, norms = fabric.strategy, []
    for batch in data():
        optimizer.zero_grad()
        share = [tensor.chunk(strategy.data_world_size)[strategy.data_rank].chunk(micro) for tensor in batch]
        for number, (words, targets) in enumerate(zip(*share, strict=True)):
            with fabric.no_backward_sync(model, enabled=number + 1 < micro):
                if step == "forward":
                    loss = nn.functional.cross_entropy(model(words), targets) / micro
                else:
                    loss = model.training_step((words, targets), scale=1 / micro)
                fabric.backward(loss)
        if clip:
            norms.append(float(fabric.clip_gradients(model, optimizer, max_norm=clip)))
        optimizer.step()
    return norms


REFERENCE, NORMS = plain()
INITIAL = seeded().state_dict()


def case(name, strategy, *, make=Net, optimizer_of=adamw, setup="joint", init="own", reference=REFERENCE, **how):
    """How far model and norms are from one process's, and whether what must hold holds."""
    with fabric_with(strategy) as fabric:
        facts = {}
        if init == "meta":
            torch.manual_seed(3)
            with fabric.init_module():
                model = make()
            facts["on meta"] = all(parameter.is_meta for parameter in model.parameters())
        else:
            model = seeded(make, 3 if RANK == 0 else 77)  # rank 0's values count
        model.embedding.weight.kind = "tied"
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if setup == "joint":
            model, optimizer = fabric.setup(model, optimizer_of(trained))
        else:
            model = fabric.setup_module(model)
            optimizer = fabric.setup_optimizers(
                optimizer_of([parameter for parameter in model.parameters() if parameter.requires_grad])
            )
        start = full(fabric, model)
        facts["initial"] = all(torch.equal(value, INITIAL[key]) for key, value in start.items()) or how.get("any_start")
        how.pop("any_start", None)
        norms = train(fabric, model, optimizer, **how)
        facts["tied"] = model.head.weight is model.embedding.weight
        facts["attribute"] = getattr(model.embedding.weight, "kind", None) == "tied"
        found = full(fabric, model)
        facts["names"] = RANK > 0 or list(found) == list(reference.state_dict())
        facts["saved once"] = RANK > 0 or found["head.weight"].data_ptr() == found["embedding.weight"].data_ptr()
        reference_norms = NORMS if reference is REFERENCE and norms else norms
        out[name] = {
            "distance": distance(found, reference.state_dict()),
            "norms": max([abs(a - b) for a, b in zip(norms, reference_norms, strict=True)] or [0.0]),
            "wrong": [fact for fact, holds in facts.items() if not holds],
        }


def frozen():
    model = Net()
    model.blocks[0].requires_grad_(False)
    model.blocks[1].up.bias.requires_grad_(False)
    model.scale.requires_grad_(False)
    return model


class Slope(nn.Module):
    """Its gradient is known."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 8))
        self.register_buffer("slope", nn.init.orthogonal_(torch.empty(12, 8)) + 0.2 * torch.randn(12, 8))

    def forward(self, scale):
        return scale * (self.weight * self.slope).sum()


case("fsdp, joint setup", FSDPStrategy(**BLOCKS))
case("fsdp, two steps of setup, micro batches, a marked step", FSDPStrategy(**BLOCKS), setup="two", micro=2, step="s")
case("fsdp, meta", FSDPStrategy(**BLOCKS), init="meta")
case(
    "fsdp, meta, a group across tied modules",
    FSDPStrategy(auto_wrap_policy={Block, nn.Embedding, nn.Linear}),
    init="meta",
)
case("hsdp", FSDPStrategy(sharding_strategy="HYBRID_SHARD", **BLOCKS), micro=2)
case("tensor parallel", TensorParallelStrategy(PLAN, timeout=60), init="meta")
case("a function", ModelParallelStrategy(parallelize, timeout=60), step="s")
if WORLD == 2:
    case("fsdp, one unit", FSDPStrategy(timeout=60))
    case("zero 2", FSDPStrategy(sharding_strategy="SHARD_GRAD_OP", **BLOCKS))
    case("offloaded", FSDPStrategy(cpu_offload=True, **BLOCKS), init="meta")
    case("replicas", FSDPStrategy(device_mesh=(2, 1), **BLOCKS), init="meta")
    case("a function, data parallel", ModelParallelStrategy(parallelize, data_parallel_size=2), step="s", micro=2)
    case("checkpointed", FSDPStrategy(activation_checkpointing_policy={Block}, **BLOCKS))
    frozen_reference = plain(frozen)[0]
    case("frozen parts", FSDPStrategy(**BLOCKS), make=frozen, reference=frozen_reference)
    case("frozen parts of a plan", TensorParallelStrategy(PLAN, timeout=60), make=frozen, reference=frozen_reference)
    # Muon orthogonalises in bfloat16: a well-conditioned gradient, and the direction of the step
    alone = seeded(Slope)
    alone(1.0).backward()
    torch.optim.Muon([alone.weight], lr=0.1, weight_decay=0.0).step()
    with fabric_with(FSDPStrategy(timeout=60)) as fabric:
        model = seeded(Slope)
        start = model.weight.detach().clone()
        model, optimizer = fabric.setup(model, torch.optim.Muon([model.weight], lr=0.1, weight_decay=0.0))
        fabric.backward(model(1.0))
        optimizer.step()
        found = full(fabric, model)
        steps = [(one - start).flatten() for one in (alone.weight.detach(), found.get("weight", alone.weight.detach()))]
        apart = 1 - nn.functional.cosine_similarity(*steps, dim=0).item()
        out["muon"] = {"distance": apart, "norms": 0.0, "wrong": []}
if WORLD == 4:
    case("replicas of halves", FSDPStrategy(device_mesh=(2, 2), **BLOCKS), init="meta", micro=2)
    both = {"data_parallel_size": 2, "timeout": 60}
    case(
        "two dimensions, a plan",
        ModelParallelStrategy(plan=PLAN, auto_wrap_policy={Block}, **both),
        init="meta",
        micro=2,
    )
    case("two dimensions, a function", ModelParallelStrategy(parallelize, **both), init="meta", micro=2)
report(out)
