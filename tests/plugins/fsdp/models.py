"""Models of the tests, data for them, and how one plain process trains them."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

STEPS, BATCH, WORDS, CLIP = 5, 8, 11, 0.5


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up = nn.Linear(8, 12)
        self.down = nn.Linear(12, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """Tied weights, a parameter without a dimension, a buffer, uneven sizes, an initialisation of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("shift", torch.sin(torch.arange(float(WORDS))))
        self.apply(self._fill)

    def _fill(self, part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=0.2)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale + self.shift

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], scale: float = 1.0) -> torch.Tensor:
        words, targets = batch
        return scale * nn.functional.cross_entropy(self(words), targets)


PLAN = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}


def parallelize(model: Net, mesh) -> Net:
    """What a user of Lightning's ModelParallelStrategy writes."""
    if mesh["tensor_parallel"].size() > 1:
        parallelize_module(model, mesh["tensor_parallel"], dict(PLAN))
    if mesh["data_parallel"].size() > 1:
        for block in model.blocks:
            fully_shard(block, mesh=mesh["data_parallel"])
        fully_shard(model, mesh=mesh["data_parallel"], ignored_params={model.scale})
    return model


def data(steps: int = STEPS) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [tuple(torch.randint(WORDS, (BATCH,), generator=generator) for _ in range(2)) for _ in range(steps)]


def adamw(parameters) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.05)


def seeded(make=Net, seed: int = 3):
    torch.manual_seed(seed)
    return make()


def plain(make=Net, optimizer_of=adamw, clip=CLIP, steps: int = STEPS):
    """``(model, norms)`` after ``steps`` of training in one process."""
    model = seeded(make)
    optimizer = optimizer_of([p for p in model.parameters() if p.requires_grad])
    norms = []
    for batch in data(steps):
        optimizer.zero_grad()
        model.training_step(batch).backward()
        if clip:
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
    return model, norms
