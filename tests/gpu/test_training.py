"""Training on the device equals a raw loop by torch alone; clipping, accumulation, resuming, compiling."""

from __future__ import annotations

import pytest
import torch
from gpu_support import DEVICE, REHEARSAL, batches, fabric_of, model, raw_losses, train
from torch import nn

MIXED = ["32-true", "bf16-mixed", "16-mixed"]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("precision", MIXED)
def test_losses_equal_a_raw_loops(precision, clip, fused):
    data = batches()
    expected = raw_losses(precision, data, clip, fused=fused)
    fabric = fabric_of(precision)
    module = model()
    net, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2, fused=fused))
    losses = train(fabric, net, optimizer, data, clip)
    fabric.close()
    assert losses == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("precision", ["16-true", "bf16-true", "64-true"])
def test_true_precisions_train(precision):
    dtype = {"16-true": torch.float16, "bf16-true": torch.bfloat16, "64-true": torch.float64}[precision]
    fabric = fabric_of(precision)
    module = model()
    net, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1e-2))
    assert net.dtype is dtype
    losses = []
    for inputs, targets in batches(1) * 20:
        inputs, targets = fabric.to_device((inputs, targets))
        optimizer.zero_grad()
        output = net(inputs)
        loss = nn.functional.mse_loss(output.float(), targets)
        fabric.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    fabric.close()
    assert losses[-1] < losses[0]


def test_an_overflow_skips_the_step_and_backs_the_scale_off():
    fabric = fabric_of("16-mixed")
    module = model()
    net, optimizer = fabric.setup(module, torch.optim.SGD(module.parameters(), lr=1e-2))
    before = [parameter.detach().clone() for parameter in module.parameters()]
    scale = fabric.precision.scaler.get_scale()
    output = net(torch.randn(4, 64, device=DEVICE))
    fabric.backward(output.sum() * 1e30)
    norm = fabric.clip_gradients(net, optimizer, max_norm=1.0)
    optimizer.step()
    assert not torch.isfinite(norm)
    assert all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
    assert fabric.strategy.step_was_skipped(optimizer.optimizer)
    fabric.precision.state_dict()  # brings the scale up to date
    assert fabric.precision.scaler.get_scale() < scale
    fabric.close()


@pytest.mark.parametrize("precision", MIXED)
def test_a_resumed_run_goes_on_as_if_nothing_had_been(precision, tmp_path):
    data = batches(16)

    def start():
        fabric = fabric_of(precision)
        module = model()
        return fabric, *fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=1e-2))

    fabric, net, optimizer = start()
    whole = train(fabric, net, optimizer, data)
    fabric.close()

    fabric, net, optimizer = start()
    first = train(fabric, net, optimizer, data[:8])
    fabric.save(tmp_path / "half.ckpt", {"net": net, "optimizer": optimizer, "step": 8})
    fabric.close()

    fabric, net, optimizer = start()
    train(fabric, net, optimizer, batches(3))  # something else, which the checkpoint must undo
    state = {"net": net, "optimizer": optimizer, "step": 0}
    fabric.load(tmp_path / "half.ckpt", state)
    assert state["step"] == 8
    second = train(fabric, net, optimizer, data[8:])
    fabric.close()
    assert first + second == pytest.approx(whole, rel=1e-6, abs=1e-7)


def test_checkpoints_go_between_device_and_cpu(tmp_path, only_gpu):
    fabric = fabric_of()
    module = model(seed=4)
    net, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters()))
    train(fabric, net, optimizer, batches(2))
    fabric.save(tmp_path / "gpu.ckpt", {"net": net, "optimizer": optimizer})
    fabric.close()
    other = fabric_of(accelerator="cpu")
    copy = model(seed=5)
    copied, copied_optimizer = other.setup(copy, torch.optim.AdamW(copy.parameters()))
    other.load(tmp_path / "gpu.ckpt", {"net": copied, "optimizer": copied_optimizer})
    for one, two in zip(module.parameters(), copy.parameters(), strict=True):
        assert torch.equal(one.cpu(), two)
    other.close()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_compiled_module(precision, only_gpu):
    import torch._dynamo

    torch._dynamo.reset()
    data = batches(6)
    expected = raw_losses(precision, data)
    fabric = fabric_of(precision)
    module = model()
    net, optimizer = fabric.setup(torch.compile(module), torch.optim.AdamW(module.parameters(), lr=1e-2))
    losses = train(fabric, net, optimizer, data)
    assert list(net.state_dict()) == list(module.state_dict())
    fabric.close()
    assert losses == pytest.approx(expected, rel=1e-2 if precision == "bf16-mixed" else 1e-3)


def test_accumulated_gradients_equal_those_of_the_whole_batch():
    inputs, targets = batches(1, size=64)[0]
    gradients = []
    for parts in (1, 4):
        fabric = fabric_of()
        module = model()
        net = fabric.setup(module)
        for part, wanted in zip(inputs.chunk(parts), targets.chunk(parts), strict=True):
            with fabric.no_backward_sync(net):
                part, wanted = fabric.to_device((part, wanted))
                fabric.backward(nn.functional.mse_loss(net(part), wanted) / parts)
        gradients.append([parameter.grad.clone() for parameter in module.parameters()])
        fabric.close()
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_fsdp_on_one_device():
    data = batches(8)
    expected = raw_losses("32-true", data)
    fabric = fabric_of("32-true", strategy="fsdp")
    net = fabric.setup_module(model())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(net.parameters(), lr=1e-2))
    losses = train(fabric, net, optimizer, data)
    fabric.close()
    assert losses == pytest.approx(expected, rel=1e-4)
    assert REHEARSAL or not torch.distributed.is_initialized()
