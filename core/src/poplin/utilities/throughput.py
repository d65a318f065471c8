"""How fast training goes: batches, samples and floating-point operations per second, and the share of the peak."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from poplin.accelerators.accelerator import Accelerator
from poplin.errors import ArgumentValueError, UsageError

if TYPE_CHECKING:
    from poplin.fabric import Fabric


class Throughput:
    """Rates over a window of the last updates.

    The caller hands in totals since the beginning; the rates are differences over the window. Keys of
    :meth:`compute`: ``time``, ``batches``, ``samples`` and ``lengths`` are the totals; with a full window there are
    ``device/batches_per_sec``, ``device/samples_per_sec``, ``device/items_per_sec`` (of ``lengths``),
    ``device/flops_per_sec`` and ``device/mfu``, and without ``device/`` those of all devices together, if there are
    several (FLOPs always).

    MFU, the model FLOPs utilisation, is ``device/flops_per_sec`` over the device's peak (Chowdhery et al., "PaLM",
    2022, appendix B).

    Args:
        available_flops: peak of one device in FLOP/s; None leaves out the utilisation.
        world_size: number of devices.
        window_size: number of updates that the rates are taken over.
        separator: between ``device`` and the rest of a key.
    """

    def __init__(
        self,
        available_flops: float | None = None,
        world_size: int = 1,
        window_size: int = 100,
        separator: str = "/",
    ) -> None:
        if world_size < 1:
            raise ArgumentValueError(f"world_size={world_size}: there is at least one device.")
        if window_size < 2:
            raise ArgumentValueError(f"window_size={window_size}: a rate needs at least two updates.")
        self.available_flops = available_flops
        self.world_size = world_size
        self.separator = separator
        self._totals: dict[str, deque[float]] = {
            name: deque(maxlen=window_size) for name in ("time", "batches", "samples", "lengths")
        }
        self._flops: deque[float] = deque(maxlen=window_size)

    def update(
        self, *, time: float, batches: int, samples: int, lengths: int | None = None, flops: float | None = None
    ) -> None:
        """Take the totals at this moment.

        Args:
            time: seconds since the beginning, measured by the caller.
            batches: batches processed by this device since then.
            samples: samples in these.
            lengths: items in these samples (tokens, say).
            flops: floating-point operations of this device since the last update, not in total.

        Raises:
            ArgumentValueError: a total is smaller than before, or there are fewer samples than batches or fewer items
                than samples.
            UsageError: ``lengths`` was given in some updates only.
        """
        if samples < batches:
            raise ArgumentValueError(f"samples={samples} is less than batches={batches}: these are totals.")
        if lengths is not None and lengths < samples:
            raise ArgumentValueError(f"lengths={lengths} is less than samples={samples}: these are totals.")
        counted = self._totals["lengths"]
        if self._totals["time"] and (lengths is not None) != bool(counted):
            raise UsageError("Throughput.update() got `lengths` in some updates and not in others: give it always.")
        new = {"time": time, "batches": batches, "samples": samples}
        if lengths is not None:
            new["lengths"] = lengths
        for name, value in new.items():
            totals = self._totals[name]
            if totals and (value < totals[-1] or (name == "time" and value == totals[-1])):
                raise ArgumentValueError(f"{name}={value} after {totals[-1]}: totals since the beginning only grow.")
        for name, value in new.items():
            self._totals[name].append(value)
        if flops is not None:
            self._flops.append(flops)

    def compute(self) -> dict[str, int | float]:
        """The totals and, with a full window, the rates."""
        metrics: dict[str, int | float] = {name: totals[-1] for name, totals in self._totals.items() if totals}
        times = self._totals["time"]
        if len(times) != times.maxlen:
            return metrics
        seconds = times[-1] - times[0]
        for name, unit in (("batches", "batches"), ("samples", "samples"), ("lengths", "items")):
            if totals := self._totals[name]:
                self._add_rate(metrics, f"{unit}_per_sec", (totals[-1] - totals[0]) / seconds, self.world_size > 1)
        if len(self._flops) == times.maxlen:
            rate = (sum(self._flops) - self._flops[0]) / seconds  # the first lie before the window's first moment
            self._add_rate(metrics, "flops_per_sec", rate, True)
            if self.available_flops:
                metrics[f"device{self.separator}mfu"] = rate / self.available_flops
        return metrics

    def _add_rate(self, metrics: dict[str, int | float], name: str, rate: float, of_all: bool) -> None:
        metrics[f"device{self.separator}{name}"] = rate
        if of_all:
            metrics[name] = rate * self.world_size

    def reset(self) -> None:
        """Begin again."""
        for totals in self._totals.values():
            totals.clear()
        self._flops.clear()


class ThroughputMonitor(Throughput):
    """Throughput of a Fabric, logged with it. On ranks other than 0 its methods do nothing.

    ::

        monitor = ThroughputMonitor(fabric)
        ...
        monitor.update(time=perf_counter() - begin, batches=step, samples=step * batch_size, flops=flops)
        monitor.compute_and_log()

    Args:
        fabric: its device, precision, world size and loggers are used.
        kwargs: those of :class:`Throughput`; ``available_flops`` is the accelerator's peak by default.
    """

    def __init__(self, fabric: Fabric, **kwargs: Any) -> None:
        kwargs.setdefault("available_flops", fabric.accelerator.peak_flops(compute_dtype(fabric.strategy.precision)))
        kwargs.setdefault("world_size", fabric.world_size)
        super().__init__(**kwargs)
        self._fabric = fabric
        self.step = -1

    def update(self, **kwargs: Any) -> None:
        """As :meth:`Throughput.update`."""
        if self._fabric.is_global_zero:
            super().update(**kwargs)

    def compute(self) -> dict[str, int | float]:
        """As :meth:`Throughput.compute`."""
        return super().compute() if self._fabric.is_global_zero else {}

    def compute_and_log(self, step: int | None = None, **kwargs: Any) -> dict[str, int | float]:
        """Compute, and hand to ``Fabric.log_dict``.

        Args:
            step: by default one more than the last time.
            kwargs: none are taken; here for subclasses whose ``compute`` takes some.

        Returns:
            The metrics.
        """
        if not self._fabric.is_global_zero:
            return {}
        self.step = self.step + 1 if step is None else step
        metrics = self.compute(**kwargs)
        self._fabric.log_dict(metrics, step=self.step)
        return metrics


def measure_flops(
    model: nn.Module, forward_fn: Callable[[], Tensor], loss_fn: Callable[[Tensor], Tensor] | None = None
) -> int:
    """Count the floating-point operations of a forward pass and, with a loss, of the backward pass too.

    Under ``torch.device("meta")`` it costs nothing. torch counts multiplications and additions of matrix products,
    convolutions and attention.

    Args:
        model: to be shown by torch's counter.
        forward_fn: runs the model on a batch.
        loss_fn: takes what ``forward_fn`` returned; its result is differentiated.

    Returns:
        Floating-point operations of that one batch.
    """
    counter = FlopCounterMode(display=False)
    with counter:
        if loss_fn is None:
            forward_fn()
        else:
            loss_fn(forward_fn()).backward()
    return int(counter.get_total_flops())


def get_available_flops(device: torch.device | Accelerator, dtype: torch.dtype | str) -> float | None:
    """The peak rate of a device for dense matrix work, from its accelerator.

    Args:
        device: a device, or the accelerator itself. For a device the accelerators imported so far are asked.
        dtype: torch's, or its name.

    Returns:
        FLOP/s, or None where it isn't known.

    Raises:
        ArgumentValueError: there is no such dtype.
    """
    if isinstance(dtype, str):
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype):
            raise ArgumentValueError(f"dtype={dtype!r}: torch has no dtype of this name.")
        dtype = found
    if isinstance(device, Accelerator):
        return device.peak_flops(dtype)
    for kind in _subclasses(Accelerator):  # type: ignore[type-abstract]
        if getattr(kind, "device_type", None) == device.type and not getattr(kind, "__abstractmethods__", None):
            peak = kind().peak_flops(dtype)
            if peak is not None:  # several accelerators may serve a type of device
                return peak
    return None


def _subclasses(kind: type[Accelerator]) -> list[type[Accelerator]]:
    found = []
    for sub in kind.__subclasses__():
        found += [sub, *_subclasses(sub)]
    return found


def compute_dtype(precision: Any) -> torch.dtype:
    """The dtype in which matrix products run under a precision, by its name: ``bf16-mixed`` is bfloat16."""
    name = str(precision.precision)
    for start, dtype in (("bf16", torch.bfloat16), ("16", torch.float16), ("64", torch.float64)):
        if name.startswith(start):
            return dtype
    if name.startswith("transformer-engine"):
        return torch.float8_e4m3fn
    return torch.float32
