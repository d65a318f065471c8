"""Rates, and the share of the peak."""

from types import SimpleNamespace

import pytest
import torch

from poplin.accelerators.cpu import CPUAccelerator
from poplin.errors import ArgumentValueError, UsageError
from poplin.utilities.throughput import Throughput, ThroughputMonitor, compute_dtype, get_available_flops, measure_flops


def test_rates_over_a_full_window():
    throughput = Throughput(available_flops=100, world_size=2, window_size=3)
    for step in range(1, 4):
        throughput.update(time=0.5 * step, batches=step, samples=4 * step, lengths=8 * step, flops=10)
        if step < 3:
            assert throughput.compute() == {
                "time": 0.5 * step,
                "batches": step,
                "samples": 4 * step,
                "lengths": 8 * step,
            }
    assert throughput.compute() == {
        "time": 1.5,
        "batches": 3,
        "samples": 12,
        "lengths": 24,
        "device/batches_per_sec": 2.0,
        "batches_per_sec": 4.0,
        "device/samples_per_sec": 8.0,
        "samples_per_sec": 16.0,
        "device/items_per_sec": 16.0,
        "items_per_sec": 32.0,
        "device/flops_per_sec": 20.0,
        "flops_per_sec": 40.0,
        "device/mfu": 0.2,
    }
    throughput.reset()
    assert throughput.compute() == {}


def test_one_device_and_another_separator():
    throughput = Throughput(window_size=2, separator="|")
    throughput.update(time=1, batches=1, samples=1)
    throughput.update(time=2, batches=3, samples=5)
    assert throughput.compute() == {
        "time": 2,
        "batches": 3,
        "samples": 5,
        "device|batches_per_sec": 2.0,
        "device|samples_per_sec": 4.0,
    }


def test_what_can_not_be_is_an_error_and_changes_nothing():
    throughput = Throughput(window_size=2)
    throughput.update(time=1, batches=1, samples=2)
    for wrong in (
        {"time": 1, "batches": 2, "samples": 3},
        {"time": 2, "batches": 0, "samples": 3},
        {"time": 2, "batches": 4, "samples": 3},
    ):
        with pytest.raises(ArgumentValueError, match="totals"):
            throughput.update(**wrong)
    with pytest.raises(UsageError, match="`lengths` in some updates"):
        throughput.update(time=2, batches=2, samples=3, lengths=5)
    with pytest.raises(ArgumentValueError, match="lengths=1 is less than samples=3"):
        throughput.update(time=2, batches=2, samples=3, lengths=1)
    assert throughput.compute() == {"time": 1, "batches": 1, "samples": 2}
    with pytest.raises(ArgumentValueError, match="world_size=0"):
        Throughput(world_size=0)
    with pytest.raises(ArgumentValueError, match="window_size=1"):
        Throughput(window_size=1)


class Fast(CPUAccelerator):
    device_type = "meta"

    def peak_flops(self, dtype):
        return 1000.0 if dtype == torch.bfloat16 else None


def test_the_monitor_logs_on_rank_0_only():
    logged = []

    def fabric(rank):
        return SimpleNamespace(
            accelerator=Fast(),
            strategy=SimpleNamespace(precision=SimpleNamespace(precision="bf16-mixed")),
            world_size=2,
            is_global_zero=rank == 0,
            log_dict=lambda metrics, step: logged.append((metrics, step)),
        )

    for rank in range(2):
        monitor = ThroughputMonitor(fabric(rank), window_size=2)
        for step in range(1, 3):
            monitor.update(time=step, batches=step, samples=step, flops=100)
            metrics = monitor.compute_and_log()
        assert metrics.get("device/mfu") == (0.1 if rank == 0 else None)
    assert [step for _, step in logged] == [0, 1]
    assert logged[1][0]["device/flops_per_sec"] == 100


def test_flops_are_counted():
    with torch.device("meta"):
        model = torch.nn.Linear(4, 8, bias=False)
        batch = torch.randn(2, 4)
    forward = measure_flops(model, lambda: model(batch))
    assert forward == 2 * 2 * 4 * 8
    assert measure_flops(model, lambda: model(batch), lambda output: output.sum()) == 2 * forward


def test_the_peak_is_the_accelerators():
    assert get_available_flops(Fast(), torch.bfloat16) == 1000
    assert get_available_flops(torch.device("meta"), "bfloat16") == 1000
    assert get_available_flops(torch.device("cpu"), torch.float32) is None
    with pytest.raises(ArgumentValueError, match="no dtype of this name"):
        get_available_flops(Fast(), "float99")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("32-true", torch.float32),
        ("16-mixed", torch.float16),
        ("bf16-true", torch.bfloat16),
        ("64-true", torch.float64),
        ("transformer-engine", torch.float8_e4m3fn),
    ],
)
def test_the_dtype_of_a_precision(name, dtype):
    assert compute_dtype(SimpleNamespace(precision=name)) == dtype
