"""Real hook calls, in an order that depends on nothing but names, with each plugin's answer on record."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from poplin.errors import SelectionError
from poplin.registry.manager import Loaded
from poplin.registry.markers import PROJECT, hookimpl
from poplin.registry.records import Answer, Provider
from poplin.registry.validation import Implementation
from poplin.utilities.unwinding import let_through

#: Hooks that answer with a name.
_NAMING = ("poplin_select_strategy", "poplin_redirect_strategy")


class Outcome(NamedTuple):
    """What came of one call."""

    value: Any
    #: In the order in which the plugins were asked.
    answers: list[Answer]
    #: Whose plugin failed, so that there is no value.
    culprit: Answer | None


def call(specs: ModuleType | type, hook: str, plugins: Sequence[Loaded], arguments: Mapping[str, Any]) -> Outcome:
    """Call ``hook`` of these plugins, as pluggy does: tryfirst, trylast and wrappers have their meaning.

    pluggy calls whoever was registered last first, and plugins are registered in the order in which they happen to be
    loaded. So the call is made by a manager of its own, where they stand in the order given here.

    Args:
        specs: the module of the specifications.
        hook: name of the hook.
        plugins: whom to ask, first to last.
        arguments: of the hook.

    Raises:
        SelectionError: a plugin vetoed (``poplin_check_selection`` only).
    """
    record = _Record()
    manager = _Manager(PROJECT)
    manager.add_hookspecs(specs)
    for loaded in reversed(plugins):
        stand_in = _StandIn()
        for implementation in loaded.implementations:
            if implementation.hook == hook:
                setattr(stand_in, implementation.attribute, _recorded(implementation, loaded.provider, record))
        manager.register(stand_in, name=loaded.provider.key)
    manager.add_hookcall_monitoring(record.before, record.after)
    try:
        value = getattr(manager.hook, hook)(**arguments)
        if hook in _NAMING:
            _require_names(value)
    except SelectionError:
        if hook == "poplin_check_selection":
            raise
        return Outcome(None, record.in_order(), record.failed)
    except BaseException as error:
        let_through(error)
        if record.failed is None:
            raise
        return Outcome(None, record.in_order(), record.failed)
    return Outcome(value, record.in_order(), None)


class _Manager(pluggy.PluginManager):
    """The plugins were checked, and warned about, when they were loaded: no second time."""

    def parse_hookspec_opts(self, module_or_class: Any, name: str) -> Any:
        options = super().parse_hookspec_opts(module_or_class, name)
        return options and {**options, "warn_on_impl": None, "warn_on_impl_args": None}


class _StandIn:
    """Holds the recorded hook of one plugin."""


class _Record:
    """Who was asked, and what came back."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Answer] = {}
        self.failed: Answer | None = None

    def before(self, hook_name: str, hook_impls: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.asked = [implementation.plugin_name for implementation in reversed(hook_impls)]

    def after(self, outcome: Any, hook_name: str, hook_impls: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Nothing more to learn: answers were noted one by one."""

    def note(self, provider: Provider, value: Any, error: BaseException | None = None) -> None:
        answer = Answer(provider, value, error)
        self.answers[provider.key] = answer
        if error is not None and self.failed is None:
            self.failed = answer

    def in_order(self) -> list[Answer]:
        return [self.answers[key] for key in dict.fromkeys(self.asked) if key in self.answers]


def _recorded(implementation: Implementation, provider: Provider, record: _Record) -> Callable[..., Any]:
    function = implementation.function
    make = _recorded_wrapper if implementation.options.get("wrapper") else _recorded_answer
    recorded = make(implementation.hook, function, provider, record)
    options = dict(implementation.options)
    return hookimpl(recorded, **{key: options[key] for key in ("tryfirst", "trylast", "wrapper", "specname")})


def _recorded_answer(
    hook: str, function: Callable[..., Any], provider: Provider, record: _Record
) -> Callable[..., Any]:
    @wraps(function)
    def answer(*args: Any, **kwargs: Any) -> Any:
        try:
            value = function(*args, **kwargs)
            _check_answer(hook, value)
        except BaseException as error:
            record.note(provider, None, error)
            raise
        record.note(provider, value)
        return value

    return _without_marker(answer)


def _recorded_wrapper(
    hook: str, function: Callable[..., Any], provider: Provider, record: _Record
) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Generator[None, Any, Any]:
        generator = function(*args, **kwargs)
        inner: BaseException | None = None
        given: Any = None
        try:
            _advance(generator.send, None, "does not yield")
            try:
                given = yield
            except BaseException as error:
                inner = error
            try:
                generator.throw(inner) if inner is not None else generator.send(given)
            except StopIteration as stop:
                value = stop.value
            else:
                raise RuntimeError("a wrapper must yield once, and this one yields again")
            if hook in _NAMING:
                _require_names(value)
        except BaseException as error:
            if error is not inner:
                record.note(provider, None, error)
            raise
        record.note(provider, value if value is not given and isinstance(value, str) else None)
        return value

    return _without_marker(wrapper)


def _advance(send: Callable[[Any], Any], value: Any, otherwise: str) -> None:
    try:
        send(value)
    except StopIteration:
        raise RuntimeError(f"a wrapper must yield once, and this one {otherwise}") from None


def _without_marker(function: Callable[..., Any]) -> Callable[..., Any]:
    """``wraps`` copied the plugin's own marker; ours is put on afterwards."""
    vars(function).pop(f"{PROJECT}_impl", None)
    return function


def _check_answer(hook: str, value: Any) -> None:
    if hook in _NAMING:
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{hook} answers with a name or None, not with {value!r}")
    elif value is not None:
        raise TypeError(f"{hook} returns nothing, and not {value!r}: to veto, raise SelectionError")


def _require_names(value: Any) -> None:
    names = [value] if value is None or isinstance(value, str) else value
    if not isinstance(names, (list, tuple)) or not all(name is None or isinstance(name, str) for name in names):
        raise TypeError(f"a wrapper returns the list of names it was given, one name or None, and not {value!r}")
