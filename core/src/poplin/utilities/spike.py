"""A callback that ends a training whose loss jumps, and notes which batches to leave out."""

from __future__ import annotations

import json
import math
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from poplin.errors import ArgumentValueError, TrainingSpikeException

if TYPE_CHECKING:
    from poplin.fabric import Fabric

__all__ = ["SpikeDetection", "TrainingSpikeException"]


class SpikeDetection:
    """Raises TrainingSpikeException, on every rank, when the loss of any rank jumps.

    The current batch and the one before are noted in a JSON file: it can't be known which of them did it. Fire it
    with ``fabric.call("on_train_batch_end", fabric=fabric, loss=loss, batch=batch, batch_idx=batch_idx)``.

    A loss is a spike if it is worse than the mean of the last ones by ``atol`` or more, or by ``rtol`` times that mean
    or more.

    Args:
        mode: "min" if smaller is better, "max" if greater is.
        window: how many losses the mean is taken over.
        warmup: from which batch index on a loss can be a spike.
        atol: an absolute tolerance, or None.
        rtol: a relative tolerance, or None.
        exclude_batches_path: a ``.json`` file, or a folder for ``skip_batches.json``; the current one by default.
        finite_only: whether a loss that isn't finite is a spike. It never enters the mean.

    Raises:
        ArgumentValueError: an unknown mode, or an empty window.
    """

    def __init__(
        self,
        mode: Literal["min", "max"] = "min",
        window: int = 10,
        warmup: int = 1,
        atol: float | None = None,
        rtol: float | None = 2.0,
        exclude_batches_path: str | os.PathLike[str] | None = None,
        finite_only: bool = True,
    ) -> None:
        if mode not in ("min", "max"):
            raise ArgumentValueError(f"mode={mode!r}: it is 'min' or 'max'.")
        if window < 1:
            raise ArgumentValueError(f"window={window}: a mean needs at least one loss.")
        self.mode = mode
        self.warmup = warmup
        self.atol = atol
        self.rtol = rtol
        self.finite_only = finite_only
        self.exclude_batches_path = exclude_batches_path
        self.bad_batches: list[int] = []
        self._losses: deque[float] = deque(maxlen=window)

    def on_train_batch_end(self, fabric: Fabric, loss: Tensor | float, batch: Any, batch_idx: int) -> None:
        """Judge the loss of a batch.

        Args:
            fabric: asks the other ranks.
            loss: a scalar.
            batch: not used.
            batch_idx: index of the batch.

        Raises:
            TrainingSpikeException: the loss of this rank, or of another, is a spike.
        """
        value = float(loss.detach()) if isinstance(loss, Tensor) else float(loss)
        spike = batch_idx >= self.warmup and self._is_spike(value)
        if fabric.strategy.reduce_boolean_decision(spike, all=False):
            self.bad_batches += [index for index in (batch_idx - 1, batch_idx) if index >= 0]
            if fabric.is_global_zero:
                self._write()
            raise TrainingSpikeException(batch_idx)
        if math.isfinite(value):
            self._losses.append(value)

    def _is_spike(self, loss: float) -> bool:
        if not math.isfinite(loss):
            return self.finite_only
        if not self._losses:
            return False
        mean = sum(self._losses) / len(self._losses)
        worse = loss - mean if self.mode == "min" else mean - loss
        if worse <= 0:
            return False
        beyond_atol = self.atol is not None and worse >= abs(self.atol)
        beyond_rtol = self.rtol is not None and worse >= abs(self.rtol * mean)
        return beyond_atol or beyond_rtol

    def _write(self) -> None:
        path = Path(self.exclude_batches_path if self.exclude_batches_path is not None else Path.cwd())
        if path.suffix != ".json":
            path = path / "skip_batches.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else []
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(sorted({*known, *self.bad_batches}), indent=4))
        partial.replace(path)

    def state_dict(self) -> dict[str, Any]:
        """Settings and the losses of the window."""
        return {
            "mode": self.mode,
            "window": self._losses.maxlen,
            "warmup": self.warmup,
            "atol": self.atol,
            "rtol": self.rtol,
            "finite_only": self.finite_only,
            "bad_batches": list(self.bad_batches),
            "losses": list(self._losses),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self.mode = state_dict["mode"]
        self.warmup = state_dict["warmup"]
        self.atol = state_dict["atol"]
        self.rtol = state_dict["rtol"]
        self.finite_only = state_dict["finite_only"]
        self.bad_batches = list(state_dict["bad_batches"])
        self._losses = deque(state_dict["losses"], maxlen=state_dict["window"])
