"""What the programs have in common: a model, its data and a loop."""

import torch
from torch import nn

STEPS, BATCH = 5, 8


class Watched(nn.Module):
    """Tells what autocast is on in its forward."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 16), nn.Linear(16, 3)
        self.seen = None

    def forward(self, inputs):
        device = inputs.device.type
        hidden = self.first(inputs)
        self.seen = [
            device,
            torch.is_autocast_enabled(device),
            str(torch.get_autocast_dtype(device)),
            str(hidden.dtype),
        ]
        return self.second(torch.tanh(hidden))


def make():
    torch.manual_seed(7)
    model = Watched()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches():
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(STEPS * BATCH, 6, generator=generator)
    targets = torch.randn(STEPS * BATCH, 3, generator=generator)
    return [(inputs[at : at + BATCH], targets[at : at + BATCH]) for at in range(0, STEPS * BATCH, BATCH)]


def train(fabric, model, optimizer, data):
    for step, (inputs, targets) in enumerate(data):
        inputs, targets = fabric.to_device((inputs, targets))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=0.5)
        optimizer.step()
        fabric.log("loss", loss.detach(), step=step)
    return numbers(model)


def numbers(model):
    return [
        value for tensor in model.state_dict().values() for value in tensor.detach().cpu().double().flatten().tolist()
    ]
