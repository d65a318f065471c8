"""The checkpoint IO ``sharded``: a folder that all ranks write and read at the same time, each its own part.

The data files are those of torch.distributed.checkpoint, which reads the tensors of such a folder by their names; what
DCP itself wrote is read, too. See :mod:`poplin.checkpoint.folder_manifest` for what stands where.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import torch.distributed as dist

from poplin.checkpoint.checkpoint_io import CheckpointIO, PreparedSave, StoragePath
from poplin.checkpoint.exchange import Ranks
from poplin.checkpoint.folder import Folder, folder_at
from poplin.checkpoint.format import map_tensors
from poplin.checkpoint.stored import StoredState
from poplin.errors import CheckpointError, PoplinError

if TYPE_CHECKING:
    from poplin.selection import Selection
    from poplin.strategies.strategy import Strategy


class ShardedCheckpointIO(CheckpointIO):
    """Writes and reads folders, locally or through fsspec, object stores included."""

    sharded: ClassVar[bool] = True

    def __init__(self) -> None:
        self._strategy: Strategy | None = None
        self._ranks: Ranks | None = None

    def bind(self, selection: Selection) -> None:
        """Learn which strategy's ranks write together."""
        self._strategy = selection.strategy

    def teardown(self) -> None:
        """Give the process group of the saves back."""
        ranks, self._ranks = self._ranks, None
        if ranks is not None:
            ranks.close()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Write a folder; a collective: every rank writes its part.

        Until the manifest says that the new one is whole, a whole checkpoint that stood at ``path`` before still
        stands there, and a new folder can't be loaded.

        Args:
            checkpoint: state dicts and plain values, of which rank 0's count; DTensors, and whole tensors that only
                some rank holds, are taken from wherever they are. Tensors that are one in memory are written once.
            path: a local path or an fsspec URL, on storage that all ranks share.
            storage_options: a dictionary of arguments for the fsspec file system.

        Raises:
            CheckpointError: it could not be written, on this rank or on another; nothing is left behind.
        """
        self.prepare_save(checkpoint, path, storage_options).write()

    def prepare_save(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> PreparedSave:
        """Plan a save; a collective. Its ``write()`` may be called by a thread."""
        from poplin.checkpoint.sharded_save import FolderSave

        def find() -> Folder:
            return folder_at(path, storage_options)

        with _errors_named(str(path)):
            return _Named(FolderSave(str(path), find, checkpoint, self._writers()), str(path))

    def load_checkpoint(
        self, path: StoragePath, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read all of a folder, whole on this rank. :meth:`open_checkpoint` reads it in parts.

        Raises:
            As :meth:`open_checkpoint`.
        """
        stored = self.open_checkpoint(path, weights_only)
        whole: dict[str, Any] = stored.complete(stored.tree)
        if map_location is not None:
            whole = map_tensors(whole, lambda tensor: tensor.to(map_location))
        return whole

    def open_checkpoint(self, path: StoragePath, weights_only: bool | None = None) -> StoredState:
        """Check a folder, and open it to be read in parts.

        Raises:
            CheckpointNotFoundError: nothing is there.
            DamagedCheckpointError: it is incomplete, cut off or corrupted.
            UnsafeCheckpointError: it needs ``weights_only=False``, and that was not given.
            CheckpointError: it is a file, or a later version's.
        """
        from poplin.checkpoint.folder_state import open_folder

        return open_folder(folder_at(path), weights_only is None or bool(weights_only))

    def remove_checkpoint(self, path: StoragePath) -> None:
        """Delete the folder at ``path``, the manifest first; that none is there is fine. Called on one rank.

        Raises:
            CheckpointError: it is no checkpoint, or can't be deleted.
        """
        from poplin.checkpoint.removal import remove_folder

        remove_folder(folder_at(path))

    @classmethod
    def recognises(cls, path: StoragePath) -> bool:
        """Whether a folder stands at ``path`` that Poplin or DCP wrote, whole or not."""
        from poplin.checkpoint.folder_state import is_checkpoint_folder

        try:
            folder = folder_at(path)
            return folder.is_folder() and is_checkpoint_folder(folder)
        except Exception:  # asked about anything; the reader that is chosen reports what is wrong
            return False

    def _writers(self) -> Ranks:
        """Who writes together; their process group is made once, by a collective."""
        if self._ranks is None or not self._ranks.is_alive:
            if self._strategy is not None:
                world_size = self._strategy.world_size
            else:
                world_size = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
            self._ranks = Ranks(world_size)
        return self._ranks


@contextlib.contextmanager
def _errors_named(path: str) -> Iterator[None]:
    try:
        yield
    except PoplinError:
        raise
    except Exception as error:  # the system and each fsspec file system have errors of their own
        told = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"The checkpoint could not be written to {path}: {told}. What stood there before, if any, still stands."
        ) from error


class _Named(PreparedSave):
    """A save whose errors are all ours, with the path in them."""

    def __init__(self, save: PreparedSave, path: str) -> None:
        self._save, self._path = save, path

    def stage(self, buffers: dict[tuple[Any, ...], Any]) -> None:
        self._save.stage(buffers)

    def write(self) -> None:
        with _errors_named(self._path):
            self._save.write()

    def abandon(self) -> None:
        self._save.abandon()
