"""The precisions ``transformer-engine`` and ``transformer-engine-float16``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import nn

from poplin.errors import ArgumentTypeError, ArgumentValueError, UsageError
from poplin.precision import DefaultDtype, Precision, cast_floats
from poplin.utilities import import_library, rank_zero_warn

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
_INSTALL = "--no-build-isolation 'transformer-engine[pytorch]'"
#: What float8 needs of a layer's dimensions.
_IN_MULTIPLE, _OUT_MULTIPLE = 16, 8


class TransformerEnginePrecision(Precision):
    """Linear layers and layer norms of Transformer Engine's, forwards in its float8 autocast.

    Args:
        weights_dtype: of the parameters: ``torch.bfloat16`` or ``torch.float16``, or its name.
        recipe: how values are scaled: arguments for ``DelayedScaling``, or a recipe of Transformer Engine's. None takes
            its defaults.
        replace_layers: whether ``nn.Linear`` and ``nn.LayerNorm`` are replaced. None: unless the model has layers of
            Transformer Engine's already.
        fallback_compute_dtype: in which everything else computes; None means ``weights_dtype``.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument that can't be meant.
        MissingPackageError: Transformer Engine is not installed, or can't be imported.
    """

    device_types: ClassVar[tuple[str, ...] | None] = ("cuda",)
    converts_module = True
    converts_data = True
    autocasts = True

    def __init__(
        self,
        weights_dtype: torch.dtype | str = torch.bfloat16,
        recipe: Mapping[str, Any] | Any | None = None,
        replace_layers: bool | None = None,
        fallback_compute_dtype: torch.dtype | None = None,
    ) -> None:
        dtype = _DTYPES.get(weights_dtype) if isinstance(weights_dtype, str) else weights_dtype
        if dtype is None or dtype not in _DTYPES.values():
            raise ArgumentValueError(
                f"weights_dtype={weights_dtype!r}: Transformer Engine's layers are trained in torch.bfloat16 or "
                "torch.float16."
            )
        if recipe is not None and not isinstance(recipe, Mapping) and isinstance(recipe, (str, bool, int, float)):
            raise ArgumentTypeError(
                f"recipe={recipe!r}: give arguments for DelayedScaling in a dictionary, or a recipe of Transformer "
                "Engine's."
            )
        self.precision = "transformer-engine-float16" if dtype is torch.float16 else "transformer-engine"
        library = self._library("transformer_engine.pytorch")
        self.weights_dtype = dtype
        self.recipe = self._recipe(recipe)
        self.replace_layers = replace_layers
        self.fallback_compute_dtype = fallback_compute_dtype or dtype
        self._autocast_name = "autocast" if hasattr(library, "autocast") else "fp8_autocast"

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Replace linear layers and norms, and cast everything.

        Raises:
            UsageError: the module is on the meta device; or is a single layer itself, which can't be replaced in place.
        """
        library = self._library("transformer_engine.pytorch")
        own = tuple(
            getattr(library, name)
            for name in ("Linear", "LayerNorm", "LayerNormLinear", "TransformerLayer")
            if hasattr(library, name)
        )
        has_own = any(isinstance(child, own) for child in module.modules())
        if self.replace_layers and has_own:
            rank_zero_warn(
                "The model has layers of Transformer Engine's already, so none is replaced: replace_layers=True has no "
                "effect."
            )
        elif self.replace_layers in (None, True) and not has_own:
            self._replace(module, library)
        return module.to(dtype=self.weights_dtype)

    def convert_input(self, data: Any) -> Any:
        return cast_floats(data, self.weights_dtype)

    def convert_output(self, data: Any) -> Any:
        return cast_floats(data, torch.get_default_dtype())

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.weights_dtype)

    def module_init_context(self) -> AbstractContextManager[Any]:
        return DefaultDtype(self.weights_dtype)

    def forward_context(self) -> AbstractContextManager[Any]:
        """Autocast for what is not Transformer Engine's, and its own for what is."""
        library = self._library("transformer_engine.pytorch")
        return _Both(
            torch.autocast(self.device_type, dtype=self.fallback_compute_dtype),
            self._fp8_autocast(library),
        )

    def _fp8_autocast(self, library: Any) -> AbstractContextManager[Any]:
        names = ("recipe", "enabled") if self._autocast_name == "autocast" else ("fp8_recipe", "enabled")
        context: AbstractContextManager[Any] = getattr(library, self._autocast_name)(
            **dict(zip(names, (self.recipe, True), strict=True))
        )
        return context

    def _recipe(self, recipe: Any) -> Any:
        if recipe is not None and not isinstance(recipe, Mapping):
            return recipe
        recipes = self._library("transformer_engine.common.recipe")
        arguments = dict(recipe or {})
        if isinstance(arguments.get("fp8_format"), str):
            name = arguments["fp8_format"]
            if not hasattr(recipes.Format, name):
                raise ArgumentValueError(f"fp8_format={name!r}: Transformer Engine has HYBRID and E4M3.")
            arguments["fp8_format"] = getattr(recipes.Format, name)
        return recipes.DelayedScaling(**arguments)

    def _replace(self, module: nn.Module, library: Any) -> None:
        if type(module) in (nn.Linear, nn.LayerNorm):
            raise UsageError(
                "The module is a single layer, which is to be replaced. Put it into a module: nn.Sequential(...)."
            )
        places = [
            (owner, name, child)
            for owner in module.modules()
            for name, child in owner.named_children()
            if type(child) is nn.LayerNorm or (type(child) is nn.Linear and _fits(child))
        ]
        if any(value.is_meta for _, _, child in places for value in child.parameters()):
            raise UsageError("The model is on the meta device, and has no values to hand on. Materialise it first.")
        made: dict[int, nn.Module] = {}
        for owner, name, child in places:
            if id(child) not in made:
                made[id(child)] = _made(child, library, self.weights_dtype)
            setattr(owner, name, made[id(child)])

    def _library(self, module: str) -> Any:
        return import_library(module, f"The precision {self.precision!r}", _INSTALL)


def _fits(layer: nn.Linear) -> bool:
    return layer.in_features % _IN_MULTIPLE == 0 and layer.out_features % _OUT_MULTIPLE == 0


def _made(layer: nn.Module, library: Any, dtype: torch.dtype) -> nn.Module:
    """Transformer Engine's layer with the values, and the very parameters, of torch's."""
    device = next(iter(layer.parameters()), torch.empty(0)).device
    new: nn.Module
    if isinstance(layer, nn.Linear):
        new = library.Linear(
            layer.in_features, layer.out_features, bias=layer.bias is not None, params_dtype=dtype, device=device
        )
    else:
        assert isinstance(layer, nn.LayerNorm)
        if len(layer.normalized_shape) != 1 or not layer.elementwise_affine or layer.bias is None:
            return layer  # Transformer Engine has no such norm
        new = library.LayerNorm(layer.normalized_shape[0], eps=layer.eps, params_dtype=dtype, device=device)
    with torch.no_grad():
        for name, value in layer.named_parameters(recurse=False):
            target = getattr(new, name)
            target.copy_(value)
            target.requires_grad_(value.requires_grad)
    new.train(layer.training)
    return new


class _Both:
    """Two contexts, one in the other; made anew for each forward."""

    def __init__(self, outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> None:
        self._outer, self._inner = outer, inner

    def __enter__(self) -> None:
        self._outer.__enter__()
        try:
            self._inner.__enter__()
        except BaseException:
            self._outer.__exit__(None, None, None)
            raise

    def __exit__(self, *exception: Any) -> None:
        try:
            self._inner.__exit__(*exception)
        finally:
            self._outer.__exit__(*exception)
