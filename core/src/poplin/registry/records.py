"""What the registry hands out: plain records."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

from poplin.errors import BrokenPluginError, PoplinError
from poplin.registry.kinds import KINDS
from poplin.registry.lazy import Lazy
from poplin.utilities.unwinding import let_through

#: The distribution that the built-ins belong to.
CORE = "poplin-core"
#: What stands in place of a distribution for what a script registered.
RUNTIME = "runtime"
#: The stage of what failed because torch did.
NO_TORCH = "torch can't be imported"


class Provider(NamedTuple):
    """Who offers something."""

    #: Name of the distribution; ``"runtime"`` for what a script registered.
    distribution: str
    #: Its version; empty where there is none.
    version: str
    #: ``module`` or ``module:attr`` of the plugin.
    target: str
    #: Where it is installed.
    location: str

    @property
    def key(self) -> str:
        """Its name among pluggy's plugins."""
        return f"{self.distribution}/{self.target}"

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}".strip()


class Row(NamedTuple):
    """One line of ``poplin plugins``."""

    kind: str
    name: str
    distribution: str
    version: str
    target: str
    location: str
    #: available, role, blocked, conflict, incompatible, loaded or failed.
    status: str
    reason: str


@dataclass(frozen=True)
class Failure:
    """A plugin, or one offer of it, that failed."""

    provider: Provider
    #: Where: import, validation, offers, call, target, construction, incompatible, blocked, built for another torch,
    #: torch can't be imported.
    stage: str
    error: BaseException
    kind: str | None = None
    name: str | None = None
    #: What else is known of the cause: the versions, where a binary was built for another torch.
    detail: str = ""

    def of(self, kind: str | None, name: str | None) -> Failure:
        """The same failure, as that of one name of the plugin."""
        return replace(self, kind=kind, name=name)

    @property
    def reason(self) -> str:
        """One line."""
        text = message_of(self.error).partition("\n")[0]
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.stage}{detail}: {type(self.error).__name__}" + (f": {text}" if text else "")

    @property
    def traceback(self) -> str:
        """The whole traceback of its error."""
        return "".join(traceback.format_exception(self.error))


class Answer(NamedTuple):
    """What one plugin answered to a hook."""

    provider: Provider
    value: Any
    error: BaseException | None = None


@dataclass(frozen=True)
class CallbackFactory:
    """A function of an installed package that makes callbacks for every Fabric, or the reason why there is none."""

    name: str
    provider: Provider
    function: Callable[[], Any] | None
    error: BaseException | None = None


def _nobody(*args: Any) -> None:
    """Tell nobody."""


def _as_it_is(failure: Failure) -> Failure:
    return failure


@dataclass(frozen=True)
class Found:
    """An offer that was looked up."""

    kind: str
    name: str
    provider: Provider
    offer: Callable[[], Any]
    #: Told of a failure (it may add to it), and of each class that came out of an offer.
    on_failure: Callable[[Failure], Failure] = field(default=_as_it_is, repr=False, compare=False)
    on_class: Callable[[type[Any], Provider], None] = field(default=_nobody, repr=False, compare=False)

    def target_class(self) -> type[Any]:
        """The class behind the offer; its module is imported now. (A function is called to see what it makes.)

        Raises:
            BrokenPluginError: it can't be had; the plugin's own error is the cause.
        """
        target = self._attempt("target", self.offer.load) if isinstance(self.offer, Lazy) else self.offer
        if not inspect.isclass(target):
            return type(self.create())
        self.on_class(target, self.provider)
        return target

    def check_target(self) -> Any:
        """Import what a lazy offer stands for, and return it; a failure is told of, and not raised."""
        if not isinstance(self.offer, Lazy):
            return self.offer
        try:
            return self._attempt("target", self.offer.load)
        except PoplinError:
            return None

    def create(self) -> Any:
        """A new object, made with the presets of the offer and nothing else.

        Raises:
            BrokenPluginError: it can't be made, or is no such extension; the plugin's own error is the cause.
        """
        if isinstance(self.offer, Lazy):
            self._attempt("target", self.offer.load)
        value = self._attempt("construction", self.offer)
        wanted = self._wanted(value)
        if wanted:
            error = TypeError(f"{type(value).__module__}.{type(value).__qualname__} is {wanted}")
            self._fail("construction", error)
        self.on_class(type(value), self.provider)
        return value

    def _wanted(self, value: Any) -> str:
        """What is wrong with the class of ``value``; empty if nothing is."""
        kind = KINDS[self.kind]
        if self.kind == "loggers":  # the one kind that takes any object with the method
            return "" if callable(getattr(value, "log_metrics", None)) else "no logger: it has no log_metrics()"
        module, _, attribute = kind.interface.partition(":")
        interface = getattr(importlib.import_module(module), attribute)
        return "" if isinstance(value, interface) else f"no {kind.face}.{attribute}"

    def _attempt(self, stage: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except PoplinError:  # the plugin says on purpose what is the matter
            raise
        except BaseException as error:
            let_through(error)
            self._fail(stage, error)

    def _fail(self, stage: str, error: BaseException) -> NoReturn:
        failure = Failure(self.provider, stage, error, self.kind, self.name)
        failure = self.on_failure(failure)
        raise broken(failure) from error


def message_of(error: BaseException) -> str:
    """The message of an error, whatever its ``__str__`` does."""
    try:
        return str(error).strip()
    except Exception:
        return "(its message can't be shown)"


def broken(failure: Failure) -> BrokenPluginError:
    """The error for a name whose plugin failed; to be raised ``from failure.error``."""
    what = f"The {KINDS[failure.kind].singular} {failure.name!r}" if failure.kind and failure.name else "A plugin"
    provider = failure.provider
    text = message_of(failure.error) or "no message"
    if failure.stage == NO_TORCH:
        return BrokenPluginError(
            f"{what} of {provider} ({provider.target}) needs torch, and {NO_TORCH}. {type(failure.error).__name__}: "
            f"{text}\n`poplin doctor` looks for the cause."
        )
    detail = f" ({failure.detail})" if failure.detail else ""
    if provider.distribution == RUNTIME:
        remedy = "Mend what the script registers."
    else:
        remedy = (
            f"Update or reinstall it (pip install -U {provider.distribution}), report it to its authors, or leave it "
            f"out (POPLIN_DISABLE_PLUGINS={provider.distribution})."
        )
    return BrokenPluginError(
        f"{what} of {provider} ({provider.target}) is installed but broken. Stage: {failure.stage}{detail}. "
        f"{type(failure.error).__name__}: {text}\n{remedy}"
    )
