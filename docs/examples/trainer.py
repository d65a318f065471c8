"""Your own trainer in a hundred lines: callbacks, accumulation, validation, a scheduler, checkpoints and resume.

    python trainer.py --folder runs/first --epochs 4
    python trainer.py --folder runs/first --epochs 8          # goes on where the first one ended

The trainer owns the loop and fires the hooks; Fabric owns devices, processes, precision and files. Everything in
``Trainer`` is yours to change.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from poplin import Fabric


class Trainer:
    """Trains a model that has ``training_step(batch, batch_idx)`` and, if you like, ``validation_step``.

    A step returns the loss, or a dictionary with ``"loss"`` in it.
    """

    def __init__(self, fabric: Fabric, folder: Path, accumulate: int = 1, use_closure: bool = False) -> None:
        self.fabric = fabric
        self.folder = folder
        self.accumulate = accumulate
        self.use_closure = use_closure
        self.state: dict[str, Any] = {"epoch": 0, "step": 0}

    @property
    def checkpoint(self) -> Path:
        return self.folder / "last.ckpt"

    def fit(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        train_loader: DataLoader,
        val_loader: DataLoader,
        epochs: int,
    ) -> nn.Module:
        fabric = self.fabric
        model, optimizer, scheduler = fabric.setup(model, optimizer, scheduler=scheduler)
        train_loader, val_loader = fabric.setup_dataloaders(train_loader, val_loader)
        self.state.update(model=model, optimizer=optimizer, scheduler=scheduler, fabric=fabric)
        if self.checkpoint.exists():
            fabric.load(self.checkpoint, self.state)
            fabric.print(f"resumed after epoch {self.state['epoch']}")
        while self.state["epoch"] < epochs and not fabric.should_stop:
            self.train_epoch(model, optimizer, train_loader)
            loss = self.validate(model, val_loader)
            scheduler.step()
            self.state["epoch"] += 1
            fabric.log_dict({"val_loss": loss, "epoch": self.state["epoch"]}, step=self.state["step"])
            fabric.print(f"epoch {self.state['epoch']}: validation loss {loss:.4f}")
            fabric.save(self.checkpoint, self.state)
        return model

    def train_epoch(self, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Iterable[Any]) -> None:
        fabric = self.fabric
        model.train()
        fabric.call("on_train_epoch_start")
        for batch_idx, batch in enumerate(loader):
            fabric.call("on_train_batch_start", batch, batch_idx)
            if (batch_idx + 1) % self.accumulate:
                with fabric.no_backward_sync(model):  # gradients add up on each rank; nothing is sent
                    outputs = self.forward_backward(model, batch, batch_idx)
            elif self.use_closure:
                kept: list[Any] = []

                def closure(batch: Any = batch, batch_idx: int = batch_idx, kept: list[Any] = kept) -> torch.Tensor:
                    kept.append(self.forward_backward(model, batch, batch_idx))
                    return loss_of(kept[-1])

                fabric.call("on_before_optimizer_step", optimizer, 0)
                optimizer.step(closure)
                outputs = kept[-1]
                self.after_step(optimizer)
            else:
                outputs = self.forward_backward(model, batch, batch_idx)
                fabric.call("on_before_optimizer_step", optimizer, 0)
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                self.after_step(optimizer)
            fabric.call("on_train_batch_end", outputs, batch, batch_idx)
        fabric.call("on_train_epoch_end")

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.fabric.call("on_before_zero_grad", optimizer)
        optimizer.zero_grad()
        self.state["step"] += 1

    def forward_backward(self, model: nn.Module, batch: Any, batch_idx: int) -> Any:
        outputs = model.training_step(batch, batch_idx=batch_idx)
        loss = loss_of(outputs) / self.accumulate
        self.fabric.call("on_before_backward", loss)
        self.fabric.backward(loss)
        self.fabric.call("on_after_backward")
        return outputs

    @torch.no_grad()
    def validate(self, model: nn.Module, loader: Iterable[Any]) -> float:
        """The mean loss over every sample of the validation set, each counted once, whatever the number of ranks."""
        fabric = self.fabric
        fabric.call("on_validation_model_eval")
        model.eval()
        fabric.call("on_validation_epoch_start")
        losses = []
        for batch_idx, batch in enumerate(loader):
            fabric.call("on_validation_batch_start", batch, batch_idx)
            outputs = model.validation_step(batch, batch_idx=batch_idx)
            losses.append(fabric.gather_for_metrics(outputs))
            fabric.call("on_validation_batch_end", outputs, batch, batch_idx)
        fabric.call("on_validation_epoch_end")
        fabric.call("on_validation_model_train")
        model.train()
        return torch.cat(losses).mean().item()


def loss_of(outputs: Any) -> torch.Tensor:
    """A step returns the loss, or a dictionary that holds it."""
    return outputs["loss"] if isinstance(outputs, dict) else outputs


class Regression(nn.Module):
    """A model in the form that the trainer expects."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> dict[str, torch.Tensor]:
        inputs, targets = batch
        return {"loss": nn.functional.mse_loss(self(inputs), targets)}

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], batch_idx: int) -> torch.Tensor:
        inputs, targets = batch
        return nn.functional.mse_loss(self(inputs), targets, reduction="none").mean(dim=1)  # one loss for each sample


class CountBatches:
    """A callback is any object with methods; this one takes only the arguments that it wants."""

    def __init__(self) -> None:
        self.batches = 0

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs/trainer"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--devices", default=1)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--use-closure", action="store_true")
    options = parser.parse_args()

    counter = CountBatches()
    fabric = Fabric(devices=options.devices, callbacks=counter)
    if not fabric.launched:
        fabric.launch()
    fabric.seed_everything(1, verbose=False)
    options.folder.mkdir(parents=True, exist_ok=True)

    inputs = torch.randn(500, 8)
    targets = inputs.prod(dim=1, keepdim=True).sign()
    train_data, val_data = TensorDataset(inputs[:400], targets[:400]), TensorDataset(inputs[400:], targets[400:])
    model = Regression()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    trainer = Trainer(fabric, options.folder, accumulate=options.accumulate, use_closure=options.use_closure)
    trainer.fit(
        model,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5),
        DataLoader(train_data, batch_size=20, shuffle=True),
        DataLoader(val_data, batch_size=32),
        options.epochs,
    )
    fabric.print(f"{trainer.state['step']} steps, {counter.batches} batches in this run")
    fabric.close()


if __name__ == "__main__":
    main()
