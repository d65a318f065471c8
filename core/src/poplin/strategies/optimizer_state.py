"""Optimizer states by parameter name, so that any strategy reads what any other wrote.

torch numbers the parameters of an optimizer; a number means something only to the run that made it. Here ``state``
and the ``params`` of each group carry the user's parameter names instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.errors import CheckpointMismatchError
from poplin.strategies.module_names import has_wrappers, user_name

#: {parameter: the user's name for it}
ParameterNames = Mapping[nn.Parameter, str]


def parameter_names(modules: Mapping[str, nn.Module]) -> dict[nn.Parameter, str]:
    """Each parameter's name, the user's own whatever wrappers lie between; a tied one has its first.

    Args:
        modules: prefix → module. An empty prefix is fine where only one module is concerned.
    """
    names: dict[nn.Parameter, str] = {}
    for prefix, module in modules.items():
        wrapped = has_wrappers(module)
        for given, parameter in module.named_parameters():
            name = user_name(module, given) if wrapped else given
            names.setdefault(parameter, f"{prefix}.{name}" if prefix else name)
    return names


def optimizer_state_by_name(
    optimizer: Optimizer, names: ParameterNames, full: Callable[[Tensor], Tensor] = lambda tensor: tensor
) -> dict[str, Any]:
    """``optimizer``'s state dict with names for numbers.

    Args:
        optimizer: a plain torch optimizer.
        names: for every parameter of it.
        full: applied to each tensor in the state (gathers a shard, for instance).

    Returns:
        ``{"state": {name: {key: value}}, "param_groups": [{..., "params": [names]}]}``

    Raises:
        CheckpointMismatchError: a parameter has no name.
    """
    unnamed = sum(parameter not in names for group in optimizer.param_groups for parameter in group["params"])
    if unnamed:
        raise CheckpointMismatchError(
            f"{unnamed} parameter(s) of {type(optimizer).__name__} belong to no module that was set up: their state "
            "can't be saved by name. Set up the module that holds them, or put it into the state that is saved."
        )
    return {
        "state": {
            names[cast(nn.Parameter, parameter)]: {
                key: full(value) if isinstance(value, Tensor) else value for key, value in state.items()
            }
            for parameter, state in optimizer.state.items()
        },
        "param_groups": [
            {
                **{key: value for key, value in group.items() if key != "params"},
                "params": [names[parameter] for parameter in group["params"]],
            }
            for group in optimizer.param_groups
        ],
    }


def load_optimizer_state_by_name(
    optimizer: Optimizer,
    state: Mapping[str, Any],
    names: ParameterNames,
    place: Callable[[Tensor, nn.Parameter], Tensor] = lambda value, parameter: value,
) -> None:
    """Restore what :func:`optimizer_state_by_name` returned, through torch's own ``load_state_dict``.

    Groups are matched by the names in them, so their order and number may differ from what was saved.

    Args:
        optimizer: a plain torch optimizer.
        state: what was saved.
        names: for every parameter of ``optimizer``.
        place: applied to each state tensor that has its parameter's shape (shards it, for instance).

    Raises:
        CheckpointMismatchError: a parameter of ``optimizer`` is in no saved group. Nothing was changed.
    """
    saved_group = {name: group for group in state["param_groups"] for name in group["params"]}
    missing = [
        names[parameter]
        for group in optimizer.param_groups
        for parameter in group["params"]
        if names[parameter] not in saved_group
    ]
    if missing:
        raise CheckpointMismatchError(
            f"The saved optimizer state knows nothing of {len(missing)} parameter(s), {missing[0]!r} among them. "
            "Build the optimizer over the same parameters as the one that was saved."
        )
    groups: list[dict[str, Any]] = []
    numbered: dict[int, dict[str, Any]] = {}
    number = 0
    for group in optimizer.param_groups:
        parameters = group["params"]
        saved = saved_group[names[parameters[0]]] if parameters else {}
        numbers = []
        for parameter in parameters:
            values = state["state"].get(names[parameter])
            if values is not None:
                numbered[number] = {
                    key: place(value, parameter)
                    if isinstance(value, Tensor) and value.dim() and value.shape == parameter.shape
                    else value
                    for key, value in values.items()
                }
            numbers.append(number)
            number += 1
        groups.append({**{key: value for key, value in saved.items() if key != "params"}, "params": numbers})
    optimizer.load_state_dict({"state": numbered, "param_groups": groups})
