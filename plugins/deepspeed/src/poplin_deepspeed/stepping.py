"""Backward, step and clipping, by the engines."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import UsageError
from poplin_deepspeed import engine as gradients
from poplin_deepspeed import setup
from poplin_deepspeed.engines import Engines
from poplin_deepspeed.errors import EngineLimitError
from poplin_deepspeed.precision import DeepSpeedPrecision


class Stepping(Engines):
    """What the strategy does in a step."""

    def backward(self, tensor: Tensor, module: nn.Module | None, *args: Any, **kwargs: Any) -> None:
        """Run the backward pass by the engine; gradients add up until the step.

        Args:
            tensor: a scalar.
            module: the engine.
            *args: none.
            **kwargs: ``retain_graph``.

        Raises:
            EngineLimitError: no scalar, or arguments that the engine doesn't have.
            UsageError: the module was set up without an optimizer.
        """
        handle = setup.handle_of(module)
        if handle is None or not handle.state.trains:
            name = type(self.original_module(module)).__name__ if module is not None else "the module"
            raise UsageError(
                f"{name} was set up without an optimizer, so that DeepSpeed's engine has nothing to train: "
                "model, optimizer = fabric.setup(model, optimizer)."
            )
        if args or set(kwargs) - {"retain_graph"}:
            given = ", ".join(sorted(set(kwargs) - {"retain_graph"})) or f"{len(args)} more argument(s)"
            raise EngineLimitError(f"DeepSpeed's engine takes in backward() nothing but retain_graph, and got {given}.")
        if tensor.numel() != 1 or tensor.grad_fn is None:
            raise EngineLimitError(
                f"DeepSpeed's engine runs backward from a scalar that a forward made, and this tensor has the shape "
                f"{tuple(tensor.shape)}{'' if tensor.grad_fn is not None else ' and no history'}."
            )
        gradients.begin_backward(handle.state)
        try:
            self.run_engine(
                "backward", gradients.backward, handle.state, tensor, bool(kwargs.get("retain_graph", False))
            )
        except BaseException:
            self._abandon(handle)
            raise

    def optimizer_step(self, optimizer: Optimizer, model: nn.Module | None = None, **kwargs: Any) -> Any:
        """Step by the engine.

        Args:
            optimizer: the user's.
            model: its engine.
            kwargs: ``closure``, which is run once.

        Raises:
            EngineLimitError: other arguments.
        """
        handle = setup.handle_of(model)
        if handle is None:
            return super().optimizer_step(optimizer, model, **kwargs)
        closure = kwargs.pop("closure", None)
        if kwargs:
            raise EngineLimitError(f"DeepSpeed's engine takes no {', '.join(kwargs)} in a step.")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self.run_engine("optimizer step", gradients.step, handle.state)
        except BaseException:
            self._abandon(handle)
            raise
        return loss

    def zero_grad(self, optimizer: Optimizer, model: nn.Module | None = None, set_to_none: bool = True) -> None:
        """Forget what backward passes have left in the engine."""
        handle = setup.handle_of(model)
        if handle is None:
            super().zero_grad(optimizer, model, set_to_none)
        elif gradients.has_gradients(handle.state):
            gradients.forget_gradients(handle.state)

    def step_was_skipped(self, optimizer: Optimizer, model: nn.Module | None = None) -> bool:
        """Whether the engine met gradients that are not finite."""
        handle = setup.handle_of(model)
        return handle is not None and not handle.state.engine.was_step_applied()

    def clip_gradients_norm(
        self,
        module: nn.Module | None,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Let the next step clip by the total 2-norm, and return that norm. A collective.

        Raises:
            EngineLimitError: another norm, or a part of the engine's module.
            RuntimeError: the norm is not finite, and no loss is scaled.
        """
        handle = self._handle_for(module, optimizer)
        if handle is None:
            return super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)
        if float(norm_type) != 2.0:
            raise EngineLimitError(
                f"DeepSpeed's engine clips by the 2-norm only, and norm_type={norm_type!r} was asked for."
            )
        return self.run_engine(
            "clipping", gradients.clip, handle.state, float(max_norm), error_if_nonfinite and not self._scales_loss
        )

    def clip_gradients_value(self, module: nn.Module | None, optimizer: Optimizer, clip_val: float) -> None:
        """Not possible.

        Raises:
            EngineLimitError: the gradients are in an engine, which clips by norm only.
        """
        if self._handle_for(module, optimizer) is None:
            super().clip_gradients_value(module, optimizer, clip_val)
            return
        raise EngineLimitError("DeepSpeed's engine can't clip gradients by value. Clip by norm: max_norm=...")

    @property
    def _scales_loss(self) -> bool:
        return isinstance(self.precision, DeepSpeedPrecision) and self.precision.section == "fp16"

    def _handle_for(self, module: nn.Module | None, optimizer: Optimizer) -> setup.Handle | None:
        for handle in self._handles():
            if handle.optimizer is optimizer:
                if module is None or module is handle.state.engine:
                    return handle
                raise EngineLimitError(
                    "DeepSpeed's engine clips the gradients of its whole module: pass the module that was set up "
                    "together with this optimizer."
                )
        return None

    def _abandon(self, failed: setup.Handle) -> None:
        """Let the engine that failed, and those that its backward pass was in, start afresh."""
        for handle in self._handles():
            if handle is failed or (handle.state.trains and gradients.is_in_backward(handle.state)):
                gradients.abandon(handle.state)
