"""bitsandbytes' linear layers in the place of torch's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import torch
from torch import nn

from poplin.errors import ArgumentValueError, UsageError
from poplin.utilities import import_library

MODES = ("nf4", "nf4-dq", "fp4", "fp4-dq", "int8", "int8-training")
_NEEDED_BY = "The precisions of poplin-bitsandbytes (nf4, fp4, int8, ...)"


def bitsandbytes() -> Any:
    """Bitsandbytes.

    Raises:
        MissingPackageError: it is not installed, or can't be imported.
    """
    return import_library("bitsandbytes", _NEEDED_BY)


def make_layer(mode: str, dtype: torch.dtype, like: nn.Linear) -> nn.Linear:
    """The layer of ``mode`` with the values of ``like``; it is quantised when it moves to a device.

    Args:
        mode: one of :data:`MODES`.
        dtype: in which it computes.
        like: the layer that it replaces.
    """
    layers = bitsandbytes().nn
    from poplin_bitsandbytes.quantised import QuantisedLinear4bit, QuantisedLinear8bit

    arguments: dict[str, Any] = {"bias": like.bias is not None, "device": "meta"}
    layer: nn.Linear
    if mode.startswith("int8"):
        training = mode == "int8-training"
        threshold = 0.0 if training else 6.0  # inputs beyond it are multiplied in 16 bits: the paper's value
        layer = QuantisedLinear8bit(
            like.in_features, like.out_features, has_fp16_weights=training, threshold=threshold, **arguments
        )
        values = like.weight.data.to(dtype)
        if not training:
            values = values.cpu()  # it quantises on the way from there to the device, and on no other
        weight = layers.Int8Params(values, requires_grad=training, has_fp16_weights=training)
    else:
        kind, _, double = mode.partition("-")
        settings = {"quant_type": kind, "compress_statistics": bool(double)}
        layer = QuantisedLinear4bit(
            like.in_features, like.out_features, compute_dtype=dtype, quant_storage=torch.uint8, **settings, **arguments
        )
        weight = layers.Params4bit(
            like.weight.data.to(dtype), requires_grad=False, quant_storage=torch.uint8, module=layer, **settings
        )
    layer.weight = weight
    if like.bias is not None:
        layer.bias = nn.Parameter(like.bias.data.to(dtype), requires_grad=like.bias.requires_grad)
    layer.train(like.training)
    return layer


def is_quantised(module: nn.Module) -> bool:
    """Whether it is a layer of bitsandbytes'."""
    layers = bitsandbytes().nn
    return isinstance(module, (layers.Linear8bitLt, layers.Linear4bit))


def check_layer(name: str, layer: nn.Module) -> None:
    """See that a layer of bitsandbytes' has a weight of its own.

    Raises:
        ArgumentValueError: somebody gave it an ordinary one after it was made.
    """
    layers = bitsandbytes().nn
    if not isinstance(layer.weight, (layers.Params4bit, layers.Int8Params)):
        raise ArgumentValueError(
            f"The weight of the quantised layer {name!r} was replaced after it was made (tied to another one, say), "
            f"and can't be quantised any more. Leave it as it is: ignore_modules={{{name!r}}}, or make the model "
            "outside of fabric.init_module()."
        )


def linears(module: nn.Module, ignored: frozenset[str]) -> Iterator[tuple[nn.Module, str, str, nn.Linear]]:
    """The linear layers to be replaced: (owner, name in it, full name, layer).

    Args:
        module: the model.
        ignored: names of modules that are left as they are, with all that is in them; a full name, or the last part.
    """
    for path, owner in module.named_modules():
        if _is_ignored(path, ignored):
            continue
        for name, child in owner.named_children():
            full = f"{path}.{name}" if path else name
            if type(child) is nn.Linear and not _is_ignored(full, ignored):
                yield owner, name, full, child


def _is_ignored(path: str, ignored: frozenset[str]) -> bool:
    parts = path.split(".")
    return any(part in ignored for part in parts) or any(
        ".".join(parts[:end]) in ignored for end in range(1, len(parts) + 1)
    )


def replace_linears(module: nn.Module, make: Callable[[nn.Linear], nn.Linear], ignored: frozenset[str]) -> int:
    """Replace the linear layers of ``module`` in place; one that stands in several places stays one.

    Returns:
        How many were replaced.

    Raises:
        ArgumentValueError: the model is a single linear layer itself, which can't be replaced in place.
        UsageError: one is on the meta device, and has no values.
    """
    if type(module) is nn.Linear:
        raise ArgumentValueError(
            "The module is a single nn.Linear, whose layers are to be replaced. Put it into a module: "
            "nn.Sequential(nn.Linear(...))."
        )
    places = list(linears(module, ignored))
    for _, _, full, layer in places:
        if layer.weight.is_meta:
            raise UsageError(
                f"The layer {full!r} is on the meta device and has no values to quantise. Make the model under "
                "fabric.init_module(empty_init=False), or load its weights first."
            )
        _refuse_tied(module, full, layer)
    made: dict[int, nn.Linear] = {}
    for owner, name, _, layer in places:
        if id(layer) not in made:
            made[id(layer)] = make(layer)
        setattr(owner, name, made[id(layer)])
    return len(places)


def _refuse_tied(module: nn.Module, full: str, layer: nn.Linear) -> None:
    """A weight that another module has too would be two after one of them was quantised."""
    for path, other in module.named_modules():
        if other is not layer and layer.weight is not None and other._parameters.get("weight") is layer.weight:
            raise ArgumentValueError(
                f"The weight of {full!r} is tied to that of {path!r}, and would not be after it was quantised. Leave "
                f"it as it is: BitsandbytesPrecision(..., ignore_modules={{{full!r}}})."
            )


class LinearsAsMade:
    """Context in which each ``nn.Linear`` that is put into another module is replaced, and quantised, there and then.

    torch calls a hook when a module is put into another one, and takes what it returns instead.
    """

    def __init__(self, make: Callable[[nn.Linear], nn.Linear]) -> None:
        self._make = make
        self._handle: Any | None = None

    def __enter__(self) -> None:
        hook: Callable[..., Any] = self._registered  # it may return another module, which torch's annotation forgets
        self._handle = nn.modules.module.register_module_module_registration_hook(hook)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._handle is not None
        self._handle.remove()
        self._handle = None

    def _registered(self, owner: nn.Module, name: str, child: nn.Module | None) -> nn.Module | None:
        if type(child) is not nn.Linear or child.weight.is_meta:
            return None
        return self._make(child).to(child.weight.device)
