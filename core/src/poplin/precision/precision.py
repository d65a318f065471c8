"""The interface of a precision; its default behaviour is ``32-true``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.extension import Extension

if TYPE_CHECKING:
    from poplin.selection import Selection


class Precision(Extension):
    """In which number formats a run computes. This class itself is ``32-true``: it changes nothing.

    The traits say which parts a precision plays. Each is looked at once, when something is set up: what is False
    costs nothing per step, and the methods behind it are not called.
    """

    #: The canonical name.
    precision: str = "32-true"
    #: The device types it can serve; None means all.
    device_types: ClassVar[tuple[str, ...] | None] = None
    #: Trait: :meth:`convert_module` changes the dtype of parameters.
    converts_module: bool = False
    #: Trait: what :meth:`convert_module` leaves has ordinary parameters, so that a strategy may shard them, and gather
    #: them again for each use.
    shardable: bool = False
    #: Trait: :meth:`convert_input` and :meth:`convert_output` change data.
    converts_data: bool = False
    #: Trait: :meth:`backward` scales the loss, and steps may be skipped.
    scales_loss: bool = False
    #: Trait: :meth:`forward_context` is an autocast.
    autocasts: bool = False

    #: torch's device type of the run; set by :meth:`bind`.
    device_type: str = "cpu"

    def bind(self, selection: Selection) -> None:
        """Learn the device type of the run. Called once by the selection."""
        self.device_type = selection.accelerator.device_type

    def convert_module(self, module: nn.Module) -> nn.Module:
        """Change the dtype of parameters, in place, and return the module. Called by setup, if ``converts_module``."""
        return module

    def tensor_init_context(self) -> AbstractContextManager[Any]:
        """Context in which new tensors get the right dtype. Called by ``Fabric.init_tensor``."""
        return nullcontext()

    def module_init_context(self) -> AbstractContextManager[Any]:
        """Context in which new modules get the right dtype. Called by ``Fabric.init_module``."""
        return nullcontext()

    def forward_context(self) -> AbstractContextManager[Any]:
        """Context around each forward. Called per forward, if it is overridden, and by ``Fabric.autocast``."""
        return nullcontext()

    def convert_input(self, data: Any) -> Any:
        """Cast the floating-point tensors in a forward's arguments. Called per forward, if ``converts_data``."""
        return data

    def convert_output(self, data: Any) -> Any:
        """Cast the floating-point tensors in a forward's result back. Called per forward, if ``converts_data``."""
        return data

    def pre_backward(self, tensor: Tensor, module: nn.Module | None) -> Any:
        """Called by ``Strategy.backward`` right before :meth:`backward`."""

    def backward(self, tensor: Tensor, model: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass from ``tensor``. Called by ``Strategy.backward``."""
        tensor.backward(*args, **kwargs)

    def post_backward(self, tensor: Tensor, module: nn.Module | None) -> Any:
        """Called by ``Strategy.backward`` right after :meth:`backward`."""

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Step, and return what the optimizer returned: the closure's loss. Called by ``Strategy.optimizer_step``."""
        return optimizer.step(**kwargs) if closure is None else optimizer.step(closure, **kwargs)

    def main_params(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        """The parameters that ``optimizer`` really steps. Called when gradients are clipped."""
        for group in optimizer.param_groups:
            yield from group["params"]

    def unscale_gradients(self, optimizer: Optimizer) -> None:
        """Undo loss scaling on the gradients, at most once between two steps. Called before gradients are clipped."""

    def step_was_skipped(self, optimizer: Optimizer) -> bool:
        """Whether the last :meth:`optimizer_step` moved nothing because a gradient was not finite.

        Called by ``Strategy.step_was_skipped``.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart (a loss scale). Called by ``Fabric.save``; tensors and plain values only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned. Called by ``Fabric.load``."""
