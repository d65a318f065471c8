"""From the arguments that users of Lightning's FSDPStrategy know to those of ``fully_shard``.

What has no counterpart is refused, with the way in which ``fully_shard`` says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy

from poplin.errors import ArgumentTypeError, ArgumentValueError

#: What ``fully_shard`` itself takes, beyond what the strategy decides.
_OPTIONS = ("reshard_after_forward", "shard_placement_fn", "ignored_params", "mp_policy", "offload_policy")
#: Arguments of FSDP1 that ask for what is done anyway: name → the values that do.
_DONE_ANYWAY: dict[str, tuple[Any, ...]] = {
    "use_orig_params": (True,),
    "sync_module_states": (True, False),
    "limit_all_gathers": (True,),
    "forward_prefetch": (False, True),
}
_REFUSED = {
    "use_orig_params": "the parameters are always the user's own, by their names",
    "limit_all_gathers": "fully_shard always bounds the memory of its gathers",
    "backward_prefetch": "fully_shard prefetches by itself; call model.set_modules_to_backward_prefetch([...]) on a "
    "sharded submodule to change it",
    "param_init_fn": "make the module under `with fabric.init_module():`, which keeps its own initial values",
    "device_id": "the strategy knows the device of each process",
    "process_group": "pass device_mesh=(replicas, processes that share one), or a DeviceMesh",
    "ignored_modules": "pass ignored_params={...}, the set of their parameters",
    "ignored_states": "pass ignored_params={...}, a set of parameters",
    "mesh": "pass device_mesh",
    "module": "the strategy gives it itself",
    "sharding_strategy": "",
}


class Sharding(NamedTuple):
    """What a sharding strategy of FSDP1 says."""

    #: Whether parameters are given up after a forward; None leaves it to torch.
    reshard_after_forward: bool | None
    #: Whether groups of processes replicate one another.
    hybrid: bool


_SHARDINGS = {
    "FULL_SHARD": Sharding(None, False),
    "SHARD_GRAD_OP": Sharding(False, False),
    "HYBRID_SHARD": Sharding(None, True),
    "_HYBRID_SHARD_ZERO2": Sharding(False, True),
}


def sharding_of(strategy: Any) -> Sharding:
    """What the ``sharding_strategy`` of FSDP1 says, a name or a member of its enumeration.

    Raises:
        ArgumentValueError: another one, or one without sharding.
    """
    name = strategy if isinstance(strategy, str) else getattr(strategy, "name", None)
    key = str(name).upper()
    if key == "NO_SHARD":
        raise ArgumentValueError(
            "sharding_strategy='NO_SHARD' keeps a whole copy in each process: that is strategy='ddp'. (fully_shard "
            "says it by a mesh without a dimension to shard over: device_mesh=(number of processes, 1).)"
        )
    if key not in _SHARDINGS:
        raise ArgumentValueError(
            f"sharding_strategy={strategy!r} is none of {', '.join(map(repr, _SHARDINGS))}: choose one of them."
        )
    return _SHARDINGS[key]


def offload_policy(cpu_offload: Any, pin_memory: bool) -> OffloadPolicy:
    """Where parameters, gradients and optimizer states lie between their uses.

    Args:
        cpu_offload: a bool, FSDP1's ``CPUOffload``, or a policy of ``fully_shard``.
        pin_memory: whether there is a device to which pinned memory is copied faster.

    Raises:
        ArgumentTypeError: something else.
    """
    if isinstance(cpu_offload, OffloadPolicy):
        return cpu_offload
    wanted = getattr(cpu_offload, "offload_params", cpu_offload)
    if wanted is not None and not isinstance(wanted, bool):
        raise ArgumentTypeError(f"cpu_offload takes True, False or a CPUOffloadPolicy, and got {cpu_offload!r}.")
    return CPUOffloadPolicy(pin_memory=pin_memory) if wanted else OffloadPolicy()


def mixed_precision_policy(mixed_precision: Any) -> MixedPrecisionPolicy | None:
    """The policy that ``mixed_precision``, FSDP1's ``MixedPrecision`` or a policy already, asks for.

    Raises:
        ArgumentTypeError: something else.
        ArgumentValueError: it asks for what has no counterpart.
    """
    if mixed_precision is None or isinstance(mixed_precision, MixedPrecisionPolicy):
        return mixed_precision
    if not all(hasattr(mixed_precision, name) for name in ("param_dtype", "reduce_dtype", "buffer_dtype")):
        raise ArgumentTypeError(
            f"mixed_precision takes torch.distributed.fsdp.MixedPrecisionPolicy, and got a "
            f"{type(mixed_precision).__name__}."
        )
    param_dtype, buffer_dtype = mixed_precision.param_dtype, mixed_precision.buffer_dtype
    if buffer_dtype is not None and buffer_dtype != param_dtype:
        raise ArgumentValueError(
            f"mixed_precision: fully_shard leaves buffers what they are, so buffer_dtype={buffer_dtype} can't be had. "
            "Convert them yourself before fabric.setup(), and leave buffer_dtype out."
        )
    if getattr(mixed_precision, "keep_low_precision_grads", False):
        raise ArgumentValueError(
            "mixed_precision: gradients of sharded parameters always have the parameters' dtype, so "
            "keep_low_precision_grads=True can't be had. Use precision='bf16-true'."
        )
    return MixedPrecisionPolicy(
        param_dtype=param_dtype,
        reduce_dtype=mixed_precision.reduce_dtype,
        cast_forward_inputs=bool(getattr(mixed_precision, "cast_forward_inputs", True)),
    )


def shard_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments for ``fully_shard`` among ``options``.

    Raises:
        ArgumentTypeError: it has no such argument; the message says how it says the same.
    """
    kept: dict[str, Any] = {}
    for name, value in options.items():
        if name in _OPTIONS:
            kept[name] = value
        elif _done_anyway(name, value):
            continue
        elif name == "ignored_parameters":
            kept["ignored_params"] = set(value)
        elif name in _REFUSED:
            raise ArgumentTypeError(f"{name}={value!r} is an argument of FSDP1. Instead: {_REFUSED[name]}.")
        else:
            raise ArgumentTypeError(
                f"FSDPStrategy got {name!r}, which fully_shard has not. It has {', '.join(_OPTIONS)}."
            )
    return kept


def _done_anyway(name: str, value: Any) -> bool:
    if name == "backward_prefetch":
        return getattr(value, "name", "") == "BACKWARD_PRE"
    if name in ("ignored_modules", "ignored_states", "ignored_parameters"):
        return value is None
    return value in _DONE_ANYWAY.get(name, ())
