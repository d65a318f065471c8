"""The precision ``torchao-float8``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from poplin.errors import ArgumentValueError
from poplin_torchao.layers import TorchaoPrecision

if TYPE_CHECKING:
    from poplin.selection import Selection

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")


class Float8Precision(TorchaoPrecision):
    """Linear layers that multiply in float8, forward and backward; the weights that train are in bfloat16.

    Where the device has no float8 arithmetic it is emulated: the same numbers, slower than no float8 at all. The trace
    says so.

    Args:
        recipe: how values are scaled: ``"tensorwise"``, ``"rowwise"`` or ``"rowwise_with_gw_hp"``; or a
            ``torchao.float8.Float8LinearConfig``.
        ignore_modules: names of modules whose linear layers keep their own arithmetic: ``"lm_head"``.
        dtype: of parameters, inputs and what a forward makes.
        emulate: whether float8 is emulated; None finds out.

    Raises:
        ArgumentValueError: an unknown recipe.
        MissingPackageError: torchao is not installed, or can't be imported.
    """

    precision = "torchao-float8"

    def __init__(
        self,
        recipe: Any = "tensorwise",
        ignore_modules: Iterable[str] | None = None,
        dtype: torch.dtype = torch.bfloat16,
        emulate: bool | None = None,
    ) -> None:
        super().__init__(ignore_modules, dtype)
        if isinstance(recipe, str) and recipe not in RECIPES:
            raise ArgumentValueError(f"recipe={recipe!r}: torchao has {', '.join(RECIPES)}.")
        self.imported("torchao.float8")  # now, and not when the model is set up
        self.recipe = recipe
        self.emulate = emulate

    def bind(self, selection: Selection) -> None:
        """Learn the device type, and whether it has float8."""
        super().bind(selection)
        if self.emulate is None:
            self.emulate = not _has_float8(self.device_type)
            if self.emulate:
                selection.trace.note(
                    "float8", "emulated", f"the device type {self.device_type!r} has no float8 arithmetic here: slow"
                )

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Replace the linear layers in place.

        Raises:
            ArgumentValueError: there is none that can be replaced.
        """
        module = self.prepared(module)
        float8 = self.imported("torchao.float8")
        config = (
            float8.Float8LinearConfig.from_recipe_name(self.recipe) if isinstance(self.recipe, str) else self.recipe
        )
        if self.emulate:
            config = dataclasses.replace(config, emulate=True)
        converted: nn.Module = float8.convert_to_float8_training(
            module, config=config, module_filter_fn=lambda layer, name: self.takes(layer, name)
        )
        return converted


def _has_float8(device_type: str) -> bool:
    """Whether the hardware multiplies in float8: NVIDIA's from compute capability 8.9 on, AMD's MI300 and later."""
    if device_type == "cpu":
        return False
    get = getattr(torch.get_device_module(device_type), "get_device_capability", None)
    return callable(get) and tuple(get()) >= (8, 9)
