"""Names for an optimizer's parameters, and saved states of optimizers in every form that is out there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.checkpoint.check import Findings
from poplin.strategies.optimizer_state import ParameterNames, parameter_names

#: States of torch's optimizers that have their parameter's shape.
_SHAPED_LIKE_PARAMETER = frozenset(
    "exp_avg exp_avg_sq max_exp_avg_sq exp_inf momentum_buffer square_avg grad_avg acc_delta sum prev step_size "
    "ax".split()
)
#: What schedulers, and the newer optimizers, add to a group.
_ADDED_TO_GROUPS = frozenset(
    "initial_lr max_lr min_lr max_momentum base_momentum param_names swa_lr name decoupled_weight_decay".split()
)


def optimizer_names(optimizer: Optimizer, modules: Mapping[str, nn.Module]) -> dict[nn.Parameter, str]:
    """A name for each parameter of ``optimizer``.

    Args:
        optimizer: a plain one.
        modules: name → module, those in the state first.

    Returns:
        If one module holds them all, its own names; else the module's name before each. A parameter of no module is
        called after its place in the optimizer: ``unnamed.3``.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    union: dict[nn.Parameter, str] = {}
    for prefix, module in modules.items():
        own = parameter_names({"": module})
        if parameters and all(parameter in own for parameter in parameters):
            return {parameter: own[parameter] for parameter in parameters}
        for parameter, name in own.items():
            union.setdefault(parameter, f"{prefix}.{name}" if prefix else name)
    return {parameter: union.get(parameter, f"unnamed.{index}") for index, parameter in enumerate(parameters)}


def by_name(saved: Any, optimizer: Optimizer, names: ParameterNames) -> Any:
    """``saved`` with names, if it goes by number, as torch's own and Lightning's states do, and the numbers fit."""
    if not _is_optimizer_state(saved):
        return saved
    groups = saved["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    if not numbers or not all(type(number) is int for number in numbers):
        return saved
    if [len(group["params"]) for group in groups] != [len(group["params"]) for group in optimizer.param_groups]:
        return saved
    here = [names[parameter] for group in optimizer.param_groups for parameter in group["params"]]
    name_of = dict(zip(numbers, here, strict=True))
    return {
        **saved,
        "state": {name_of.get(number, number): values for number, values in saved["state"].items()},
        "param_groups": [{**group, "params": [name_of[number] for number in group["params"]]} for group in groups],
    }


def compare_optimizer(
    prefix: str,
    optimizer: Optimizer,
    names: ParameterNames,
    saved: Any,
    findings: Findings,
    compare_shapes: bool,
) -> None:
    """Note how ``saved``, a state of an optimizer, does not fit ``optimizer``."""
    where = f"{prefix}." if prefix else ""
    if not _is_optimizer_state(saved):
        findings.others.append(f"{prefix or 'the optimizer'}: what is in the checkpoint is no state of an optimizer")
        return
    saved_names = [name for group in saved["param_groups"] for name in group["params"]]
    if saved_names and all(type(name) is int for name in saved_names):
        found = [len(group["params"]) for group in saved["param_groups"]]
        here = [len(group["params"]) for group in optimizer.param_groups]
        findings.others.append(
            f"{prefix or 'the optimizer'}: its parameters are numbered in the checkpoint, in groups of {found}, and "
            f"here the groups are of {here}"
        )
        return
    known = set(saved_names)
    findings.missing += [f"{where}{name}" for name in names.values() if name not in known]
    mine = set(names.values())
    findings.unexpected += [f"{where}{name}" for name in saved_names if name not in mine]
    _compare_hyperparameters(prefix, optimizer, saved, findings)
    if compare_shapes:
        _compare_shapes(where, names, saved["state"], findings)


def with_added_groups(saved: Mapping[str, Any], optimizer: Optimizer, names: ParameterNames) -> Mapping[str, Any]:
    """``saved`` with what it lacks: values of groups that a newer torch added, and parameters (``strict=False``).

    What is added is as it is in ``optimizer`` now.
    """
    known = {name for group in saved["param_groups"] for name in group["params"]}
    group_here = {names[parameter]: group for group in optimizer.param_groups for parameter in group["params"]}
    groups = []
    for group in saved["param_groups"]:
        counterpart = next((group_here[name] for name in group["params"] if name in group_here), {})
        groups.append({**counterpart, **group})
    added = [
        {**group, "params": [names[p] for p in group["params"] if names[p] not in known]}
        for group in optimizer.param_groups
    ]
    state = dict(saved["state"])
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if names[parameter] not in known and parameter in optimizer.state:
                state[names[parameter]] = dict(optimizer.state[parameter])
    return {**saved, "state": state, "param_groups": groups + [group for group in added if group["params"]]}


def without_names(saved: Any, names: Collection[str]) -> Any:
    """``saved`` without the parameters called ``names``: other ranks restore these."""
    if not names or not _is_optimizer_state(saved):
        return saved
    return {
        **saved,
        "state": {name: values for name, values in saved["state"].items() if name not in names},
        "param_groups": [
            {**group, "params": [name for name in group["params"] if name not in names]}
            for group in saved["param_groups"]
        ],
    }


def _is_optimizer_state(saved: Any) -> bool:
    return (
        isinstance(saved, Mapping)
        and isinstance(saved.get("state"), Mapping)
        and isinstance(saved.get("param_groups"), (list, tuple))
        and all(isinstance(group, Mapping) and "params" in group for group in saved["param_groups"])
    )


def _compare_hyperparameters(prefix: str, optimizer: Optimizer, saved: Mapping[str, Any], findings: Findings) -> None:
    """Another class of optimizer has hyperparameters that this one lacks, and lacks some; a newer torch only adds."""
    if not saved["param_groups"] or not optimizer.param_groups:
        return
    here = {key for group in optimizer.param_groups for key in group} - _ADDED_TO_GROUPS
    there = {key for group in saved["param_groups"] for key in group} - _ADDED_TO_GROUPS
    if here - there and there - here:
        findings.others.append(
            f"{prefix or 'the optimizer'}: saved from another kind of optimizer, with "
            f"{', '.join(sorted(there - here))}, where {type(optimizer).__name__} has {', '.join(sorted(here - there))}"
        )


def _compare_shapes(where: str, names: ParameterNames, state: Mapping[Any, Any], findings: Findings) -> None:
    for parameter, name in names.items():
        values = state.get(name)
        for key, value in values.items() if isinstance(values, Mapping) else ():
            if key not in _SHAPED_LIKE_PARAMETER or not isinstance(value, Tensor) or not value.dim():
                continue
            if tuple(value.shape) != tuple(parameter.shape):
                findings.shapes.append(
                    f"{where}{name}.{key}: {tuple(value.shape)} in the checkpoint, {tuple(parameter.shape)} here"
                )
                break
