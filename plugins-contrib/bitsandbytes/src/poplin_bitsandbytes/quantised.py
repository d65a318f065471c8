"""bitsandbytes' layers, with what they lack: 4-bit state dicts that load, and inputs of any number of dimensions.

Imports bitsandbytes; whoever imports this has called :func:`poplin_bitsandbytes.layers.bitsandbytes` before.
"""

from __future__ import annotations

from typing import Any

import torch
from bitsandbytes.functional import QuantState
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from torch import Tensor

_PACKED = "quant_state.bitsandbytes__"
#: The packed part of a state is a JSON text; its length depends on how numbers are written, and is made one.
_PACKED_BYTES = 1024


class QuantisedLinear4bit(Linear4bit):  # type: ignore[misc]
    """A 4-bit layer whose state dict, in the format that others write too, can be loaded into another one."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for key in [key for key in destination if key.startswith(f"{prefix}weight.{_PACKED}")]:
            packed = destination[key]
            padding = packed.new_full((max(0, _PACKED_BYTES - packed.numel()),), ord(" "))
            destination[key] = torch.cat([packed, padding])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        start = f"{prefix}weight."
        parts = {key[len(start) :]: value for key, value in state_dict.items() if key.startswith(start)}
        if not any(name.startswith(_PACKED) for name in parts):
            super()._load_from_state_dict(state_dict, prefix, *args)
            return
        weight = self.weight
        quant_state = QuantState.from_dict(parts, device=weight.device)
        rest = {key: value for key, value in state_dict.items() if not key.startswith(start)}
        super()._load_from_state_dict(rest, prefix, *args)
        weight.quant_state = quant_state
        weight.blocksize, weight.quant_type = quant_state.blocksize, quant_state.quant_type
        weight.compress_statistics, weight.bnb_quantized = quant_state.nested, True
        self.quant_state = quant_state


class QuantisedLinear8bit(Linear8bitLt):  # type: ignore[misc]
    """An 8-bit layer that takes inputs of any number of dimensions, in training too."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply.

        Args:
            x: of shape ``(..., in_features)``.

        Returns:
            Of shape ``(..., out_features)``.
        """
        output: Tensor = super().forward(x.reshape(-1, x.shape[-1]))
        return output.reshape(*x.shape[:-1], output.shape[-1])
