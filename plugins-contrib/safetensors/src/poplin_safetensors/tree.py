"""A checkpoint as tensors with names, and a JSON text that says where each belongs."""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from poplin.errors import ArgumentValueError, DamagedCheckpointError

#: Version of the text; a reader accepts its own and earlier ones.
VERSION = 1
_PLAIN = (bool, int, float, str, type(None))


class Tensors:
    """The tensors of a checkpoint by the names that they get in the file.

    A name is the dotted path, ``model.layer.weight``. A tensor that stands in several places (tied weights) is one,
    under the first of its names.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Tensor] = {}
        #: Other names of what is stored under one.
        self.aliases: dict[str, str] = {}
        self._views: dict[tuple[Any, ...], str] = {}

    def add(self, path: tuple[str, ...], tensor: Tensor) -> str:
        """Take a tensor in.

        Returns:
            The name under which it is stored.

        Raises:
            ArgumentValueError: the format can't hold it.
        """
        name = free = ".".join(path)
        number = 1
        while free in self.by_name or free in self.aliases or free == "__metadata__":  # the header's own key
            number += 1
            free = f"{name}#{number}"
        _check(name, tensor)
        view = _view(tensor)
        if view is not None and view in self._views:
            self.aliases[free] = self._views[view]
            return self._views[view]
        if view is not None:
            self._views[view] = free
        self.by_name[free] = tensor
        return free


def encode(checkpoint: Mapping[str, Any]) -> tuple[str, Tensors]:
    """The JSON text for ``checkpoint``, and its tensors.

    Raises:
        ArgumentValueError: a value is neither a tensor nor a plain value; its key is named.
    """
    tensors = Tensors()
    tree = _encode(checkpoint, (), tensors, set())
    return json.dumps({"version": VERSION, "tree": tree}, ensure_ascii=False, separators=(",", ":")), tensors


def _encode(value: Any, path: tuple[str, ...], tensors: Tensors, above: set[int]) -> Any:
    """A value as JSON: plain values are themselves; all else is an object with one key that says what it is."""
    if isinstance(value, Tensor):
        return {"t": tensors.add(path, value)}
    if type(value) in _PLAIN:
        return value if not isinstance(value, float) or math.isfinite(value) else {"f": repr(value)}
    if isinstance(value, (bytes, bytearray)):
        return {"b": value.hex()}
    if isinstance(value, complex):
        return {"c": [repr(value.real), repr(value.imag)]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.Size):
        return {"s": list(value)}
    if id(value) in above:
        raise ArgumentValueError(f"{'.'.join(path)} contains itself, which no file of this format can hold.")
    above = above | {id(value)}
    if type(value) in (dict, OrderedDict):
        items = [
            [_encode(key, (*path, "key"), tensors, above), _encode(item, (*path, str(key)), tensors, above)]
            for key, item in value.items()
        ]
        return {"d" if type(value) is dict else "o": items}
    if type(value) in (list, tuple, set, frozenset):
        tags: dict[type, str] = {list: "l", tuple: "u", set: "e", frozenset: "z"}
        return {
            tags[type(value)]: [_encode(item, (*path, str(index)), tensors, above) for index, item in enumerate(value)]
        }
    raise ArgumentValueError(
        f"{'.'.join(path) or 'the state'} is a {type(value).__module__}.{type(value).__qualname__}, which a "
        "safetensors file can't hold: only tensors, numbers, strings, and dictionaries, lists, tuples and sets of "
        "these. Convert it, leave it out, or save with the checkpoint IO 'torch'."
    )


def decode(text: str, tensors: Mapping[str, Tensor], where: str) -> dict[str, Any]:
    """The checkpoint behind the text.

    Raises:
        DamagedCheckpointError: it makes no sense, or names a tensor that isn't there.
    """
    try:
        content = json.loads(text)
        if content["version"] > VERSION:
            raise ValueError(f"it has the version {content['version']}; upgrade: pip install -U poplin-safetensors")
        found = _decode(content["tree"], tensors)
        if not isinstance(found, dict):
            raise ValueError("it is no dictionary")
        return found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(
            f"{where} is damaged: what it says about its tensors makes no sense ({type(error).__name__}: {error}). "
            "Nothing was loaded."
        ) from error


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a list stands where a value should")
        return value
    ((tag, content),) = value.items()
    if tag == "t":
        return tensors[content]
    if tag in "do":
        pairs = ((_decode(key, tensors), _decode(item, tensors)) for key, item in content)
        return dict(pairs) if tag == "d" else OrderedDict(pairs)
    if tag in "luez":
        items = [_decode(item, tensors) for item in content]
        return {"l": list, "u": tuple, "e": set, "z": frozenset}[tag](items)
    return _plain(tag, content)


def _plain(tag: str, content: Any) -> Any:
    if tag == "f":
        return float(content)
    if tag == "b":
        return bytes.fromhex(content)
    if tag == "c":
        return complex(*(float(part) for part in content))
    if tag == "s":
        return torch.Size(content)
    if tag == "dtype" and isinstance(found := getattr(torch, str(content), None), torch.dtype):
        return found
    raise ValueError(f"a value of the unknown kind {tag!r}")


def _check(name: str, tensor: Tensor) -> None:
    what = None
    if tensor.is_meta:
        what = "is on the meta device and has no values"
    elif tensor.layout is not torch.strided:
        what = f"has the layout {tensor.layout}"
    elif tensor.is_quantized or tensor.is_nested:
        what = "is quantised, or nested"
    elif type(tensor) not in (Tensor, torch.nn.Parameter):
        what = f"is a {type(tensor).__name__}, which may be something else inside"
    if what is not None:
        raise ArgumentValueError(
            f"{name} {what}: a safetensors file holds plain tensors. Convert it, leave it out, or save with the "
            "checkpoint IO 'torch' or 'sharded'."
        )


def _view(tensor: Tensor) -> tuple[Any, ...] | None:
    """What makes two tensors the same values in the same memory; None for one without memory."""
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return None
    flags = (tensor.is_conj(), tensor.is_neg())
    return (storage._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, *flags)


def walk(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of each tensor."""
    for name, tensor in tensors.items():
        yield name, tuple(tensor.shape), tensor.dtype
