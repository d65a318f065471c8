"""Train a small model on handwritten digits, on two CPU processes, by a strategy that comes from a separate package.

    python docs/examples/demo.py

The training loop is plain PyTorch; Fabric starts the processes, splits the data and averages the gradients. Which
plugin does so was found in the metadata of the installed packages, as the end of the output shows.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from poplin import Fabric

EPOCHS = 12


def digits():
    """1,797 pictures of 8 × 8 pixels, and which digit each shows; the last fifth is for the test."""
    pictures, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(pictures / 16.0, dtype=torch.float32), torch.tensor(labels))
    return random_split(data, [0.8, 0.2], generator=torch.Generator().manual_seed(0))


def accuracy(fabric, model, loader):
    """The share of pictures that are recognised, over all processes."""
    model.eval()
    right = []
    with torch.no_grad():
        for pictures, labels in loader:
            right.append(fabric.gather_for_metrics(model(pictures).argmax(dim=1) == labels))
    model.train()
    return torch.cat(right).float().mean().item()


def main():
    """Train and test."""
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(1, verbose=False)

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = fabric.setup(model, optimizer)

    train, test = digits()
    train_loader, test_loader = fabric.setup_dataloaders(
        DataLoader(train, batch_size=32, shuffle=True), DataLoader(test, batch_size=64)
    )

    fabric.print(f"{fabric.world_size} processes, {len(train)} pictures to learn from, {len(test)} to test on")
    for epoch in range(EPOCHS):
        for pictures, labels in train_loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            fabric.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        mean_loss = fabric.all_reduce(loss.detach(), reduce_op="mean")
        fabric.print(f"epoch {epoch + 1:2d} of {EPOCHS}: loss of the last batch {mean_loss:.3f}")

    result = accuracy(fabric, model, test_loader)
    fabric.print(f"\naccuracy on the test pictures: {result:.1%}\n")
    fabric.print(fabric.explain())
    fabric.close()


if __name__ == "__main__":
    main()
