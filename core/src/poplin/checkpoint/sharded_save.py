"""Saving a folder: rank 0 plans who writes what, every rank writes its part at the same time, rank 0 commits."""

from __future__ import annotations

import contextlib
import math
import pickle
import re
import secrets
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poplin.checkpoint.checkpoint_io import PreparedSave
from poplin.checkpoint.dcp_items import write_item
from poplin.checkpoint.dcp_metadata import dcp_metadata
from poplin.checkpoint.exchange import Ranks
from poplin.checkpoint.folder import Folder
from poplin.checkpoint.folder_manifest import (
    DCP_METADATA,
    FOLDER_MANIFEST,
    WHOLE,
    WRITING,
    Chunk,
    FolderManifest,
    StoredTensor,
    read_folder_manifest,
)
from poplin.checkpoint.parts import Part, on_cpu, part_of
from poplin.checkpoint.skeleton import Skeleton, parted
from poplin.errors import ArgumentTypeError, CheckpointError, CollectiveError, DamagedCheckpointError

_DATA_FILE = re.compile(r"__\d+_\d+(\.[0-9a-f]+)?\.distcp")
_VALUES_FILE = re.compile(r"poplin-values\.[0-9a-f]+\.pt")


@dataclass(frozen=True)
class Offer:
    """A box of a tensor that a rank could write."""

    name: str
    path: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    replicable: bool

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


@dataclass(frozen=True)
class _Result:
    """What a rank wrote: its file, that file's size, and the boxes in it."""

    file: str
    size: int
    chunks: list[tuple[str, Chunk]]


#: What a rank is told to write: (name, offsets).
_Orders = list[tuple[str, tuple[int, ...]]]


class FolderSave(PreparedSave):
    """One save of a folder; making it plans it, and is a collective.

    Args:
        path: where to, for messages.
        find: gives the folder; called while the other ranks hear of what it raises.
        state: this rank's part: plain values and tensors; what other ranks than 0 pass beyond tensors is left out.
        ranks: who writes together.

    Raises:
        CheckpointError: something else stands there, or the parts do not make wholes. Nothing was written.
    """

    def __init__(self, path: str, find: Callable[[], Folder], state: Mapping[str, Any], ranks: Ranks) -> None:
        self._find, self._ranks = find, ranks
        self._doing = f"saving {path}"
        self._skeleton: Skeleton | None = None
        self._parts: dict[str, Part] = {}
        self._made: list[str] = []
        self._before: FolderManifest | None = None
        self._began = self._committed = False
        self._shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        self._aliases: dict[str, str] = {}
        self._save_id = ""
        try:
            self._save_id, orders = ranks.exchange(self._doing, lambda: self._offer(state), self._plan)
        except BaseException:
            self._undo()
            raise
        self._writes: list[tuple[str, tuple[int, ...], Tensor]] = [
            (name, offsets, self._parts[name].local) for name, offsets in orders
        ]
        self._parts = {}

    def stage(self, buffers: dict[tuple[Any, ...], Tensor]) -> None:
        """Copy what this rank is to write, so that later changes don't reach it.

        Args:
            buffers: memory kept from the last time; taken where it fits, else replaced.
        """
        kept = dict(buffers)
        buffers.clear()
        staged = []
        for name, offsets, local in self._writes:
            key = (name, offsets, tuple(local.shape), local.dtype)
            buffer = kept.pop(key, None)
            if buffer is None:
                buffer = torch.empty(local.shape, dtype=local.dtype, device="cpu")
            buffers[key] = buffer
            buffer.copy_(local)
            staged.append((name, offsets, buffer))
        self._writes = staged
        if self._skeleton is not None:
            self._skeleton.tensors.clear()

    def write(self) -> None:
        """Write and commit; a collective over the group of the ranks, so that a thread may call it."""
        try:
            self._ranks.exchange(self._doing, self._write_own, self._commit)
        except CollectiveError:
            # a rank is gone, and what it wrote can't be removed: the manifest goes on saying that this is incomplete
            self._remove_own()
            raise
        except Exception:
            if not self._committed:  # each rank removes its own, and rank 0 then what is empty
                with contextlib.suppress(CheckpointError, CollectiveError):
                    self._ranks.exchange(self._doing, self._remove_own, lambda _: [None] * self._ranks.world_size)
            self._undo()
            raise
        except BaseException:
            self._undo()
            raise
        finally:
            self._writes = []

    def abandon(self) -> None:
        """Leave it: another rank could not go on. Removes what was begun."""
        self._undo()

    # --- planning

    def _offer(self, state: Mapping[str, Any]) -> tuple[list[Offer], dict[str, str]]:
        self._folder = self._find()
        if not isinstance(state, dict):
            raise ArgumentTypeError(f"A checkpoint is a dictionary, and this is a {type(state).__name__}.")
        skeleton = parted(state)
        offers = []
        for name, tensor in skeleton.tensors.items():
            part = part_of(tensor)
            if part is None:
                continue
            if not part.local.numel() and math.prod(part.shape) != 0:
                continue  # none of its values is on this rank
            self._parts[name] = part
            path = skeleton.paths[name]
            offers.append(Offer(name, path, part.shape, part.local.dtype, part.offsets, part.sizes, part.replicable))
        if self._ranks.rank == 0:
            self._skeleton = skeleton
        return offers, skeleton.aliases

    def _plan(self, offered: list[tuple[list[Offer], dict[str, str]]]) -> list[tuple[str, _Orders]]:
        """Called on rank 0."""
        assert self._skeleton is not None
        self._aliases = dict(self._skeleton.aliases)
        boxes: dict[str, dict[tuple[int, ...], list[tuple[int, Offer]]]] = {}
        for rank, (offers, _) in enumerate(offered):
            for offer in offers:
                if offer.name in self._aliases:  # a rank without values of it can't tell that it is tied
                    continue
                boxes.setdefault(offer.name, {}).setdefault(offer.offsets, []).append((rank, offer))
        load = [0] * len(offered)
        orders: list[_Orders] = [[] for _ in offered]
        for name, by_offsets in boxes.items():
            first = next(iter(by_offsets.values()))[0][1]
            self._check(name, first, by_offsets)
            self._shapes[name] = (first.shape, first.dtype)
            for offsets, candidates in by_offsets.items():
                rank, offer = candidates[0]
                if offer.replicable:
                    rank, offer = min(candidates, key=lambda candidate: load[candidate[0]])
                load[rank] += offer.nbytes
                orders[rank].append((name, offsets))
            if name not in self._skeleton.paths:
                empty = torch.empty(first.shape, dtype=first.dtype, device="meta")
                self._skeleton.add(name, first.path, empty)
        missing = [name for name in self._skeleton.paths if name not in boxes]
        if missing:
            raise CheckpointError(f"No rank holds the values of {', '.join(missing[:5])}. Nothing was written.")
        save_id = secrets.token_hex(4)
        self._begin(save_id)
        return [(save_id, order) for order in orders]

    def _check(self, name: str, first: Offer, boxes: Mapping[tuple[int, ...], list[tuple[int, Offer]]]) -> None:
        if not first.replicable and len(boxes) == 1:
            return  # whole tensors: those of the first rank that has one count
        offers = [offer for candidates in boxes.values() for _, offer in candidates]
        same = all((o.shape, o.dtype, o.replicable) == (first.shape, first.dtype, first.replicable) for o in offers)
        volume = sum(math.prod(candidates[0][1].sizes) for candidates in boxes.values())
        if not same or volume != math.prod(first.shape):
            raise CheckpointError(
                f"The parts of {name} on the ranks do not make a whole: its shape is {first.shape}, and the parts have "
                f"{sorted({(o.offsets, o.sizes) for o in offers})[:6]} (first index, extent). Nothing was written."
            )

    def _begin(self, save_id: str) -> None:
        """Make the folder, and say in it that a save has begun, unless a whole checkpoint stands there."""
        folder = self._folder
        if folder.is_file():
            raise CheckpointError(
                f"{folder.text} is a file, and the checkpoint is to be a folder. Give another name, or move the file "
                "away. Nothing was written."
            )
        self._save_id = save_id
        there = folder.sizes()
        if FOLDER_MANIFEST in there:
            with contextlib.suppress(DamagedCheckpointError):  # what is broken may be replaced
                self._before = read_folder_manifest(folder)
        elif DCP_METADATA not in there and there:
            raise CheckpointError(
                f"{folder.text} is a folder in which other things stand ({', '.join(sorted(there)[:3])}), and no "
                "checkpoint. Give the name of a new folder. Nothing was written."
            )
        self._made = folder.make()
        self._began = True
        replaces = self._before is not None and self._before.state == WHOLE
        if not replaces and not (DCP_METADATA in there and FOLDER_MANIFEST not in there):
            begun = FolderManifest(WRITING, save_id, self._ranks.world_size)
            folder.put(FOLDER_MANIFEST, begun.to_json(), durable=False)  # lost, the folder is no checkpoint either

    # --- writing

    @property
    def _own_file(self) -> str:
        return f"__{self._ranks.rank}_0.{self._save_id}.distcp"

    def _write_own(self) -> _Result | None:
        if not self._writes:
            return None
        name, position = self._own_file, 0
        chunks = []
        with self._folder.create(name) as file:
            for tensor_name, offsets, local in self._writes:
                values = on_cpu(local)
                written = write_item(file, position, values)
                position += written.length
                chunks.append((tensor_name, Chunk(name, *written, offsets, tuple(values.shape))))
        return _Result(name, position, chunks)

    # --- commit, on rank 0

    def _commit(self, results: list[_Result | None]) -> list[None]:
        assert self._skeleton is not None
        folder = self._folder
        found = folder.sizes()
        tensors: dict[str, list[Chunk]] = {}
        for rank, result in enumerate(results):
            if result is None:
                continue
            if found.get(result.file) != result.size:
                raise CheckpointError(
                    f"What rank {rank} wrote, {result.file}, is not where rank 0 looks for it ({folder.text}): "
                    f"{found.get(result.file, 'no')} of {result.size} bytes are there. A folder is written by all "
                    "ranks: it must be on storage that all of them share."
                )
            for name, chunk in result.chunks:
                tensors.setdefault(name, []).append(chunk)
        values = self._skeleton.to_bytes()
        values_file = f"poplin-values.{self._save_id}.pt"
        folder.put(values_file, values)
        manifest = FolderManifest(
            WHOLE,
            self._save_id,
            self._ranks.world_size,
            tensors={name: StoredTensor(*self._shapes[name], tuple(chunks)) for name, chunks in tensors.items()},
            aliases=self._aliases,
            values=(values_file, len(values), zlib.crc32(values)),
            files={result.file: result.size for result in results if result is not None},
        )
        paths = {**self._skeleton.paths, **self._skeleton.alias_paths}
        folder.put(DCP_METADATA, pickle.dumps(dcp_metadata(manifest, paths)))
        folder.put(FOLDER_MANIFEST, manifest.to_json())
        self._committed = True
        self._tidy(manifest, set(found))
        return [None] * self._ranks.world_size

    def _tidy(self, manifest: FolderManifest, found: set[str]) -> None:
        """Remove what earlier saves left: nothing refers to it any more."""
        assert manifest.values is not None
        for name in found - set(manifest.files) - {manifest.values[0]}:
            if _DATA_FILE.fullmatch(name) or _VALUES_FILE.fullmatch(name):
                with contextlib.suppress(Exception):  # the checkpoint is whole; the next save tries again
                    self._folder.remove(name)

    def _remove_own(self) -> None:
        if self._committed:
            return
        with contextlib.suppress(Exception):  # what went wrong before counts
            self._folder.remove(self._own_file)

    def _undo(self) -> None:
        """Remove what this save has made."""
        if self._committed or not self._save_id:
            return
        self._remove_own()
        if not self._began:
            return
        self._began = False
        with contextlib.suppress(Exception):
            self._folder.remove(f"poplin-values.{self._save_id}.pt")
        with contextlib.suppress(Exception):
            current = read_folder_manifest(self._folder)
            if current is not None and (current.state, current.save_id) == (WRITING, self._save_id):
                if self._before is not None:  # an earlier save was cut off here: it still says so
                    self._folder.put(FOLDER_MANIFEST, self._before.to_json())
                else:
                    self._folder.remove(FOLDER_MANIFEST)
        with contextlib.suppress(Exception):
            self._folder.unmake(self._made)
