"""The interface of a checkpoint IO: how a checkpoint gets to storage and back."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import Any, ClassVar

from poplin.extension import Extension

#: A local path or an fsspec URL.
StoragePath = str | os.PathLike[str]


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

    @abstractmethod
    def remove_checkpoint(self, path: StoragePath) -> None:
        """Delete the checkpoint at ``path``. Called by user code that rotates checkpoints."""

    @classmethod
    def recognises(cls, path: StoragePath) -> bool:
        """Whether a checkpoint of this format stands at ``path``.

        Called by the selection of a reader: those with the role ``auto`` are asked. The default says no.
        """
        return False
