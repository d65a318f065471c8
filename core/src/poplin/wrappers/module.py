"""The wrapper of a module."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from poplin.errors import ArgumentTypeError, ArgumentValueError, UnknownMethodError, UsageError
from poplin.precision.precision import Precision
from poplin.strategies.strategy import Strategy
from poplin.wrappers.module_class import FIELDS, Shape, namespace
from poplin.wrappers.passage import BackwardGuard, Run, build_run, runs_in_context
from poplin.wrappers.sharing import (
    USER_CLASS,
    Kept,
    Shared,
    change_class,
    has_own,
    link_of,
    made_class,
    share,
)

#: Methods that are marked from the start, if the module has them.
STEP_METHODS = ("training_step", "validation_step", "test_step", "predict_step")


class ModuleLink:
    """What a wrapped module knows.

    Args:
        original: the user's module.
        forward_module: what the strategy's ``setup_module`` returned.
        strategy: None in a copy, which no strategy serves.
        precision: it runs every forward.
        guard: against a plain backward, where one is needed.
        device: where a module without parameters and buffers is.
        marked: names of the methods that run as a forward does; None: the step methods that the module has.
    """

    __slots__ = (
        "clashes",
        "compilation",
        "compiled",
        "device",
        "forward_module",
        "guard",
        "inside",
        "looked_at",
        "marked",
        "original",
        "precision",
        "run",
        "strategy",
    )

    def __init__(
        self,
        original: nn.Module,
        forward_module: nn.Module,
        strategy: Strategy | None,
        precision: Precision,
        guard: BackwardGuard | None,
        device: torch.device,
        marked: frozenset[str] | None = None,
    ) -> None:
        self.original = original
        self.forward_module = forward_module
        self.strategy = strategy
        self.precision = precision
        self.guard = guard
        self.device = device
        if marked is None:
            marked = frozenset(name for name in STEP_METHODS if callable(getattr(original, name, None)))
        self.marked = marked
        self.clashes = any(has_own(original, name) for name in FIELDS)
        self.run: Run = build_run(precision, guard)
        #: Unmarked methods of which it is known whether they run parts of the module outside of the precision.
        self.looked_at: set[str] = set()
        #: The user's own ``torch.compile``, what it was given (all that a forward goes through), and what it made of
        #: that; or None.
        self.compilation: Callable[[nn.Module], nn.Module] | None = None
        self.inside: nn.Module | None = None
        self.compiled: nn.Module | None = None

    def shape(self) -> Shape:
        """What the made class must do."""
        changed = self.forward_module is not self.original
        precise = runs_in_context(self.precision) or self.precision.converts_data or self.guard is not None
        strategy = self.strategy
        guarded = strategy is not None and strategy.needs_forward
        return Shape(
            through=changed or precise or guarded or self.clashes,
            marked=self.marked if changed or precise or guarded else frozenset(),
            guarded=guarded,
            clashes=self.clashes,
            follows=strategy is not None and strategy.mutates_module,
            compiled=self.compiled is not None,
            cautious=not guarded and self.precision.autocasts,
        )


class _Field:
    """An attribute of the wrapper's own. Inside the user's code the user's attribute of that name counts."""

    def __init__(self, read: Callable[[Any], Any], doc: str) -> None:
        self.read = read
        self.__doc__ = doc
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, wrapper: Any, owner: type) -> Any:
        return self if wrapper is None else self.read(wrapper)

    def __set__(self, wrapper: Any, value: Any) -> None:
        link = link_of(wrapper)
        setattr(link.original if link.inside is None else link.inside, self.name, value)
        link.clashes = True
        change_class(wrapper, module_class(vars(type(wrapper))[USER_CLASS], link.shape()))

    def __delete__(self, wrapper: Any) -> None:
        delattr(link_of(wrapper).original, self.name)


def _device_of(wrapper: nn.Module) -> torch.device:
    device: torch.device = link_of(wrapper).device
    first = next(chain(wrapper.parameters(), wrapper.buffers()), None)
    return device if first is None else first.device


def _dtype_of(wrapper: nn.Module) -> torch.dtype:
    for tensor in wrapper.parameters():
        if tensor.is_floating_point() or tensor.is_complex():
            return tensor.dtype
    return next((tensor.dtype for tensor in wrapper.parameters()), torch.get_default_dtype())


class FabricModule(Shared, nn.Module):
    """A module that went through ``Fabric.setup``.

    It is an instance of your module's class and shares all its attributes, in both directions; calling it runs your
    ``forward`` at the precision and by the strategy. It can be pickled and copied; such a copy keeps the precision,
    and no strategy serves it.
    """

    __slots__ = ()

    module = _Field(lambda wrapper: link_of(wrapper).original, "The module that was set up: your own object.")
    device = _Field(_device_of, "The device of the parameters.")
    dtype = _Field(_dtype_of, "The dtype of the parameters.")
    _forward_module = _Field(lambda wrapper: link_of(wrapper).forward_module, "What the strategy made of the module.")

    def mark_forward_method(self, method: str | Callable[..., Any]) -> None:
        """Let a method run through precision and strategy, as ``forward`` does.

        ``training_step``, ``validation_step``, ``test_step`` and ``predict_step`` are marked from the start.

        Args:
            method: its name, or the method itself.

        Raises:
            ArgumentTypeError: neither a name nor a method.
            ArgumentValueError: ``forward`` itself.
            UnknownMethodError: the module has no such method (an AttributeError).
        """
        name = method if isinstance(method, str) else getattr(method, "__name__", None)
        if name is None or not (isinstance(method, str) or callable(method)):
            raise ArgumentTypeError(
                f"mark_forward_method() takes the name of a method, or a method, and got a {type(method).__name__}."
            )
        link = link_of(self)
        if name == "forward":
            raise ArgumentValueError("forward() runs through precision and strategy already: it needs no mark.")
        if not callable(getattr(link.original, name, None)):
            raise UnknownMethodError(
                f"{name!r} can't be marked as a forward method, because "
                f"{type(link.original).__name__} has no method of that name."
            )
        link.marked = link.marked | {name}
        if isinstance(link.inside, FabricModule):
            link.inside.mark_forward_method(name)
        change_class(self, module_class(vars(type(self))[USER_CLASS], link.shape()))

    def compile(self, *args: Any, **kwargs: Any) -> Any:
        """``torch.nn.Module.compile`` of your module, whose forward is then compiled inside the strategy's."""
        return link_of(self).original.compile(*args, **kwargs)

    def _poplin_class_for(self, user_class: type) -> type:
        link = link_of(self)
        return module_class(user_class, link.shape())

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        link = link_of(self)
        _check_copyable(link)
        kept = Kept(link.precision, link.guard)
        if link.compilation is not None:
            return rebuild_module, (link.original, kept, link.marked, link.compilation)
        return rebuild_module, (link.original, kept, link.marked)

    def _replicate_for_data_parallel(self) -> FabricModule:
        link = link_of(self)
        replica = link.original._replicate_for_data_parallel()
        return rebuild_module(replica, Kept(link.precision, link.guard), link.marked)


def wrap_module(link: ModuleLink, user_class: type | None = None) -> FabricModule:
    """Wrap ``link.original``.

    Args:
        link: what the wrapper is to know.
        user_class: the class of the module before the strategy changed it.
    """
    return share(module_class(user_class or type(link.original), link.shape()), link.original, link)


def wrap_compiled(
    link: ModuleLink, compilation: Callable[[nn.Module], nn.Module], user_class: type | None = None
) -> FabricModule:
    """Wrap ``link.original`` so that ``compilation`` sees all that a forward goes through.

    The compiled module stands inside the wrapper, which so remains the user's object, with the user's names.
    """
    inside = wrap_module(link, user_class) if link.shape().through else link.original
    outer = ModuleLink(
        link.original, link.forward_module, link.strategy, link.precision, link.guard, link.device, link.marked
    )
    outer.compilation, outer.inside, outer.compiled = compilation, inside, compilation(inside)
    if link.guard is not None:
        watch = link.guard.watch
        outer.compiled.register_forward_hook(lambda module, args, output: watch(output))
    return wrap_module(outer, user_class)


def module_class(user_class: type, shape: Shape) -> type[FabricModule]:
    """The made class of wrapped modules of the class ``user_class``."""
    return made_class(FabricModule, user_class, shape, lambda: namespace(user_class, shape, _of_later_class))


def _of_later_class(self: Any, name: str) -> Any:
    """Members that a strategy gave to the user's object together with another class."""
    try:
        return super(FabricModule, self).__getattr__(name)
    except AttributeError:
        return getattr(link_of(self).original, name)


def rebuild_module(
    original: nn.Module,
    kept: Kept,
    marked: frozenset[str],
    compilation: Callable[[nn.Module], nn.Module] | None = None,
) -> FabricModule:
    """A wrapper around a copied or unpickled module: precision and compilation stay, and no strategy serves it."""
    link = ModuleLink(original, original, None, kept.precision, kept.guard, torch.device("cpu"), marked)
    return wrap_module(link) if compilation is None else wrap_compiled(link, compilation)


def _check_copyable(link: ModuleLink) -> None:
    strategy = link.strategy
    if strategy is not None and not strategy.picklable:
        raise UsageError(
            f"This {type(link.original).__name__} can't be copied or pickled, because {type(strategy).__name__} has "
            "changed it in place. Save its state with fabric.save(), or copy it before fabric.setup()."
        )
