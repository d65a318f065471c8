"""An optimizer in a state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from poplin.checkpoint.check import Findings
from poplin.checkpoint.items import Item, Run, Undo, raw_optimizer
from poplin.checkpoint.optimizer_names import (
    by_name,
    compare_optimizer,
    optimizer_names,
    with_added_groups,
    without_names,
)
from poplin.checkpoint.parts import is_sharded_tensor
from poplin.checkpoint.tree import Path
from poplin.strategies.optimizer_state import load_optimizer_state_by_name, optimizer_state_by_name
from poplin.wrappers.sharing import link_of


class OptimizerItem(Item):
    """An optimizer, set up or not; its state goes by the names of its parameters."""

    def __init__(self, path: Path, value: Optimizer, run: Run) -> None:
        super().__init__(path, value, run)
        self.wrapped = run.set_up_optimizer(value)
        self.optimizer = raw_optimizer(value)
        self.collective = self.wrapped is not None
        owned = self.wrapped is not None and run.strategy.owns_parameters
        self.engine = link_of(self.wrapped).model if owned else None
        #: The optimizer as the user knows it: an engine may have put parameters of its own into the real one.
        self.seen = self.optimizer if self.engine is None else _with_groups(self.optimizer, self._user_groups())
        self._names: dict[nn.Parameter, str] | None = None

    @property
    def names(self) -> dict[nn.Parameter, str]:
        """The user's name of each parameter."""
        if self._names is None:
            taken = self.run.strategy.parameter_names(self.engine) if self.engine is not None else {}
            self._names = {**optimizer_names(self.seen, self.run.naming_modules()), **taken}
        return self._names

    def _user_groups(self) -> list[dict[str, Any]]:
        return self.run.strategy.param_groups(self._target)

    @property
    def _target(self) -> Any:
        """What the strategy's methods take: what its setup returned, or the engine."""
        if self.engine is not None or self.wrapped is None:
            return self.engine
        return link_of(self.wrapped).optimizer

    def state(self) -> dict[str, Any]:
        if self.wrapped is None:
            return optimizer_state_by_name(self.optimizer, self.names)
        return self.run.strategy.get_optimizer_state(self._target, self.names, sharded=self.run.sharded)

    def adapted(self, saved: Any) -> Any:
        return by_name(saved, self.seen, self.names)

    def compare(self, saved: Any, strict: bool, findings: Findings) -> None:
        saved = without_names(saved, self.run.names_elsewhere())
        compare_optimizer(self.name, self.seen, self.names, saved, findings, self.engine is None)

    def needed(self, saved: Any) -> Any:
        if self.engine is not None:
            return saved
        mine = set(self.names.values())
        return {**saved, "state": {name: values for name, values in saved["state"].items() if name in mine}}

    def layouts(self, saved: Any) -> Mapping[int, Any]:
        if self.engine is not None:
            return {}
        found: dict[int, Any] = {}
        for parameter, name in self.names.items():
            values = saved["state"].get(name)
            live = self.optimizer.state.get(parameter, {})
            for key, value in values.items() if isinstance(values, Mapping) else ():
                if isinstance(value, Tensor) and value.dim():
                    like = next(
                        (c for c in (live.get(key), parameter) if is_sharded_tensor(c) and c.shape == value.shape), None
                    )
                    if like is not None:
                        found[id(value)] = like
        return found

    def restore(self, saved: Any, strict: bool) -> None:
        saved = without_names(saved, self.run.names_elsewhere())
        saved = with_added_groups(saved, self.seen, self.names)
        if self.wrapped is None:
            load_optimizer_state_by_name(self.optimizer, saved, self.names)
        else:
            self.run.strategy.load_optimizer_state(self._target, saved, self.names)

    @property
    def after_modules(self) -> bool:
        """Whether it is restored after the modules: an engine that holds the parameters wants these first."""
        return self.engine is not None

    def snapshot(self) -> Undo:
        # torch's load_state_dict makes new dicts and leaves the old ones, and the tensors in them, as they are
        fields = vars(self.optimizer)
        state, groups = fields["state"], fields["param_groups"]
        states = {parameter: dict(values) for parameter, values in state.items()}
        copies = [{**group, "params": list(group["params"])} for group in groups]

        def undo() -> None:
            state.clear()
            state.update(states)
            for group, before in zip(groups, copies, strict=True):
                group.clear()
                group.update(before)
            fields["state"], fields["param_groups"] = state, groups

        return undo


def _with_groups(optimizer: Optimizer, groups: list[dict[str, Any]]) -> Optimizer:
    """Something of the class of ``optimizer`` that has these groups, and no state: it is only looked at."""
    seen: Optimizer = object.__new__(type(optimizer))
    seen.__dict__.update(param_groups=groups, state={}, defaults=optimizer.defaults)
    return seen
