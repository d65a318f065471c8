"""torch_xla's ``XlaFullyShardedDataParallel``: each process keeps a shard of every parameter."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import ArgumentValueError, CheckpointMismatchError, NonFiniteGradientsError, UsageError
from poplin.wrappers import MethodDispatch
from poplin_tpu import collectives, runtime
from poplin_tpu.shards import Shards
from poplin_tpu.strategy import XLAStrategy

if TYPE_CHECKING:
    from poplin.precision import Precision

#: Makes a module class or a list of them a policy.
Policy = Callable[..., Any] | Sequence[type[nn.Module]]


class XLAFSDPStrategy(XLAStrategy):
    """Fully sharded data parallelism of torch_xla.

    The engine takes the parameters out of the user's module, so module and optimizer are set up together:
    ``model, optimizer = fabric.setup(model, optimizer)``.

    Args:
        auto_wrap_policy: torch_xla's policy, or the classes of submodules that are sharded one by one.
        activation_checkpointing_policy: the classes of submodules whose activations are computed again.
        state_dict_type: ``"full"``; torch_xla's sharded files are for torch_xla alone, and are refused.
        fsdp_kwargs: torch_xla's own arguments.

    Raises:
        ArgumentValueError: another ``state_dict_type``, or an argument under which parameters lose their names.
    """

    requires_joint_setup = True
    owns_parameters = True
    mutates_module = True
    picklable = False
    needs_forward = True

    def __init__(
        self,
        *,
        auto_wrap_policy: Policy | None = None,
        activation_checkpointing_policy: Sequence[type[nn.Module]] = (),
        state_dict_type: str = "full",
        accelerator: Any = None,
        parallel_devices: Any = None,
        cluster_environment: Any = None,
        checkpoint_io: Any = None,
        precision: Precision | None = None,
        sync_module_states: bool = True,
        **fsdp_kwargs: Any,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            cluster_environment=cluster_environment,
            checkpoint_io=checkpoint_io,
            precision=precision,
            sync_module_states=sync_module_states,
        )
        if state_dict_type != "full":
            raise ArgumentValueError(
                f"state_dict_type={state_dict_type!r}: XLAFSDPStrategy writes whole values, which every "
                f"strategy reads. "
                "Leave it out, or say 'full'."
            )
        for name in ("flatten_parameters", "shard_param_on_dim_0"):
            if fsdp_kwargs.get(name):
                raise ArgumentValueError(f"{name}=True: parameters would lose the names under which they are saved.")
        self.auto_wrap_policy = auto_wrap_policy
        self.activation_checkpointing_policy = tuple(activation_checkpointing_policy)
        self.fsdp_kwargs = dict(fsdp_kwargs)

    # --- setup

    def setup_module(self, module: nn.Module) -> nn.Module:
        """Shard ``module``. One without anything to train passes through."""
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return module
        super().setup_module(module)
        options = dict(self.fsdp_kwargs)
        if self.auto_wrap_policy is not None:
            options["auto_wrap_policy"] = _policy(self.auto_wrap_policy)
        if self.activation_checkpointing_policy:
            checkpointed = runtime.xla("distributed.fsdp").checkpoint_module
            for parent in list(module.modules()):
                for name, child in parent.named_children():
                    if isinstance(child, self.activation_checkpointing_policy):
                        setattr(parent, name, checkpointed(child))
        shards = Shards(module)
        dispatch = MethodDispatch(module)
        engine: nn.Module = runtime.xla("distributed.fsdp").XlaFullyShardedDataParallel(dispatch, **options)
        shards.attach(engine)
        engine.__dict__.update(poplin_shards=shards, poplin_dispatch=dispatch)
        return engine

    def setup_module_and_optimizers(
        self, module: nn.Module, optimizers: Sequence[Optimizer], scheduler: Any | None = None
    ) -> tuple[nn.Module, list[Optimizer], Any | None]:
        """Shard ``module``, and let the optimizers hold the shards.

        Raises:
            UsageError: an optimizer has stepped already: its states are of whole parameters.
        """
        for optimizer in optimizers:
            if optimizer.state:
                raise UsageError(
                    f"{type(optimizer).__name__} has states already, of whole parameters, which torch_xla's shards "
                    "can't take over here. Set up a new optimizer, then load its state with fabric.load()."
                )
        engine = self.setup_module(module)
        shards = _shards(engine)
        if shards is not None:
            for optimizer in optimizers:
                for group in optimizer.param_groups:
                    group["params"] = [shards.shard_of(parameter) for parameter in group["params"]]
            shards.optimizers = list(optimizers)
        return engine, list(optimizers), scheduler

    def original_module(self, wrapped: nn.Module) -> nn.Module:
        shards = _shards(wrapped)
        return wrapped if shards is None else shards.module

    def forward_method(self, wrapped: nn.Module, name: str) -> Callable[..., Any]:
        shards = _shards(wrapped)
        if shards is None or name == "forward":
            return super().forward_method(wrapped, name)
        through: Callable[..., Any] = wrapped.__dict__["poplin_dispatch"].through(wrapped, name)
        return through

    # --- steps: the engine averages gradients in its backward pass

    def _average(self, optimizer: Optimizer) -> None:
        """Nothing: the engine has done it."""

    def no_backward_sync(self, module: nn.Module, enabled: bool = True) -> AbstractContextManager[Any]:
        """torch_xla's own ``no_sync``: gradients stay whole, and this rank's own."""
        if enabled and _shards(module) is not None:
            engine: Any = module
            context: AbstractContextManager[Any] = engine.no_sync()
            return context
        return nullcontext()

    def zero_grad(self, optimizer: Optimizer, model: nn.Module | None = None, set_to_none: bool = True) -> None:
        """Forget gradients; those of an accumulation that was not finished are with the engine, and whole."""
        super().zero_grad(optimizer, model, set_to_none)
        for part in model.modules() if model is not None else ():
            for parameter in getattr(part, "full_params", ()):
                parameter.grad = None

    def clip_gradients_norm(
        self,
        module: nn.Module | None,
        optimizer: Optimizer,
        max_norm: float,
        norm_type: float | str = 2.0,
        error_if_nonfinite: bool = True,
    ) -> Tensor:
        """Clip by the norm over all shards."""
        if module is None or _shards(module) is None:
            return super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)
        engine: Any = module
        norm: Tensor = engine.clip_grad_norm_(max_norm, norm_type=float(norm_type))
        if error_if_nonfinite and not torch.isfinite(norm):
            raise NonFiniteGradientsError(
                f"The total norm of the gradients is {norm.item()}, and they can't be clipped by it. Look for what "
                "makes them so, or write error_if_nonfinite=False, look at the norm that is returned, and leave the "
                "step out."
            )
        return norm

    # --- states: whole values under the user's names

    def parameter_shapes(self, module: nn.Module) -> Mapping[str, tuple[int, ...]]:
        shards = _shards(module)
        return {} if shards is None else shards.shapes

    def parameter_names(self, module: nn.Module) -> Mapping[nn.Parameter, str]:
        shards = _shards(module)
        return {} if shards is None else {shard: name for name, shard in shards.by_name.items()}

    def param_groups(self, optimizer: Optimizer | nn.Module) -> list[dict[str, Any]]:
        return self._optimizer(optimizer).param_groups

    def get_module_state_dict(self, module: nn.Module, sharded: bool = False) -> dict[str, Any]:
        shards = _shards(module)
        if shards is None:
            return super().get_module_state_dict(module)
        buffers = {name: value for name, value in shards.module.state_dict().items() if name not in shards.shapes}
        values = {name: self._whole(shards, name, shard) for name, shard in shards.by_name.items()}
        values |= {name: values[first] for name, first in shards.tied.items()}
        everything = {**buffers, **values}
        return {name: everything[name] for name in shards.order if name in everything}

    def load_module_state_dict(self, module: nn.Module, state: Mapping[str, Any], strict: bool = True) -> None:
        shards = _shards(module)
        if shards is None:
            return super().load_module_state_dict(module, state, strict)
        missing = [name for name in shards.shapes if name not in state]
        if strict and missing:
            raise CheckpointMismatchError(f"The state has no {', '.join(missing)}.")
        with torch.no_grad():
            for name, shard in shards.by_name.items():
                if name in state:
                    shard.copy_(shards.part(state[name], shard, self.global_rank, self.world_size))
        buffers = {name: value for name, value in state.items() if name not in shards.shapes}
        shards.module.load_state_dict(buffers, strict=False)
        runtime.xla().sync()
        return None

    def get_optimizer_state(
        self, optimizer: Optimizer | nn.Module, names: Mapping[nn.Parameter, str], sharded: bool = False
    ) -> dict[str, Any]:
        raw, shards = self._optimizer(optimizer), _shards(optimizer)
        if shards is None:
            return super().get_optimizer_state(raw, names)
        own: dict[Any, str] = {shard: name for name, shard in shards.by_name.items()}
        return {
            "state": {
                own[parameter]: {
                    key: self._whole(shards, own[parameter], value)
                    if isinstance(value, Tensor) and value.shape == parameter.shape
                    else value
                    for key, value in values.items()
                }
                for parameter, values in raw.state.items()
            },
            "param_groups": [
                {
                    **{key: value for key, value in group.items() if key != "params"},
                    "params": [own[parameter] for parameter in group["params"]],
                }
                for group in raw.param_groups
            ],
        }

    def load_optimizer_state(
        self, optimizer: Optimizer | nn.Module, state: Mapping[str, Any], names: Mapping[nn.Parameter, str]
    ) -> None:
        raw, shards = self._optimizer(optimizer), _shards(optimizer)
        if shards is None:
            return super().load_optimizer_state(raw, state, names)
        own: dict[Any, str] = {shard: name for name, shard in shards.by_name.items()}
        by_name = {name: parameter for parameter, name in own.items()}
        parts = {
            name: {
                key: shards.part(value, by_name[name], self.global_rank, self.world_size)
                if isinstance(value, Tensor) and tuple(value.shape) == shards.shapes[name]
                else value
                for key, value in values.items()
            }
            for name, values in state["state"].items()
        }
        super().load_optimizer_state(raw, {**state, "state": parts}, own)
        runtime.xla().sync()
        return None

    def _whole(self, shards: Shards, name: str, shard: Tensor) -> Tensor:
        """The full value of a sharded tensor, on the CPU; a collective."""
        mine = shard.detach().cpu()
        parts = [pickle.loads(part) for part in collectives.exchange("shard", pickle.dumps(mine))]
        return shards.whole(name, parts)

    def _optimizer(self, optimizer: Optimizer | nn.Module) -> Optimizer:
        if isinstance(optimizer, Optimizer):
            return optimizer
        shards = _shards(optimizer)
        if shards is None or len(shards.optimizers) != 1:
            raise UsageError("XLAFSDPStrategy saves one optimizer for each module: set up one with it.")
        return shards.optimizers[0]


def _shards(module: Any) -> Shards | None:
    found = getattr(module, "__dict__", {}).get("poplin_shards")
    return found if isinstance(found, Shards) else None


def _policy(policy: Policy) -> Any:
    if callable(policy):
        return policy
    import functools

    wrap = runtime.xla("distributed.fsdp.wrap").transformer_auto_wrap_policy
    return functools.partial(wrap, transformer_layer_cls=set(policy))
