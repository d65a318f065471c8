"""Batches reach the device without the host waiting for it."""

from __future__ import annotations

import torch
from gpu_support import DEVICE, fabric_of
from torch.utils.data import DataLoader, TensorDataset


def loader(fabric, **options):
    data = TensorDataset(torch.randn(256, 64), torch.randint(0, 9, (256,)))
    return fabric.setup_dataloaders(DataLoader(data, batch_size=64, **options))


def test_batches_are_on_the_device():
    fabric = fabric_of()
    for inputs, targets in loader(fabric):
        assert inputs.device == targets.device == DEVICE
    fabric.close()


def test_pinned_batches_are_copied_without_waiting(only_gpu):
    fabric = fabric_of()
    batches = iter(loader(fabric, pin_memory=True))
    for _ in range(2):  # pinned memory is taken once, which waits, and used again
        next(batches)
    torch.cuda.synchronize()
    busy = torch.randn(8192, 8192, device=DEVICE)
    for _ in range(20):
        busy = busy @ busy.clamp(-1e-3, 1e-3)
    done = torch.cuda.Event()
    done.record()
    torch.cuda.set_sync_debug_mode("error")  # whatever waits for the device raises
    try:
        inputs, _ = next(batches)
        still_busy = not done.query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert still_busy, "the batch came after the device had done its work: the copy waited, or the work was too short"
    torch.cuda.synchronize()
    assert inputs.device == DEVICE
    fabric.close()


def test_a_pinned_copy_arrives_whole(only_gpu):
    fabric = fabric_of()
    data = torch.arange(1 << 20, dtype=torch.float32).view(64, -1)
    batches = fabric.setup_dataloaders(DataLoader(TensorDataset(data), batch_size=8, pin_memory=True, num_workers=2))
    seen = torch.cat([part.sum(dim=1) for (part,) in batches])
    torch.testing.assert_close(seen.cpu(), data.sum(dim=1))
    fabric.close()


def test_steps_do_not_wait_for_the_device(only_gpu):
    """Nothing in a step of Fabric's makes the host wait, where a raw step has nothing either."""
    from gpu_support import batches, model

    for precision in ("32-true", "bf16-mixed"):
        fabric = fabric_of(precision)
        module = model()
        net, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), fused=True))
        data = [fabric.to_device(batch) for batch in batches(6)]

        def step(inputs, targets, net=net, optimizer=optimizer, fabric=fabric):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(net(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(net, optimizer, max_norm=1.0, error_if_nonfinite=False)
            optimizer.step()

        for batch in data[:3]:
            step(*batch)
        torch.cuda.set_sync_debug_mode("error")
        try:
            for batch in data[3:]:
                step(*batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        fabric.close()
