"""A look at whether this environment trains: a few steps on synthetic tensors, and a checkpoint if you name a path.

    python smoke.py --devices 2 --max-steps 20 --checkpoint-path smoke.ckpt
    fabric run --accelerator=cpu --devices=1 smoke.py

It downloads nothing, and needs a folder to write to only for the checkpoint.
"""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from poplin import Fabric


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", default="auto", help="how many processes or devices (default: auto)")
    parser.add_argument("--max-steps", type=int, default=10, help="how many optimizer steps (default: 10)")
    parser.add_argument("--checkpoint-path", help="save a checkpoint here, load it, and compare")
    return parser.parse_args()


def train(fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader, steps: int) -> int:
    """Take ``steps`` optimizer steps and return how many were taken."""
    taken = 0
    while taken < steps:
        for inputs, targets in loader:
            loss = nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            fabric.backward(loss)
            optimizer.step()
            taken += 1
            if taken == 1 or taken == steps:
                fabric.print(f"step {taken}: loss {loss.item():.4f}")
            if taken == steps:
                break
    return taken


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))


def compare_with_checkpoint(fabric: Fabric, model: nn.Module, optimizer: torch.optim.Optimizer, path: str) -> None:
    """Save, load into a new model, and make sure that both are the same."""
    fabric.save(path, {"model": model, "optimizer": optimizer})
    again = make_model()
    again, again_optimizer = fabric.setup(again, torch.optim.AdamW(again.parameters(), lr=1e-2))
    fabric.load(path, {"model": again, "optimizer": again_optimizer})
    for name, value in model.state_dict().items():
        if not torch.equal(value, again.state_dict()[name]):
            raise SystemExit(f"{name} came back from {path} different from what was saved")
    fabric.print(f"saved to {path}, loaded, and equal")


def main() -> None:
    options = arguments()
    fabric = Fabric(devices=options.devices)
    if not fabric.launched:
        fabric.launch()
    fabric.seed_everything(7, verbose=False)

    inputs = torch.randn(256, 16)
    data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=32, shuffle=True))
    model = make_model()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

    taken = train(fabric, model, optimizer, loader, options.max_steps)
    if options.checkpoint_path:
        compare_with_checkpoint(fabric, model, optimizer, options.checkpoint_path)
    fabric.print(f"ok: {taken} steps on {fabric.world_size} process(es), {fabric.device.type}")
    fabric.close()


if __name__ == "__main__":
    main()
