"""The checkpoint IO: native ZeRO folders, written by the strategy's engines and read by any strategy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from poplin.checkpoint import CheckpointIO, PreparedSave, StoragePath
from poplin.errors import ArgumentValueError, CheckpointError, CheckpointNotFoundError, DamagedCheckpointError
from poplin_deepspeed import folder, reading
from poplin_deepspeed.errors import EngineLimitError

if TYPE_CHECKING:
    from poplin.selection import Selection


class DeepSpeedCheckpointIO(CheckpointIO):
    """ZeRO folders: each process writes what it holds of an engine, as DeepSpeed's ``save_checkpoint`` does.

    Any strategy reads them, DeepSpeed needn't be installed for it, and what is in them is not executed. Weights come
    back whole, in the float32 that the optimizer stepped; the optimizer's state comes back by parameter name.
    """

    #: Prepares saves in the background, if the run's strategy has engines.
    _strategy: Any = None
    sharded: ClassVar[bool] = True
    takes_filter: ClassVar[bool] = False

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> None:
        """Only DeepSpeed's engines can write these folders; their strategy does it itself.

        Raises:
            EngineLimitError: always.
        """
        raise EngineLimitError(
            "The checkpoint IO 'deepspeed' writes what DeepSpeed's engines hold, and this run has none. Leave it out, "
            "or use a strategy of the DeepSpeed family. (Reading needs no choice: such a folder is recognised.)"
        )

    def bind(self, selection: Selection) -> None:
        """Learn the strategy of the run."""
        self._strategy = selection.strategy

    def prepare_save(
        self, checkpoint: dict[str, Any], path: StoragePath, storage_options: Any | None = None
    ) -> PreparedSave | None:
        """Plan a save in the background: what the engines hold is copied, and each rank writes its own later."""
        prepare = getattr(self._strategy, "prepare_save", None)
        if prepare is None:
            return None
        prepared: PreparedSave = prepare(path, checkpoint)
        return prepared

    def load_checkpoint(
        self, path: StoragePath, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Read a folder, after every byte of it was compared with its manifest.

        Of a folder that DeepSpeed or Lightning wrote, the weights are called ``model`` and the optimizer's state
        ``optimizer``, beside what was saved as client state.

        Args:
            path: a local one.
            map_location: everything stays on the CPU; strategies move it.
            weights_only: None and True read tensors and plain values only.

        Raises:
            CheckpointNotFoundError: nothing is there.
            DamagedCheckpointError: it is cut off or corrupt.
            UnsafeCheckpointError: a safe read is refused.
        """
        where = local(path)
        if not where.exists():
            raise CheckpointNotFoundError(f"There is no checkpoint at {where}.")
        if not where.is_dir():
            raise DamagedCheckpointError(f"{where} is a file, and DeepSpeed's checkpoints are folders.")
        manifest = folder.read_manifest(where)
        folder.verify(where, manifest)
        safe = weights_only is None or bool(weights_only)
        with reading.as_checkpoint_error(where):
            return _content(where, manifest, safe)

    def remove_checkpoint(self, path: StoragePath) -> None:
        """Delete the folder at ``path``; that nothing is there is fine.

        Raises:
            CheckpointError: it is no checkpoint of DeepSpeed's, or can't be deleted.
        """
        where = local(path)
        if not where.exists():
            return
        if not folder.is_checkpoint(where):
            raise CheckpointError(f"{where} is no checkpoint of DeepSpeed's, and is left alone.")
        try:
            shutil.rmtree(where)
        except OSError as error:
            raise CheckpointError(f"{where} could not be removed: {error}.") from error

    @classmethod
    def recognises(cls, path: StoragePath) -> bool:
        """Whether a folder of DeepSpeed's stands at ``path``, written by Poplin, by Lightning or by DeepSpeed alone."""
        try:
            return folder.is_checkpoint(local(path))
        except (ArgumentValueError, OSError, TypeError):
            return False


def local(path: StoragePath) -> Path:
    """``path``, which must be a local one.

    Raises:
        ArgumentValueError: it is a URL.
    """
    text = os.fspath(path)
    if "://" in text and not text.startswith("file://"):
        raise ArgumentValueError(
            f"DeepSpeed's checkpoints are folders on a file system, and {text} is a URL. Save there through another "
            "checkpoint IO (plugins='torch'), or copy a folder."
        )
    return Path(text.removeprefix("file://"))


def _content(where: Path, manifest: folder.Manifest, safe: bool) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if manifest.client is not None:
        result = dict(reading.load_file(where / manifest.client, safe))
    for engine in manifest.engines:
        files = reading.read(where / engine.folder, safe)
        if engine.groups is None:
            result = {**_client_state(files.model), **result}
        put(result, engine.module, reading.module_state(files))
        if engine.optimizer is not None:
            put(result, engine.optimizer, reading.optimizer_state(files, engine.groups))
    return result


#: What DeepSpeed itself puts into a file of weights.
_OWN_KEYS = frozenset(
    "module buffer_names optimizer param_shapes frozen_param_shapes shared_params frozen_param_fragments lr_scheduler "
    "data_sampler random_ltd skipped_steps global_steps global_samples dp_world_size mp_world_size ds_config "
    "ds_version sparse_tensor_module_names num_experts autoep_layers checkpoint_parallel_dimensions "
    "universal_checkpoint_info".split()
)


def _client_state(model: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in model.items() if key not in _OWN_KEYS}


def put(tree: Any, path: tuple[str | int, ...], value: Any) -> None:
    """Put ``value`` at ``path`` in nested containers, where something stands for it."""
    for key in path[:-1]:
        tree = tree.setdefault(key, {}) if isinstance(tree, dict) else tree[key]
    tree[path[-1]] = value
