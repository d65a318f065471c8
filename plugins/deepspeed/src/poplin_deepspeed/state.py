"""State of an engine by the user's parameter names, so that any strategy reads what this one wrote, and the reverse.

ZeRO holds everything that the optimizer steps in flat float32 partitions. Full values are gathered one parameter at
a time, and put back one parameter at a time. All functions are collectives.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from poplin.errors import CheckpointMismatchError
from poplin.utilities import rank_zero_warn
from poplin_deepspeed import scaling
from poplin_deepspeed.engine import EngineState
from poplin_deepspeed.names import Names, full_shape, local_part

ParameterNames = Mapping[nn.Parameter, str]
#: Whether this rank keeps the value of the entry with this index.
Keep = Callable[[int], bool]


def _utils() -> Any:
    return importlib.import_module("deepspeed.utils")


def _zero() -> Any:
    return importlib.import_module("deepspeed.runtime.zero")


def weight(state: EngineState, parameter: nn.Parameter) -> Tensor:
    """The full value of a parameter: the float32 one that the optimizer steps, else the one that computes."""
    if parameter in state.optimized:
        full: Tensor | None = _utils().safe_get_full_fp32_param(parameter)
        if full is not None:
            return full.detach().cpu() if full.device.type != "cpu" else full.detach()
    with _zero().GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
        return parameter.detach().cpu().clone()


def module_state(state: EngineState, names: Names, plain: Mapping[str, Any], keep: Keep) -> dict[str, Any]:
    """The state dict of an engine's module, with full values on the ranks that keep them.

    Args:
        state: of the engine.
        names: of its module.
        plain: the module's own state dict under the user's names, whose parameters may be partitioned.
        keep: which entries this rank keeps; the others are left out.
    """
    result: Any = type(plain)()
    done: dict[nn.Parameter, Tensor] = {}
    for index, (name, value) in enumerate(plain.items()):
        parameter = names.parameters.get(name)
        if parameter is not None:
            if parameter not in done:
                done[parameter] = weight(state, parameter)  # every rank takes part
            value = done[parameter]
        if keep(index):
            result[name] = value
        elif parameter is not None and names.count(parameter) == 1:
            done[parameter] = value[:0] if value.dim() else value
    metadata = getattr(plain, "_metadata", None)
    if metadata is not None:
        result._metadata = metadata
    return dict(result) if not isinstance(result, dict) else result


def load_weights(state: EngineState, names: Names, values: Mapping[str, Any], strict: bool) -> None:
    """Put full values into the parameters: those that compute, and the float32 ones of the optimizer.

    Raises:
        CheckpointMismatchError: a shape is another, or with ``strict`` names are missing or unknown; nothing was
            written.
    """
    if strict:
        known = set(names.user.values())
        wrong = [f"missing: {name}" for name in names.parameters if name not in values]
        wrong += [f"unexpected: {name}" for name in values if name not in known]
        if wrong:
            raise CheckpointMismatchError(f"The state does not fit the module: {', '.join(wrong[:10])}.")
    wanted = {name: parameter for name, parameter in names.parameters.items() if isinstance(values.get(name), Tensor)}
    for name, parameter in wanted.items():
        if tuple(values[name].shape) != tuple(full_shape(parameter)):
            raise CheckpointMismatchError(
                f"{name}: {tuple(values[name].shape)} in the checkpoint, {tuple(full_shape(parameter))} here."
            )
    seen: set[nn.Parameter] = set()
    for name, parameter in wanted.items():
        if parameter not in seen:
            seen.add(parameter)
            put_weight(state, parameter, values[name].detach())


def put_weight(state: EngineState, parameter: nn.Parameter, value: Tensor) -> None:
    """Put one full value into a parameter; every rank has the same."""
    partitioned = hasattr(parameter, "ds_id")
    with torch.no_grad(), _zero().GatheredParameters([parameter], modifier_rank=0, enabled=partitioned):
        parameter.data.copy_(value)
    if parameter in state.optimized:
        put_master(state, parameter, value)


def put_master(state: EngineState, parameter: nn.Parameter, value: Tensor) -> None:
    """Put one full value into the float32 weight that the optimizer steps."""
    exact = value.to(parameter.device, torch.float32)
    if hasattr(parameter, "ds_id"):
        _utils().safe_set_local_fp32_param(parameter, local_part(exact, parameter, _partition_rank(state, parameter)))
    else:
        _utils().safe_set_full_fp32_param(parameter, exact)


# --- the optimizer


def optimizer_state(state: EngineState, names: ParameterNames, keep: Keep) -> dict[str, Any]:
    """The optimizer's state by name, with full values on the ranks that keep them.

    Args:
        state: of the engine.
        names: of every parameter in its groups.
        keep: which parameters' states this rank keeps; the others are left out.
    """
    link_states(state)
    raw = state.zero.optimizer
    some: Mapping[str, Any] = next((values for values in raw.state.values() if values), {})
    shaped = [key for key, value in some.items() if isinstance(value, Tensor) and value.dim()]
    scalars = {parameter: _scalars(state, index) for index, group in enumerate(state.groups) for parameter in group}
    result: dict[str, Any] = {}
    parameters = [parameter for group in state.groups for parameter in group if parameter.requires_grad]
    for index, parameter in enumerate(parameters if some else []):
        full = {key: _utils().safe_get_full_optimizer_state(parameter, key) for key in shaped}
        if keep(index):
            result[names[parameter]] = {
                **{key: _copied(value) for key, value in scalars[parameter].items()},
                **{key: value.detach().cpu() for key, value in full.items()},
            }
    scale = scaling.state_of(getattr(state.zero, "loss_scaler", None))
    return {"state": result, "param_groups": param_groups(state, names), **scale}


def param_groups(state: EngineState, names: ParameterNames) -> list[dict[str, Any]]:
    """The optimizer's groups with names for parameters."""
    groups = state.zero.optimizer.param_groups
    return [
        {
            **{key: value for key, value in group.items() if key != "params"},
            "params": [names[parameter] for parameter in parameters],
        }
        for group, parameters in zip(groups, state.groups, strict=True)
    ]


def load_optimizer_state(state: EngineState, saved: Mapping[str, Any], names: ParameterNames) -> None:
    """Restore what any strategy's ``get_optimizer_state`` returned.

    Raises:
        CheckpointMismatchError: a parameter is in no saved group, or a value has another shape; nothing was written.
    """
    _check_optimizer(state, saved, names)
    scaling.restore(getattr(state.zero, "loss_scaler", None), saved)
    raw = state.zero.optimizer
    group_of = {name: group for group in saved["param_groups"] for name in group["params"]}
    for group, parameters in zip(raw.param_groups, state.groups, strict=True):
        if parameters:
            source = group_of[names[parameters[0]]]
            group.update({key: value for key, value in source.items() if key != "params"})
    some = next((values for values in saved["state"].values() if values), None)
    if some is None:
        raw.state.clear()
        return
    _make_states(state, some)
    link_states(state)
    for index, parameters in enumerate(state.groups):
        _load_group(state, index, [p for p in parameters if p.requires_grad], saved["state"], names)


def _load_group(
    state: EngineState,
    index: int,
    parameters: list[nn.Parameter],
    saved: Mapping[str, Any],
    names: ParameterNames,
) -> None:
    scalars: dict[str, Any] = {}
    for parameter in parameters:
        values = saved.get(names[parameter]) or {}
        for key, value in values.items():
            if isinstance(value, Tensor) and value.dim():
                _put_state(state, parameter, key, value)
            elif key in scalars and _number(scalars[key]) != _number(value):
                rank_zero_warn(
                    f"The parameters of one group were saved with different values of {key!r}, and ZeRO has one for "
                    f"the whole group: the greatest is taken."
                )
                scalars[key] = max(scalars[key], value, key=_number)
            else:
                scalars[key] = value
    for flat in _flats(state, index):
        kept = state.zero.optimizer.state[flat]
        for key, value in scalars.items():
            kept[key] = _like(kept.get(key), value)


def _put_state(state: EngineState, parameter: nn.Parameter, key: str, value: Tensor) -> None:
    exact = value.detach().to(parameter.device)
    if hasattr(parameter, "ds_id"):
        part = local_part(exact, parameter, _partition_rank(state, parameter))
        _utils().safe_set_local_optimizer_state(parameter, part, key)
    else:
        _utils().safe_set_full_optimizer_state(parameter, exact, key)


def link_states(state: EngineState) -> None:
    """Let DeepSpeed find each parameter's part of the optimizer's flat states (it links those of one group only)."""
    zero = state.zero
    if state.stage == 3 or not zero.optimizer.state:
        return
    linkage = importlib.import_module("deepspeed.utils.mixed_precision_linkage")
    for group, flat in zip(zero.bit16_groups, zero.single_partition_of_fp32_groups, strict=True):
        if flat in zero.optimizer.state:
            linkage.lazy_init_hp_params_optimizer_state(group, flat, zero.optimizer.state)
    zero._hp_optimizer_states_linked = all(
        flat in zero.optimizer.state for flat in zero.single_partition_of_fp32_groups
    )


def _make_states(state: EngineState, like: Mapping[str, Any]) -> None:
    """Make the flat states that the first step would make, where there are none yet."""
    raw = state.zero.optimizer
    for index in range(len(state.groups)):
        for flat in _flats(state, index):
            kept = raw.state[flat]
            for key, value in like.items():
                if isinstance(value, Tensor) and value.dim():
                    if key not in kept:
                        kept[key] = torch.zeros_like(flat, requires_grad=False)
                elif key not in kept:
                    kept[key] = _copied(value)


def _flats(state: EngineState, index: int) -> list[Tensor]:
    """The flat parameters that stand for the optimizer's group ``index``."""
    zero = state.zero
    if state.stage < 3:
        return [zero.single_partition_of_fp32_groups[index]]
    owners = zero.sub_group_to_group_id
    return [flat for number, flat in enumerate(zero.fp32_partitioned_groups_flat) if owners[number] == index]


def _scalars(state: EngineState, index: int) -> dict[str, Any]:
    for flat in _flats(state, index):
        values = state.zero.optimizer.state.get(flat)
        if values:
            return {key: value for key, value in values.items() if not (isinstance(value, Tensor) and value.dim())}
    return {}


def _check_optimizer(state: EngineState, saved: Mapping[str, Any], names: ParameterNames) -> None:
    known = {name for group in saved["param_groups"] for name in group["params"]}
    parameters = [parameter for group in state.groups for parameter in group]
    missing = [names[parameter] for parameter in parameters if names[parameter] not in known]
    if missing:
        raise CheckpointMismatchError(
            f"The saved optimizer state knows nothing of {len(missing)} parameter(s), {missing[0]!r} among them. Build "
            "the optimizer over the same parameters as the one that was saved."
        )
    for parameter in parameters:
        for key, value in (saved["state"].get(names[parameter]) or {}).items():
            if isinstance(value, Tensor) and value.dim() and value.numel() != full_shape(parameter).numel():
                raise CheckpointMismatchError(
                    f"{names[parameter]}.{key}: {tuple(value.shape)} in the checkpoint, where the parameter is "
                    f"{tuple(full_shape(parameter))}."
                )


def _partition_rank(state: EngineState, parameter: nn.Parameter) -> int:
    rank: int = state.zero._get_param_partition_rank(parameter)
    return rank


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float, Tensor)) else 0.0


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _like(before: Any, value: Any) -> Any:
    """``value`` in the form that the optimizer had it in: a number, or a tensor on its device."""
    if isinstance(before, Tensor) and isinstance(value, Tensor):
        return value.detach().to(before.device, before.dtype).clone()
    if isinstance(before, int) and isinstance(value, Tensor):
        return int(value.item())
    return _copied(value)
