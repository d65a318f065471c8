"""What a safe load would refuse is refused when it is saved, by name.

``torch.load(weights_only=True)`` reads tensors, plain values and plain containers. Whether it reads anything else is
asked of torch itself, by trial: so this follows torch's version and what ``torch.serialization.add_safe_globals``
allows.
"""

from __future__ import annotations

import copy
import enum
import io
import os
import pickle
import warnings
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from poplin.checkpoint.format import dotted
from poplin.checkpoint.parts import is_sharded_tensor
from poplin.errors import ArgumentValueError, PossibleUserWarning, UnsafeCheckpointError

_PLAIN = frozenset((bool, float, str, type(None)))
#: The widest integer that torch's safe reader understands: 255 bytes of pickle's LONG1, one bit of them the sign.
_MAX_INT_BITS = 255 * 8 - 1


class Plain:
    """Makes plain values of what is to be saved, and collects what can't be.

    Containers come out new, so that what happens to the user's later does not reach them: dicts of any class as
    dicts, lists as lists, tuples as tuples. NumPy scalars become Python numbers. Tensors stay what they are.

    Args:
        sharded: whether sharded tensors are written as they are, each rank its part.
    """

    def __init__(self, sharded: bool = False) -> None:
        self._sharded = sharded
        self._parts: list[str] = []
        self._refused: list[str] = []
        self._empty: list[str] = []
        self._simplified: list[str] = []
        self._inside: set[int] = set()
        self._done: dict[int, tuple[Any, Any]] = {}

    def value(self, value: Any, path: tuple[Any, ...]) -> Any:
        """``value``, which stands at ``path``, in plain form."""
        kind = type(value)
        if kind in _PLAIN or (kind is int and value.bit_length() <= _MAX_INT_BITS):
            return value
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if isinstance(value, (Mapping, list, tuple)):
            return self._container(value, path)
        if kind.__module__ == "numpy" and hasattr(value, "item") and getattr(value, "shape", None) == ():
            number = value.item()
            if type(number) in (bool, int, float, complex, str, bytes):
                return number
        if kind is bytes:
            return value
        if safely_readable(value):
            return copy.deepcopy(value)
        self._refused.append(f"{dotted(path)} ({_described(value)})")
        return value

    def finish(self) -> None:
        """Raise, or warn, about what was found.

        Raises:
            UnsafeCheckpointError: something can't be read safely; every such key is named.
            ArgumentValueError: a tensor is a part only, or on the meta device.
        """
        if self._refused:
            raise UnsafeCheckpointError(
                f"The state holds what a safe load would refuse: {_listed(self._refused)}. Nothing was written. Save "
                "tensors, numbers, strings and dicts, lists or tuples of these, or an object with state_dict() and "
                "load_state_dict(); or allow the class everywhere with torch.serialization.add_safe_globals([...])."
            )
        if self._parts:
            raise ArgumentValueError(
                f"Sharded tensors, of which this rank has a part only: {_listed(self._parts)}. Nothing was written. "
                "Set up the module that they belong to, save a folder (plugins='sharded'), or save their full_tensor()."
            )
        if self._empty:
            raise ArgumentValueError(
                f"On the meta device, so without values that could be saved: {_listed(self._empty)}. Nothing was "
                "written. Materialise the module first (module.to_empty, then initialise or load it)."
            )
        if self._simplified:
            warnings.warn(
                f"A safe load knows plain tuples only, and so does the checkpoint: {_listed(self._simplified)}.",
                PossibleUserWarning,
                stacklevel=2,
            )

    def _tensor(self, tensor: Tensor, path: tuple[Any, ...]) -> Tensor:
        if tensor.device.type == "meta":
            self._empty.append(dotted(path))
        elif is_sharded_tensor(tensor):
            if not self._sharded:
                self._parts.append(dotted(path))
            return tensor.detach()
        elif type(tensor) not in (Tensor, nn.Parameter) or getattr(tensor, "__dict__", None):
            if not safely_readable(tensor):
                self._refused.append(f"{dotted(path)} ({_described(tensor)})")
        elif tensor.grad_fn is not None:
            return tensor.detach()
        return tensor

    def _container(self, value: Any, path: tuple[Any, ...]) -> Any:
        if id(value) in self._inside:
            raise ArgumentValueError(f"The state contains itself, at {dotted(path)!r}. Nothing was written.")
        if id(value) in self._done:
            return self._done[id(value)][1]
        self._inside.add(id(value))
        result: Any
        if isinstance(value, Mapping):
            result = OrderedDict() if isinstance(value, OrderedDict) else Counter() if type(value) is Counter else {}
            for key, item in value.items():
                result[self.key(key, path)] = self.value(item, (*path, key))
            # versions of modules, set by Module.state_dict
            metadata = getattr(value, "_metadata", None) if isinstance(value, OrderedDict) else None
            if metadata is not None:
                result._metadata = self.value(metadata, (*path, "_metadata"))
        elif isinstance(value, list):
            result = [self.value(item, (*path, index)) for index, item in enumerate(value)]
        elif type(value) is torch.Size:
            result = value
        else:
            result = tuple(self.value(item, (*path, index)) for index, item in enumerate(value))
            if type(value) is not tuple:
                self._simplified.append(f"{dotted(path)} ({_described(value)})")
        self._inside.discard(id(value))
        self._done[id(value)] = (value, result)  # the original is kept alive, so that its id stays its own
        return result

    def key(self, key: Any, path: tuple[Any, ...]) -> Any:
        if type(key) in _PLAIN or (type(key) is int and key.bit_length() <= _MAX_INT_BITS):
            return key
        if type(key) in (tuple, bytes) and safely_readable(key):
            return key
        if type(key).__module__ == "numpy" and hasattr(key, "item"):
            return key.item()
        if not safely_readable(key):
            self._refused.append(f"{dotted((*path, key))} (the key is {_described(key)})")
        return key


def safely_readable(value: Any) -> bool:
    """Whether a safe load gives back what is saved of ``value``."""
    buffer = io.BytesIO()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(value, buffer)
            buffer.seek(0)
            torch.load(buffer, map_location="cpu", weights_only=True)
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception:  # not picklable, or refused: pickling runs code of the value's class, which may raise anything
        return False
    return True


def _described(value: Any) -> str:
    kind = type(value)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if isinstance(value, os.PathLike):
        return f"a {name}: save str(path)"
    if isinstance(value, enum.Enum):
        return f"a {name}: save its .value"
    if kind.__module__ == "numpy" and hasattr(value, "tolist"):
        return f"a {name}: save torch.as_tensor(...) of it, or its .tolist()"
    if isinstance(value, int):
        if kind is int:
            return f"an integer of {value.bit_length()} bits: save it as a string"
        return f"a {name}: save int(...) of it"
    if callable(value):
        return f"{name} {getattr(value, '__qualname__', '')}".strip()
    try:
        pickle.dumps(value)
    except Exception:  # as above
        return f"a {name}, which can't even be pickled"
    return f"a {name}"


def _listed(items: list[str]) -> str:
    return "; ".join(items[:10]) + (f"; and {len(items) - 10} more" if len(items) > 10 else "")
