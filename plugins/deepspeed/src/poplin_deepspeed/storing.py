"""State dicts and checkpoints of the engines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from poplin_deepspeed import config as configuration
from poplin_deepspeed import folder, saving, setup
from poplin_deepspeed import state as states
from poplin_deepspeed.capturing import OPTIMIZER, Captured, capture
from poplin_deepspeed.checkpoint import DeepSpeedCheckpointIO, local
from poplin_deepspeed.engines import Engines
from poplin_deepspeed.errors import EngineLimitError
from poplin_deepspeed.names import full_shape

if TYPE_CHECKING:
    from poplin.checkpoint import StoragePath

#: Seconds that rank 0 waits for the others' files where no timeout was given.
_PATIENCE = 1800.0


class Storing(Engines):
    """What the strategy does when it saves and loads."""

    exclude_frozen_parameters: bool
    #: What the engines gave for a save that is under way, by the tag of its folder.
    _captured: dict[str, Captured]

    def parameter_shapes(self, module: nn.Module) -> Mapping[str, tuple[int, ...]]:
        handle = setup.handle_of(module)
        if handle is None:
            return super().parameter_shapes(module)
        return {name: tuple(full_shape(parameter)) for name, parameter in handle.names.parameters.items()}

    def param_groups(self, optimizer: Optimizer | nn.Module) -> list[dict[str, Any]]:
        handle = setup.handle_of(optimizer)
        if handle is None:
            return super().param_groups(optimizer)
        groups = handle.state.zero.optimizer.param_groups
        return [{**group, "params": own} for group, own in zip(groups, handle.state.groups, strict=True)]

    def get_module_state_dict(self, module: nn.Module, sharded: bool = False) -> dict[str, Any]:
        """Full float32 values; on rank 0 only, or each on one rank if ``sharded``.

        For a ZeRO folder, what stands for this rank's files.
        """
        handle = setup.handle_of(module)
        plain = super().get_module_state_dict(module)
        if handle is None:
            return plain
        if sharded and self._writes_natively and handle.state.trains:
            return self._capture(handle).marker()
        keep = self._keep(sharded and not self._writes_natively)
        return states.module_state(handle.state, handle.names, plain, keep)

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        handle = setup.handle_of(module)
        if handle is None:
            super().load_module_state_dict(module, state, strict)
            return
        states.load_weights(handle.state, handle.names, state, strict)
        rest = {name: value for name, value in state.items() if name not in handle.names.parameters}
        super().load_module_state_dict(module, rest, strict=False)

    def get_optimizer_state(
        self, optimizer: Optimizer | nn.Module, names: states.ParameterNames, sharded: bool = False
    ) -> dict[str, Any]:
        """By name, with full values on rank 0 only, or each on one rank if ``sharded``."""
        handle = setup.handle_of(optimizer)
        if handle is None:
            return super().get_optimizer_state(optimizer, names, sharded)
        if sharded and self._writes_natively:
            return {OPTIMIZER: self._name_of(handle)}
        return states.optimizer_state(handle.state, names, self._keep(sharded))

    def load_optimizer_state(
        self, optimizer: Optimizer | nn.Module, state: Mapping[str, Any], names: states.ParameterNames
    ) -> None:
        handle = setup.handle_of(optimizer)
        if handle is None:
            super().load_optimizer_state(optimizer, state, names)
        else:
            states.load_optimizer_state(handle.state, state, names)

    def save_checkpoint(
        self,
        path: StoragePath,
        state: dict[str, Any],
        storage_options: Any | None = None,
        filter: dict[str, Callable[[str, Any], bool]] | None = None,
    ) -> None:
        """Write a ZeRO folder, each rank its part; by another checkpoint IO, what that one writes.

        Raises:
            CheckpointError: it could not be written; what stood at ``path`` before still stands.
            UsageError: an optimizer without its module.
        """
        if not self._writes_natively:
            super().save_checkpoint(path, state, storage_options, filter)
            return
        saving.write(local(path), state, self._captured, self._ranks_of_a_save())

    def prepare_save(self, path: StoragePath, state: dict[str, Any]) -> saving.BackgroundSave:
        """A ZeRO folder to be written in the background. Called by its checkpoint IO."""
        return saving.BackgroundSave(local(path), state, self._captured, self._ranks_of_a_save())

    def _ranks_of_a_save(self) -> saving.Ranks:
        timeout = self.timeout.total_seconds() if self.timeout is not None else _PATIENCE
        return saving.Ranks(self.global_rank, self.world_size, self.store, timeout)

    @property
    def _writes_natively(self) -> bool:
        return isinstance(self.checkpoint_io, DeepSpeedCheckpointIO)

    def _capture(self, handle: setup.Handle) -> Captured:
        if configuration.offloads_to(self.config, "nvme"):
            raise EngineLimitError(
                "The optimizer's states are on NVMe, from where no ZeRO folder is written here: save through another "
                "checkpoint IO (plugins='torch')."
            )
        tag = self.broadcast(folder.new_tag(handle.state.engine.global_steps))
        captured = capture(handle, tag, self._name_of(handle), self.exclude_frozen_parameters)
        self._captured[tag] = captured
        return captured

    def _name_of(self, handle: setup.Handle) -> str:
        """The same on every rank: engines are made in the same order."""
        return str(self._handles().index(handle))

    def _keep(self, sharded: bool) -> states.Keep:
        rank, world = self.global_rank, self.world_size
        return (lambda index: index % world == rank) if sharded else (lambda index: rank == 0)
