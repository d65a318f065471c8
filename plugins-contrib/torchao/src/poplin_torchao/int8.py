"""The precision ``torchao-int8``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from poplin_torchao.layers import TorchaoPrecision


class Int8Precision(TorchaoPrecision):
    """Linear layers that multiply in int8 in training; the weights that train are in bfloat16.

    (torchao calls it int8 mixed-precision training, and still counts it among its prototypes.)

    Args:
        ignore_modules: names of modules whose linear layers keep their own arithmetic: ``"lm_head"``.
        dtype: of parameters, inputs and what a forward makes.
        grad_weight: whether the gradients of weights are computed in int8 too, which costs more of the accuracy.

    Raises:
        MissingPackageError: torchao is not installed, or can't be imported.
    """

    precision = "torchao-int8"

    def __init__(
        self,
        ignore_modules: Iterable[str] | None = None,
        dtype: torch.dtype = torch.bfloat16,
        grad_weight: bool = True,
    ) -> None:
        super().__init__(ignore_modules, dtype)
        self._training()  # now, and not when the model is set up
        self.grad_weight = grad_weight

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Replace linear layers in place by ones that multiply in int8.

        Raises:
            ArgumentValueError: there is none that can be replaced.
        """
        module = self.prepared(module)
        training = self._training()
        config = training.Int8MixedPrecisionTrainingConfig(grad_weight=self.grad_weight)
        places = [
            (owner, name, layer)
            for path, owner in module.named_modules()
            for name, layer in owner.named_children()
            if isinstance(layer, nn.Linear) and self.takes(layer, f"{path}.{name}" if path else name)
        ]
        made: dict[int, nn.Module] = {}
        for owner, name, layer in places:
            if id(layer) not in made:
                new = training.Int8MixedPrecisionTrainingLinear(
                    layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta", config=config
                )
                # The very parameters: what is tied stays tied, and state dicts are those of nn.Linear.
                new.weight, new.bias = layer.weight, layer.bias
                made[id(layer)] = new.train(layer.training)
            setattr(owner, name, made[id(layer)])
        return module

    def _training(self) -> Any:
        return self.imported("torchao.prototype.quantized_training")
