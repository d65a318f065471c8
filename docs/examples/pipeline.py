"""A strategy with a schedule of its own: pipeline parallelism by torch.distributed.pipelining, on two CPU processes.

    python docs/examples/pipeline.py [--devices 1] [--epochs 4] [--checkpoint-path FILE]

Each process holds one stage of the model; a batch flows through the stages in micro-batches. Forward and backward of
these alternate, so one schedule runs both, and `fabric.backward` has nothing left to do. The loop below does not know:
with `--devices 1` the same lines train the whole model in one process, and both give the same weights.

What a strategy needs for that is all in the public interface:

- `mesh`, whose dimension `pp` has the stages; `data_rank` and `data_world_size`: every stage sees the same data
- `owns_backward`: the schedule runs it; and `forward_method`, through which `training_step` reaches the schedule
- `names_elsewhere`: which names of the model other ranks hold; the state members then bring all stages together
"""

import argparse
import contextlib
import os

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader, TensorDataset

from poplin import Fabric
from poplin.strategies import ParallelStrategy


class Net(nn.Sequential):
    """A model that is a row of layers, with its own training step."""

    def __init__(self):
        super().__init__(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    @staticmethod
    def loss(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels)

    def training_step(self, pictures, labels):
        return self.loss(self(pictures), labels)


class Pipeline(nn.Module):
    """One stage of the model, and the schedule that moves micro-batches through all of them."""

    def __init__(self, module, mesh, device, num_microbatches):
        super().__init__()
        self.module = module
        group = mesh.get_group("pp")
        self.rank, self.stages = group.rank(), group.size()
        layers = [name for name, _ in module.named_children()]
        bounds = [round(len(layers) * stage / self.stages) for stage in range(self.stages + 1)]
        own = set(layers[bounds[self.rank] : bounds[self.rank + 1]])
        self.elsewhere = {name for name in module.state_dict() if name.partition(".")[0] not in own}
        for name in layers:
            if name not in own:
                setattr(module, name, nn.Identity())  # its parameters are another rank's
        part = nn.Sequential(*(getattr(module, name) for name in layers if name in own))
        stage = PipelineStage(part, self.rank, self.stages, device, group=group)
        self.schedule = Schedule1F1B(stage, num_microbatches, loss_fn=module.loss)
        self.evaluation = ScheduleGPipe(stage, num_microbatches)
        self.last = dist.get_global_rank(group, self.stages - 1)
        self.group = group

    def training_step(self, pictures, labels):
        """Forward and backward of all micro-batches; returns the mean of their losses, on every rank."""
        inputs = (pictures,) if self.rank == 0 else ()
        ends = self.rank == self.stages - 1
        losses = []
        self.schedule.step(*inputs, target=labels if ends else None, losses=losses if ends else None)
        loss = torch.stack(losses).mean() if ends else torch.zeros((), device=pictures.device)
        dist.broadcast(loss.detach_(), self.last, group=self.group)
        return loss

    def forward(self, pictures):
        """The outputs of the last stage, on every rank; for evaluation."""
        outputs = self.evaluation.eval(*((pictures,) if self.rank == 0 else ()))
        shape = [None if outputs is None else (outputs.shape, outputs.dtype)]
        dist.broadcast_object_list(shape, self.last, group=self.group)
        if outputs is None:
            outputs = torch.empty(shape[0][0], dtype=shape[0][1], device=pictures.device)
        dist.broadcast(outputs, self.last, group=self.group)
        return outputs


class PipelineStrategy(ParallelStrategy):
    """Each process holds one stage of a model that is a `torch.nn.Sequential`."""

    launcher_name = "subprocess"
    needs_forward = True
    owns_backward = True
    mutates_module = True
    picklable = False

    def __init__(self, num_microbatches=4, **options):
        super().__init__(**options)
        self.num_microbatches = num_microbatches
        self._mesh = None

    # --- who has which part of the data: everyone has all of it

    @property
    def mesh(self):
        return self._mesh

    data_rank = 0
    data_world_size = 1

    @property
    def data_group(self):
        return self._mesh.get_group("dp_replicate")

    def setup_environment(self):
        super().setup_environment()
        shape, names = (self.world_size, 1), ("pp", "dp_replicate")
        self._mesh = init_device_mesh(self.root_device.type, shape, mesh_dim_names=names)

    # --- the module and its schedule

    def setup_module(self, module):
        with torch.no_grad():
            for parameter in module.parameters():  # as rank 0 has them, on every rank
                dist.broadcast(parameter, 0)
        return Pipeline(module, self._mesh, self.root_device, self.num_microbatches)

    def original_module(self, wrapped):
        return wrapped.module

    def forward_method(self, wrapped, name):
        return getattr(wrapped, name)

    def backward(self, tensor, module, *args, **kwargs):
        """Nothing: the schedule has run it."""

    def no_backward_sync(self, module, enabled=True):
        return contextlib.nullcontext()  # no gradient is synchronised

    def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
        """By the norm over all stages."""
        parameters = self._clipped_parameters(module, optimizer)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        own = nn.utils.get_total_norm(gradients, norm_type)
        total = self.all_gather(own).norm(norm_type)
        nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
        return total

    # --- states: all stages together

    def names_elsewhere(self, module):
        return module.elsewhere

    def get_module_state_dict(self, module, sharded=False):
        return self._merged(super().get_module_state_dict(module, sharded), lambda all, one: all.update(one))

    def get_optimizer_state(self, optimizer, names, sharded=False):
        def merge(all, one):
            all["state"].update(one["state"])
            for group, more in zip(all["param_groups"], one["param_groups"], strict=True):
                group["params"] += more["params"]

        return self._merged(super().get_optimizer_state(optimizer, names, sharded), merge)

    def _merged(self, own, merge):
        parts = [None] * self.world_size
        dist.all_gather_object(parts, own)
        for part in parts[1:]:
            merge(parts[0], part)
        return parts[0]


def main():
    """Train and test; go on from a checkpoint and save one, if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint-path", help="where to save, and what to go on from if it exists")
    options = parser.parse_args()
    torch.set_num_threads(1)
    strategy = PipelineStrategy() if options.devices > 1 else "single_device"
    with Fabric(accelerator="cpu", devices=options.devices, strategy=strategy) as fabric:
        fabric.launch()
        fabric.seed_everything(3, verbose=False)
        model = fabric.setup_module(Net())
        optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=3e-3))
        pictures, labels = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(pictures / 16.0, dtype=torch.float32), torch.tensor(labels))
        # micro-batches have one size, so the last batch, which is smaller, is left out
        loader = fabric.setup_dataloaders(DataLoader(data, batch_size=64, shuffle=True, drop_last=True))
        state = {"model": model, "optimizer": optimizer, "epoch": 0}
        if options.checkpoint_path and os.path.exists(options.checkpoint_path):
            fabric.load(options.checkpoint_path, state)
            fabric.print(f"resumed after epoch {state['epoch']}")
        for epoch in range(state["epoch"], options.epochs):
            for batch in loader:
                loss = model.training_step(*batch)
                fabric.backward(loss)
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                optimizer.zero_grad()
            fabric.print(f"epoch {epoch + 1}: loss {loss.item():.5f}")
        if options.checkpoint_path:
            fabric.save(options.checkpoint_path, {**state, "epoch": options.epochs})
        model.eval()
        with torch.no_grad():
            right = torch.cat([model(pictures).argmax(dim=1) == labels for pictures, labels in loader])
        fabric.print(f"accuracy {right.float().mean().item():.1%} with {fabric.world_size} stage(s)")


if __name__ == "__main__":
    main()
