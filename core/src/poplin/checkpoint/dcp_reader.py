"""A storage reader for torch's own ``dcp.load`` that executes nothing.

``torch.distributed.checkpoint`` unpickles what it reads without a guard. Given this reader it gets only what went
through ours: ``dcp.load(state, storage_reader=SafeStorageReader(path))``.
"""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from poplin.checkpoint.checkpoint_io import StoragePath
from poplin.checkpoint.dcp_metadata import read_dcp_metadata, stored_tensors
from poplin.checkpoint.folder import Folder, folder_at
from poplin.checkpoint.folder_manifest import FOLDER_MANIFEST, WHOLE, StoredTensor, read_folder_manifest
from poplin.checkpoint.folder_reader import errors_named, load_errors_named, read_boxes
from poplin.checkpoint.stored import Request
from poplin.errors import CheckpointNotFoundError, DamagedCheckpointError


class SafeStorageReader(StorageReader):
    """Reads a folder for ``torch.distributed.checkpoint.load``, locally or through fsspec.

    Args:
        path: of the folder.
    """

    def __init__(self, path: StoragePath) -> None:
        super().__init__()
        self.reset(path)

    def reset(self, checkpoint_id: StoragePath | None = None) -> None:
        """Read another folder, if one is given."""
        if checkpoint_id is not None:
            self._folder: Folder = folder_at(checkpoint_id)
        self._metadata: Metadata | None = None
        self._tensors: dict[str, StoredTensor] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The metadata of the folder.

        Raises:
            CheckpointNotFoundError: there is none; DamagedCheckpointError: it is broken, or the folder incomplete.
            UnsafeCheckpointError: it has classes in it that don't belong there.
        """
        sizes = self._folder.sizes()
        manifest = read_folder_manifest(self._folder) if FOLDER_MANIFEST in sizes else None
        if manifest is not None and manifest.state != WHOLE:
            raise DamagedCheckpointError(f"{self._folder.text} is incomplete: a save into it has begun and not ended.")
        try:
            return read_dcp_metadata(self._folder)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(f"There is no sharded checkpoint at {self._folder.text}.") from error

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Called by ``dcp.load`` with what :meth:`read_metadata` returned."""
        self._metadata = metadata
        self._tensors = stored_tensors(metadata, self._folder.text)

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to add."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to add."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what the plan asks for.

        Raises:
            UnsafeCheckpointError: a value is an object that a safe load refuses.
            DamagedCheckpointError: values are not those that were written.
        """
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._checked_bytes(item))
            else:
                self._read_tensor(item, planner)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _checked_bytes(self, item: ReadItem) -> io.BytesIO:
        """The bytes of an item, once it is certain that a safe load reads them: the planner loads them without care."""
        assert self._metadata is not None
        info = self._metadata.storage_data[item.storage_index]
        with errors_named(self._folder, info.relative_path), self._folder.open(info.relative_path) as file:
            file.seek(info.offset)
            data = io.BytesIO(file.read(info.length))
        with load_errors_named(f"{self._folder.text}: {item.storage_index.fqn}"):
            torch.load(data, map_location="cpu", weights_only=True)
        data.seek(0)
        return data

    def _read_tensor(self, item: ReadItem, planner: LoadPlanner) -> None:
        chunk = next(
            chunk
            for chunk in self._tensors[item.storage_index.fqn].chunks
            if item.storage_index.offset is None or chunk.offsets == tuple(item.storage_index.offset)
        )
        target: Tensor = planner.resolve_tensor(item).detach()
        stored = self._tensors[item.storage_index.fqn]
        into = torch.empty(tuple(item.lengths), dtype=stored.dtype)
        offsets = tuple(start + first for start, first in zip(chunk.offsets, item.storage_offsets, strict=True))
        read_boxes(self._folder, self._tensors, [Request(item.storage_index.fqn, offsets, into)])
        target.copy_(into)
        planner.commit_tensor(item, target)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: StoragePath) -> bool:
        """Whether this could be the path of a folder: anything could."""
        return True
