"""Checkpoints of torch_xla's tensors: they come to the host first, and a file is then like any other."""

from __future__ import annotations

import sys
from typing import Any

import torch

from poplin.checkpoint import StoragePath, TorchCheckpointIO
from poplin.utilities import apply_to_tensors
from poplin_tpu import runtime


class XLACheckpointIO(TorchCheckpointIO):
    """Files as ``torch`` writes them, of the same content on every device: load them anywhere."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Bring every tensor to the host, those that are one staying one, and write the file."""
        super().save_checkpoint(to_host(checkpoint), path, storage_options)


def to_host(state: Any) -> Any:
    """``state`` with its tensors on the CPU; all of them are computed in one step of the device.

    Those that are one tensor on the device (tied weights) are one on the CPU.
    """
    if "torch_xla" not in sys.modules:
        return state  # nobody has made a tensor on a device of its
    xla = runtime.xla()
    xla.sync()
    done: dict[tuple[int, torch.Size], torch.Tensor] = {}

    def move(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != runtime.TORCH_XLA:
            return tensor
        key = (xla._XLAC._xla_get_tensor_id(tensor), tensor.shape)
        if key not in done:
            done[key] = tensor.detach().cpu()
        return done[key]

    return apply_to_tensors(state, move)
