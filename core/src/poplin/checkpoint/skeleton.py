"""A state parted into its tensors, by name, and all else: its skeleton, where empty tensors stand for the real ones.

The empty ones are on the meta device: they have shape and dtype and no values. One that stands in several places (tied
weights) is one object there, and stays one through ``torch.save`` and back.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint.format import _is_plain, dotted, map_tensors, walk_tensors
from poplin.checkpoint.parts import is_sharded_tensor, view_key
from poplin.errors import CheckpointError, DamagedCheckpointError

#: Keys of the record that holds the plain values.
_TREE, _NAMES = "tree", "names"


@dataclass
class Skeleton:
    """A state without values of tensors.

    Args:
        tree: with empty tensors.
        names: a name for each empty tensor, by ``id``.
        paths: name → where it stands.
        tensors: name → the real tensor.
        aliases: further names of tensors that stand in several places → the name.
        alias_paths: where these stand.
    """

    tree: Any
    names: dict[int, str]
    paths: dict[str, tuple[Any, ...]]
    tensors: dict[str, Tensor]
    aliases: dict[str, str]
    alias_paths: dict[str, tuple[Any, ...]]

    def to_bytes(self) -> bytes:
        """As it stands in the folder: what ``torch.load(weights_only=True)`` reads."""
        buffer = io.BytesIO()
        torch.save({_TREE: self.tree, _NAMES: [self.names[id(empty)] for empty in empties(self.tree)]}, buffer)
        return buffer.getvalue()

    def add(self, name: str, path: tuple[Any, ...], empty: Tensor) -> None:
        """Put a tensor in that only another rank holds.

        Raises:
            CheckpointError: this state has no place for it.
        """
        node = self.tree
        for key in path[:-1]:
            if isinstance(node, dict):
                node = node.setdefault(key, {})
            elif isinstance(node, list) and isinstance(key, int) and key < len(node):
                node = node[key]
            else:
                break
        if not isinstance(node, dict) or path[-1] in node:
            raise CheckpointError(
                f"{name} is a tensor on another rank than 0, where rank 0 has something else. Every rank passes the "
                "same state."
            )
        node[path[-1]] = empty
        self.names[id(empty)] = name
        self.paths[name] = path


def parted(state: Mapping[str, Any]) -> Skeleton:
    """The skeleton of a state of plain values and tensors. Sparse tensors and the like count as plain values."""
    names: dict[int, str] = {}
    paths: dict[str, tuple[Any, ...]] = {}
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    alias_paths: dict[str, tuple[Any, ...]] = {}
    empty_of: dict[int, Tensor] = {}
    by_view: dict[tuple[Any, ...], str] = {}
    empties_by_name: dict[str, Tensor] = {}
    for path, tensor in walk_tensors(state):
        if not _is_storable(tensor):
            continue
        name = dotted(path)
        if name in paths or name in aliases:  # a key with a dot in it, beside a nested one
            name = repr(path)
        key = view_key(tensor)
        first = by_view.get(key) if key is not None else None
        if first is not None:
            aliases[name], alias_paths[name] = first, path
            empty_of[id(tensor)] = empties_by_name[first]
            continue
        if key is not None:
            by_view[key] = name
        empty = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        empty_of[id(tensor)] = empties_by_name[name] = empty
        names[id(empty)] = name
        paths[name], tensors[name] = path, tensor
    tree = map_tensors(state, lambda tensor: empty_of.get(id(tensor), tensor))
    return Skeleton(tree, names, paths, tensors, aliases, alias_paths)


def read_skeleton(data: bytes, weights_only: bool) -> tuple[Any, dict[int, str]]:
    """Tree, and names by ``id`` of its empty tensors.

    Raises:
        DamagedCheckpointError: the two do not fit; and what ``torch.load`` raises.
    """
    record = torch.load(io.BytesIO(data), map_location="cpu", weights_only=weights_only)
    found = empties(record[_TREE])
    if len(found) != len(record[_NAMES]):
        raise DamagedCheckpointError("the plain values and the list of tensors do not fit together")
    return record[_TREE], {id(empty): name for empty, name in zip(found, record[_NAMES], strict=True)}


def empties(tree: Any) -> list[Tensor]:
    """The empty tensors of a tree, each once, in the order in which they stand in it."""
    found: dict[int, Tensor] = {}
    for _, tensor in walk_tensors(tree):
        if tensor.device.type == "meta":
            found.setdefault(id(tensor), tensor)
    return list(found.values())


def _is_storable(tensor: Tensor) -> bool:
    return is_sharded_tensor(tensor) or _is_plain(tensor)
