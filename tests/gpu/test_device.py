"""The accelerator on a real device: found without being touched, made current, seeded, measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from gpu_support import DEVICE, fabric_of, model

pytestmark = pytest.mark.usefixtures("only_gpu")

UNTOUCHED = """
import json, os, sys, torch
from poplin import Fabric
from poplin.accelerators import CUDAAccelerator, find_usable_cuda_devices

available, reason = CUDAAccelerator.availability()
count = CUDAAccelerator.auto_device_count()
usable = find_usable_cuda_devices()
fabric = Fabric(accelerator="gpu", devices=1, strategy="ddp")
initialized = torch.cuda.is_initialized()
read, write = os.pipe()
if os.fork() == 0:
    value = torch.ones(2, device="cuda").sum().item()  # fails if the fork was spoilt
    os.write(write, str(value).encode())
    os._exit(0)
os.close(write)
child = os.read(read, 100).decode()
runtime = torch.ones(1, device="cuda") is not None and torch.cuda.device_count()
print("REPORT", json.dumps([available, reason, count, usable, initialized, child, runtime]))
"""


def test_devices_are_found_and_the_process_can_still_be_forked():
    done = subprocess.run([sys.executable, "-c", UNTOUCHED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    report = next(line for line in done.stdout.splitlines() if line.startswith("REPORT "))
    available, reason, count, usable, initialized, child, runtime = json.loads(report.removeprefix("REPORT "))
    assert available, reason
    assert count == runtime
    assert set(usable) <= set(range(count))
    assert not initialized
    assert child == "2.0"


def test_uuids_are_understood():
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    code = "from poplin.accelerators import CUDAAccelerator as A; print(A.auto_device_count(), A.availability())"
    for visible, count in [(uuid, 1), ("", 0), ("-1", 0), (f"{uuid},{uuid}", 0)]:
        done = subprocess.run(
            ["env", f"CUDA_VISIBLE_DEVICES={visible}", sys.executable, "-c", code],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.startswith(f"{count} "), (visible, done.stdout, done.stderr)


def test_auto_is_the_gpu_and_everything_lands_there():
    fabric = fabric_of(accelerator="auto")
    assert fabric.device == DEVICE
    net, _ = fabric.setup(module := model(), torch.optim.AdamW(module.parameters()))
    assert {parameter.device for parameter in net.parameters()} == {DEVICE}
    assert torch.cuda.current_device() == 0
    with fabric.init_tensor():
        assert torch.zeros(2).device == DEVICE
    with fabric.init_module():
        assert torch.nn.Linear(2, 2).weight.device == DEVICE
    memory = fabric.accelerator.memory()
    assert 0 < memory["allocated"] <= memory["reserved"]
    assert memory["peak"] >= memory["allocated"]
    fabric.close()


def test_seeds_and_states_of_the_generator():
    fabric = fabric_of()
    fabric.seed_everything(3, verbose=False)
    first = torch.rand(4, device=DEVICE)
    fabric.seed_everything(3, verbose=False)
    assert torch.equal(first, torch.rand(4, device=DEVICE))
    state = fabric.accelerator.rng_state()
    after = torch.rand(4, device=DEVICE)
    fabric.accelerator.set_rng_state(state)
    assert torch.equal(after, torch.rand(4, device=DEVICE))
    fabric.close()


def test_the_measured_rate_is_below_the_peak_in_the_table():
    fabric = fabric_of()
    peak = fabric.accelerator.peak_flops(torch.bfloat16)
    if peak is None:
        pytest.skip(f"no peak is known for {torch.cuda.get_device_name()}")
    size = 8192
    one, other = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(5):
        one @ other
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(20):
        one @ other
    end.record()
    torch.cuda.synchronize()
    rate = 20 * 2 * size**3 / (start.elapsed_time(end) / 1000)
    print(f"bf16 matmul: {rate / 1e12:.0f} TFLOP/s of {peak / 1e12:.0f}")
    assert 0.2 * peak < rate <= 1.02 * peak
    fabric.close()


def test_collectives_through_nccl_in_a_world_of_one():
    fabric = fabric_of(strategy="ddp")
    assert "cpu:gloo,cuda:nccl, 1 process(es)" in fabric.explain()
    value = torch.tensor([3.0], device=DEVICE)
    assert fabric.all_reduce(value.clone(), reduce_op="sum").item() == 3
    assert fabric.broadcast(value).device == DEVICE
    assert fabric.broadcast({"any": "object"}) == {"any": "object"}
    assert fabric.all_gather(value).item() == 3
    fabric.barrier("here")
    net, optimizer = fabric.setup(module := model(), torch.optim.SGD(module.parameters(), lr=0.1))
    fabric.backward(net(torch.randn(4, 64, device=DEVICE)).mean())
    optimizer.step()
    fabric.close()
    assert not torch.distributed.is_initialized()


def test_dp_on_every_device():
    fabric = fabric_of("bf16-mixed", strategy="dp", devices=-1)
    net, optimizer = fabric.setup(module := model(), torch.optim.SGD(module.parameters(), lr=0.1))
    output = net(torch.randn(8, 64, device=DEVICE))
    assert output.dtype is torch.float32
    fabric.backward(fabric.all_reduce(output))
    optimizer.step()
    assert all(parameter.grad is not None for parameter in module.parameters())
    fabric.close()


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_dp_on_two_devices_is_as_on_one(precision):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    results = []
    for devices in (1, 2):
        fabric = fabric_of(precision, strategy="dp", devices=devices)
        net, optimizer = fabric.setup(module := model(), torch.optim.SGD(module.parameters(), lr=0.1))
        torch.manual_seed(5)
        loss = net(torch.randn(8, 64, device=DEVICE)).square().mean()
        fabric.backward(loss)
        optimizer.step()
        results.append([parameter.detach().clone() for parameter in module.parameters()])
        fabric.close()
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
