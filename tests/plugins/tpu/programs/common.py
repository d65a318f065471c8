"""A small training, the same on every device."""

import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """Two of its layers share their weight."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.last = nn.Linear(8, 4)

    def forward(self, inputs):
        self.calls += 1
        return self.last(self.norm(self.second(torch.tanh(self.first(inputs)))))

    def training_step(self, inputs, targets):
        return nn.functional.mse_loss(self(inputs), targets)


class Plain(nn.Module):
    """No tied weights, no buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, inputs):
        return self.last(torch.tanh(self.first(inputs)))

    def training_step(self, inputs, targets):
        return nn.functional.mse_loss(self(inputs), targets)


def loader(count=40, batch_size=8):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(count, 8, generator=generator), torch.randn(count, 4, generator=generator))
    return DataLoader(data, batch_size=batch_size)


def set_up(fabric, net=Net, scheduler=False):
    torch.manual_seed(7)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return fabric.setup(model, optimizer)


def train(fabric, model, optimizer, epochs=1, clip=0.5, closure=False, accumulate=1, batch_size=8):
    data = fabric.setup_dataloaders(loader(batch_size=batch_size))
    loss = None
    for _ in range(epochs):
        for number, (inputs, targets) in enumerate(data):
            if closure:

                def step():
                    optimizer.zero_grad()
                    loss = model.training_step(inputs, targets)  # noqa: B023
                    fabric.backward(loss)
                    return loss

                loss = optimizer.step(step)
                continue
            whole = (number + 1) % accumulate == 0
            with fabric.no_backward_sync(model, enabled=not whole):
                loss = model.training_step(inputs, targets)
                fabric.backward(loss / accumulate)
            if whole:
                if clip:
                    fabric.clip_gradients(model, optimizer, max_norm=clip)
                optimizer.step()
                optimizer.zero_grad()
    return loss.item()


def values(state):
    return {name: value.detach().float().cpu() for name, value in state.items()}


def distance(one, other):
    assert list(one) == list(other), (list(one), list(other))
    return max((one[name] - other[name]).abs().max().item() for name in one)


def report(**results):
    print("REPORT " + json.dumps(results), flush=True)
