"""What an engine would write, caught before it reaches a file: it can be written whole or not at all, and later.

Gathering it is a collective; writing it is each rank's own business.
"""

from __future__ import annotations

import copy
import os
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poplin_deepspeed.names import Names
from poplin_deepspeed.setup import Handle, checkpointing_module

#: Keys of the state that stands for a module, or for an optimizer, until it is written.
TOKEN = "poplin-deepspeed files"
ENGINE = "poplin-deepspeed engine"
TENSORS = "poplin-deepspeed tensors"
OPTIMIZER = "poplin-deepspeed optimizer"


@dataclass
class Captured:
    """What one rank is to write of one engine.

    Attributes:
        tag: of the folder that the files will stand in, the same on every rank; no other capture has it.
        engine: says which engine it is of, in the state.
        files: name → content, with :class:`Slot` for tensors.
        tensors: as they are now, in the order of the slots.
        groups: the names in each of the optimizer's groups.
    """

    tag: str
    engine: str
    files: dict[str, Any]
    tensors: list[Tensor]
    groups: list[list[str]] = field(default_factory=list)

    def marker(self) -> dict[str, Any]:
        """What stands for the module in the state."""
        return {TOKEN: self.tag, ENGINE: self.engine, TENSORS: self.tensors}

    def content(self, name: str, tensors: list[Tensor]) -> Any:
        """The content of a file, with ``tensors`` in the slots."""
        return _walk(self.files[name], lambda value: tensors[value.index] if isinstance(value, Slot) else value)


class Slot:
    """Stands for a tensor."""

    def __init__(self, index: int) -> None:
        self.index = index


def capture(handle: Handle, tag: str, engine_name: str, exclude_frozen_parameters: bool) -> Captured:
    """Gather what this rank would write; a collective.

    Args:
        handle: of the engine.
        tag: of the folder, the same on every rank.
        engine_name: for the result.
        exclude_frozen_parameters: whether what isn't trained is left out.
    """
    engine = handle.state.engine
    catcher = _catcher()
    before, engine.checkpoint_engine = engine.checkpoint_engine, catcher
    try:
        with tempfile.TemporaryDirectory(prefix="poplin-deepspeed-") as folder:  # it copies a script there
            os.makedirs(os.path.join(folder, tag), exist_ok=True)
            engine.save_checkpoint(
                folder, tag=tag, save_latest=False, exclude_frozen_parameters=exclude_frozen_parameters
            )
    finally:
        engine.checkpoint_engine = before
    tensors: list[Tensor] = []
    files = {name: _with_slots(_renamed(content, handle.names), tensors) for name, content in catcher.files.items()}
    groups = [[handle.names.first[parameter] for parameter in group] for group in handle.state.groups]
    return Captured(tag, engine_name, files, tensors, groups)


def _catcher() -> Any:
    base = checkpointing_module().TorchCheckpointEngine

    class Catcher(base):  # type: ignore[misc, valid-type]
        """Takes the place of the part of DeepSpeed that writes files."""

        def __init__(self) -> None:
            super().__init__()
            self.files: dict[str, Any] = {}

        def save(self, state_dict: Any, path: str) -> None:
            self.files[Path(path).name] = state_dict

    return Catcher()


def _with_slots(content: Any, tensors: list[Tensor]) -> Any:
    def replace(value: Any) -> Any:
        if isinstance(value, Tensor):
            tensors.append(value.detach())
            return Slot(len(tensors) - 1)
        return copy.deepcopy(value)

    return _walk(content, replace)


def _walk(value: Any, function: Callable[[Any], Any]) -> Any:
    """Nested dicts, lists and tuples with ``function`` applied to whatever else is in them; containers are new."""
    if isinstance(value, Mapping):
        made: Any = OrderedDict() if isinstance(value, OrderedDict) else {}
        for key, item in value.items():
            made[key] = _walk(item, function)
        return made
    if isinstance(value, torch.Size):
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(_walk(item, function) for item in value)
    return function(value)


# --- names: the engine has a dispatcher around the user's module, which is nobody's business


def _renamed(content: Any, names: Names) -> Any:
    """A file's content with the user's names for parameters and buffers."""
    if not isinstance(content, dict):
        return content
    renamed = dict(content)
    for key in ("module", "frozen_param_shapes", "frozen_param_fragments"):
        if isinstance(renamed.get(key), Mapping):
            renamed[key] = _keys(renamed[key], names)
    if isinstance(renamed.get("param_shapes"), list):
        renamed["param_shapes"] = [_keys(shapes, names) for shapes in renamed["param_shapes"]]
    if isinstance(renamed.get("buffer_names"), list):
        renamed["buffer_names"] = [names.user_name(name) for name in renamed["buffer_names"]]
    if isinstance(renamed.get("shared_params"), Mapping):
        shared = renamed["shared_params"]
        renamed["shared_params"] = {names.user_name(name): names.user_name(first) for name, first in shared.items()}
    inner = renamed.get("optimizer_state_dict")
    if isinstance(inner, dict) and isinstance(inner.get("param_slice_mappings"), list):
        mappings = [_keys(mapping, names) for mapping in inner["param_slice_mappings"]]
        renamed["optimizer_state_dict"] = {**inner, "param_slice_mappings": mappings}
    return renamed


def _keys(mapping: Mapping[str, Any], names: Names) -> OrderedDict[str, Any]:
    return OrderedDict((names.user_name(name), value) for name, value in mapping.items())
