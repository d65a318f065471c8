"""A module in a state."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from poplin.checkpoint.check import Findings, Spec
from poplin.checkpoint.items import Item, Run, Undo, user_module
from poplin.checkpoint.parts import is_sharded_tensor
from poplin.checkpoint.tree import Path
from poplin.strategies.module_names import WRAPPER_ATTRIBUTES, module_state_dict, user_name, with_module_names
from poplin.wrappers.sharing import link_of

_NORM_COUNTER = "num_batches_tracked"


class ModuleItem(Item):
    """A module, set up or not."""

    def __init__(self, path: Path, value: nn.Module, run: Run) -> None:
        super().__init__(path, value, run)
        self.wrapped = run.set_up_module(value)
        self.module = user_module(value)
        self.collective = self.wrapped is not None
        self._own_loaders = list(modules_that_load_themselves(self.module))
        self.may_fail = bool(self._own_loaders)

    @property
    def _forward(self) -> Any:
        return link_of(self.wrapped).forward_module

    def state(self) -> dict[str, Any]:
        if self.wrapped is None:
            return module_state_dict(self.module)
        return self.run.strategy.get_module_state_dict(self._forward, sharded=self.run.sharded)

    def adapted(self, saved: Any) -> Any:
        if not isinstance(saved, Mapping):
            return saved
        return without_foreign_wrappers(saved, self._here())

    def compare(self, saved: Any, strict: bool, findings: Findings) -> None:
        if not isinstance(saved, Mapping):
            findings.others.append(f"{self.name}: a {type(saved).__name__} in the checkpoint, a state dict is needed")
            return
        here = self._here()
        found = Findings()
        found.compare(self.name, self._own_specs(here), _specs(saved))
        for name, value in here.items():
            full = f"{self.name}.{name}" if self.name else name
            if isinstance(value, Tensor) and name in saved and not isinstance(saved[name], Tensor):
                found.others.append(f"{full}: a {type(saved[name]).__name__} in the checkpoint, a tensor is needed")
            if isinstance(value, Tensor) and value.is_meta and not self._engine_owns and not is_lazy(value):
                found.others.append(f"{full}: on the meta device here, where values can't be put")
        prefix = f"{self.name}." if self.name else ""
        found.missing = [name for name in found.missing if not self._loads_itself(name.removeprefix(prefix), saved)]
        found.unexpected = [name for name in found.unexpected if not self._loads_itself(name.removeprefix(prefix), {})]
        found.unexpected = [name for name in found.unexpected if name.removeprefix(prefix) not in self._elsewhere]
        if here and not any(name in saved for name in here):
            found.hints.append(f"no name in {self.name or 'the checkpoint'} is one of the module's")
        for kind in ("missing", "unexpected", "shapes", "others", "hints"):
            getattr(findings, kind).extend(getattr(found, kind))

    def _here(self) -> dict[str, Any]:
        """What the module has, for comparing; what an engine has taken out of it stands there without values."""
        here = module_state_dict(self.module)
        taken = self.run.strategy.parameter_shapes(self._forward) if self._engine_owns else {}
        return here | {name: torch.empty(shape, device="meta") for name, shape in taken.items() if name not in here}

    def _own_specs(self, here: Mapping[str, Any]) -> dict[str, Spec]:
        if not self._engine_owns:
            return _specs(here)
        shapes = self.run.strategy.parameter_shapes(self._forward)
        return {name: Spec(shapes.get(name), spec.dtype) for name, spec in _specs(here).items()}

    @property
    def _engine_owns(self) -> bool:
        return self.wrapped is not None and self.run.strategy.owns_parameters

    def _loads_itself(self, name: str, saved: Any) -> bool:
        """Whether the module that ``name`` belongs to may make sense of what doesn't fit by its name."""
        if any(name.startswith(prefix) for prefix in self._own_loaders):
            return True
        owner, _, last = name.rpartition(".")
        if last != _NORM_COUNTER:  # files from before torch 0.4.1 lack it, and torch's norms fill it in
            return False
        version = (getattr(saved, "_metadata", None) or {}).get(owner, {}).get("version")
        return version is None or version < 2

    @property
    def _elsewhere(self) -> Collection[str]:
        """Names that other ranks restore."""
        return () if self.wrapped is None else self.run.strategy.names_elsewhere(self._forward)

    def needed(self, saved: Any) -> Any:
        if self._own_loaders or self._engine_owns:
            return saved
        here = self._here()
        kept = OrderedDict((name, value) for name, value in saved.items() if name in here)
        if hasattr(saved, "_metadata"):
            kept._metadata = saved._metadata  # type: ignore[attr-defined]
        return kept

    def layouts(self, saved: Any) -> Mapping[int, Any]:
        if self._engine_owns:
            return {}
        if self.wrapped is None:
            here: Mapping[str, Any] = module_state_dict(self.module)
        else:
            here = self.run.strategy.get_module_state_dict(self._forward, sharded=True)
        return {id(saved[name]): live for name, live in here.items() if name in saved and is_sharded_tensor(live)}

    def restore(self, saved: Any, strict: bool) -> None:
        if isinstance(saved, Mapping) and (elsewhere := self._elsewhere):
            saved = {name: value for name, value in saved.items() if name not in elsewhere}
        if self.wrapped is None:
            self.module.load_state_dict(with_module_names(self.module, saved), strict=strict)
        else:
            self.run.strategy.load_module_state_dict(self._forward, saved, strict=strict)

    def snapshot(self) -> Undo:
        before = {
            name: value.detach().clone() if isinstance(value, Tensor) else copy.deepcopy(value)
            for name, value in self.module.state_dict().items()
        }

        def undo() -> None:
            submodules = dict(self.module.named_modules())
            with torch.no_grad():
                for name, live in self.module.state_dict().items():
                    if isinstance(live, Tensor):
                        live.copy_(before[name])
                    elif name.endswith("_extra_state"):
                        submodules[name.rpartition(".")[0]].set_extra_state(before[name])

        return undo


def modules_that_load_themselves(module: nn.Module) -> Iterable[str]:
    """Prefixes of submodules whose loading runs code of the user's: it may rename, fill in, or fail.

    torch's own overrides and hooks are known: they do none of this beyond what :meth:`ModuleItem.compare` allows for.
    """
    if not _is_torchs(type(module).load_state_dict):
        yield ""
    for name, child in module.named_modules():
        methods = (type(child)._load_from_state_dict, type(child).set_extra_state)
        hooks = [
            getattr(hook, "hook", hook)
            for hook in (*child._load_state_dict_pre_hooks.values(), *child._load_state_dict_post_hooks.values())
        ]
        if not all(_is_torchs(function) for function in (*methods, *hooks)):
            prefix = user_name(module, name)
            yield f"{prefix}." if prefix else ""


def _is_torchs(function: Any) -> bool:
    function = getattr(function, "func", function)  # functools.partial
    return str(getattr(function, "__module__", "")).partition(".")[0] == "torch"


def without_foreign_wrappers(saved: Mapping[str, Any], here: Mapping[str, Any]) -> Mapping[str, Any]:
    """``saved`` without the attributes of wrappers in its names, if its names fit only then.

    Other tools leave them in their files: ``module.`` in front, ``_orig_mod.`` anywhere.
    """
    if all(name in saved for name in here):
        return saved
    for front in ("", "module."):
        names = [str(name) for name in saved]
        if front and all(name.startswith(front) for name in names):
            names = [name.removeprefix(front) for name in names]
        for attribute in WRAPPER_ATTRIBUTES:
            names = [name.replace(f"{attribute}.", "") for name in names]
        if set(names) >= set(here):
            return dict(zip(names, saved.values(), strict=True))
    return saved


def _specs(state: Mapping[str, Any]) -> dict[str, Spec]:
    specs = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            shape = None if is_lazy(value) else tuple(value.shape)
            specs[str(name)] = Spec(shape, value.dtype)
        else:
            specs[str(name)] = Spec(None)
    return specs
