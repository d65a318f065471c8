"""The interface of a checkpoint IO: how a checkpoint gets to storage and back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from poplin.extension import Extension

if TYPE_CHECKING:
    from poplin.checkpoint.stored import StoredState

#: A local path or an fsspec URL.
StoragePath = str | os.PathLike[str]


class PreparedSave(ABC):
    """A save that has been planned, and can be written while training goes on."""

    @abstractmethod
    def stage(self, buffers: dict[tuple[Any, ...], Any]) -> None:
        """Copy to the CPU what this rank will write. Called by ``Fabric.save_async`` before it returns.

        Args:
            buffers: memory kept from the last time, by keys of this object's own; what it keeps now is put there.
        """

    @abstractmethod
    def write(self) -> None:
        """Write, on every rank at the same time; called by a thread: its collectives are on a group of their own.

        Raises:
            CheckpointError: it could not be written, on any rank; what stood at the path before still stands.
        """

    @abstractmethod
    def abandon(self) -> None:
        """Give it up before it was written, since another rank could not go on."""


class CheckpointIO(Extension, ABC):
    """Writes and reads checkpoints in one format. Knows files and tensors, no strategy and no user object."""

    #: Whether it takes each rank's part of the state (a folder), instead of the whole on rank 0 (a file).
    sharded: ClassVar[bool] = False
    #: Whether it can leave out entries of an object's state, so that a save may have a filter.
    takes_filter: ClassVar[bool] = True

    @abstractmethod
    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Write ``checkpoint`` (state dicts and plain values) to ``path``, whole or not at all.

        Called by ``Strategy.save_checkpoint``: on global rank 0, or on every rank if ``sharded``.

        Raises:
            CheckpointError: it could not be written; what stood at ``path`` before still stands.
        """

    @abstractmethod
    def load_checkpoint(
        self, path: StoragePath, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read what :meth:`save_checkpoint` wrote. Called by ``Strategy.load_checkpoint`` on every rank.

        Args:
            path: where it stands.
            map_location: as in ``torch.load``.
            weights_only: None and True read tensors and plain values only; False may execute what is in the file.

        Raises:
            CheckpointNotFoundError: nothing is there.
            DamagedCheckpointError: it is cut off, corrupted or foreign.
            UnsafeCheckpointError: a safe read is refused.
        """

    def prepare_save(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> PreparedSave | None:
        """Plan a save that is written in the background; a collective. Called by ``Fabric.save_async`` if ``sharded``.

        The default, None, makes ``save_async`` save before it returns: :meth:`save_checkpoint` may use the training's
        process group, where a thread must not.
        """
        return None

    def open_checkpoint(self, path: StoragePath, weights_only: bool | None = None) -> StoredState | None:
        """Open a checkpoint to be read in parts, so that no rank needs the whole. Called by ``Fabric.load``.

        The default, None, leaves it to :meth:`load_checkpoint`.

        Args:
            path: where it stands.
            weights_only: as in :meth:`load_checkpoint`.

        Raises:
            As :meth:`load_checkpoint`.
        """
        return None

    @abstractmethod
    def remove_checkpoint(self, path: StoragePath) -> None:
        """Delete the checkpoint at ``path``. Called by user code that rotates checkpoints."""

    @classmethod
    def recognises(cls, path: StoragePath) -> bool:
        """Whether a checkpoint of this format stands at ``path``.

        Called by the selection of a reader: those with the role ``auto`` are asked. The default says no.
        """
        return False
