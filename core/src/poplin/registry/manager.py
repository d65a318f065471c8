"""The host of the plugins: pluggy, and around it what pluggy leaves to its user.

Each plugin is loaded once for each distribution and value, whoever asks first; what fails is quarantined with its
stage and its own error, and gives that same error whenever it is asked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import pluggy

from poplin.errors import BrokenPluginError, PluginValidationError
from poplin.registry import validation
from poplin.registry.binaries import diagnosed
from poplin.registry.kinds import KINDS
from poplin.registry.lazy import resolve
from poplin.registry.markers import PROJECT
from poplin.registry.records import CORE, RUNTIME, Failure, Provider
from poplin.utilities.unwinding import let_through

T = TypeVar("T")
#: Seconds that a thread waits for another that loads the same plugin, before it loads for itself. (The two can hold
#: locks that each other needs only where a plugin asks the registry while it is imported; Python's own import locks
#: then settle it.)
PATIENCE = 10.0


@dataclass(frozen=True)
class Loaded:
    """A plugin that was imported, checked and registered."""

    provider: Provider
    #: What pluggy holds.
    plugin: Any
    implementations: tuple[validation.Implementation, ...]
    #: kind → folded name → (name, offer)
    offers: Mapping[str, Mapping[str, tuple[str, Callable[[], Any]]]]

    def implements(self, hook: str) -> bool:
        """Whether it has an implementation of ``hook``."""
        return any(implementation.hook == hook for implementation in self.implementations)


class _Flight:
    """Somebody is loading."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.landed = threading.Event()


class PluginHost:
    """Loads, checks, registers and quarantines.

    Args:
        specs: the module (or class) of the hook specifications.
        on_loaded: told of each plugin once it is registered.
    """

    def __init__(self, specs: ModuleType | type, on_loaded: Callable[[Loaded], None] = lambda loaded: None) -> None:
        self.specs = specs
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(specs)
        self._specified = [name for name in dir(specs) if self.manager.parse_hookspec_opts(specs, name) is not None]
        self._on_loaded = on_loaded
        self._lock = threading.RLock()
        self._outcomes: dict[str, Any] = {}
        self._flights: dict[str, _Flight] = {}
        self._blocked: set[str] = set()

    # --- loading

    def load(self, provider: Provider, declared: Mapping[str, list[str]] | None, ambient: bool) -> Loaded | Failure:
        """Load a plugin, once.

        Args:
            provider: whose and which.
            declared: kind → the names that metadata declares for it; None for a built-in, which has no metadata.
            ambient: whether it is declared as ambient.
        """
        with self._lock:
            known = self._outcomes.get(provider.key)
            if known is not None and known.provider != provider:
                self.drop(provider.key)  # another version of the distribution comes first on the path by now
        return self.once(provider.key, provider, lambda: self._load(provider, declared, ambient))

    def once(self, key: str, provider: Provider, load: Callable[[], T]) -> T | Failure:
        """What ``load`` makes, for the first that asks for ``key``, and the same for all others."""
        with self._lock:
            if key in self._outcomes:
                known: T | Failure = self._outcomes[key]
                return known
            flight = self._flights.get(key)
            mine = flight is None
            if flight is None:
                flight = self._flights[key] = _Flight()
        if not mine:
            if flight.thread == threading.get_ident():
                message = f"{provider.target} asks the registry for its own offers while it is being imported"
                return Failure(provider, "import", RecursionError(message))
            if flight.landed.wait(PATIENCE):
                return self.once(key, provider, load)
        try:
            outcome = load()
            if mine:
                with self._lock:
                    self._outcomes[key] = outcome
        finally:
            if mine:
                with self._lock:
                    self._flights.pop(key, None)
                flight.landed.set()
        if mine and isinstance(outcome, Loaded):
            self._on_loaded(outcome)
        return outcome

    def _load(self, provider: Provider, declared: Mapping[str, list[str]] | None, ambient: bool) -> Loaded | Failure:
        stage = "import"
        registered: Any = None
        try:
            plugin = resolve(provider.target)
            stage = "validation"
            registered, found = self.register(provider.key, plugin, ambient)
            stage = "offers"
            offers = self.read_offers(provider.key, registered)
            if declared is not None:
                returned = {kind: [name for name, _ in its.values()] for kind, its in offers.items()}
                validation.check_against_metadata(provider.key, declared, returned)
        except BaseException as error:
            let_through(error)
            if registered is not None:
                self._forget(provider.key)
            return diagnosed(Failure(provider, stage, error))
        return Loaded(provider, registered, tuple(found), offers)

    def register(self, key: str, plugin: Any, ambient: bool) -> tuple[Any, list[validation.Implementation]]:
        """Check a plugin and register it under ``key``.

        Returns:
            What pluggy holds, and the implementations.

        Raises:
            PluginValidationError: it breaks the contract of the hooks; nothing is registered.
        """
        found = validation.implementations(self.manager, plugin)
        validation.check(key, plugin, found, ambient)
        with self._lock:
            if any(plugin is other for _, other in self.manager.list_name_plugin()):
                return plugin, found  # one module, offered by two distributions
            if self.manager.is_blocked(key):
                raise BrokenPluginError(f"The plugin {key!r} is blocked by a control.")
            held = plugin if validation.has_identity(plugin) else validation.Guest(found)
            try:
                self.manager.register(held, name=key)
                self.manager.check_pending()
            except (pluggy.PluginValidationError, ValueError) as error:
                self._forget(key)
                raise validation.unknown_hook(key, found, self._specified, error) from error
        return held, found

    def read_offers(self, key: str, plugin: Any) -> dict[str, dict[str, tuple[str, Callable[[], Any]]]]:
        """What one registered plugin offers, kind by kind. No other plugin is called."""
        offers = {}
        for kind in KINDS.values():
            answers = self.call_one(kind.hook, plugin)
            if answers:
                offers[kind.name] = validation.check_offers(key, kind.hook, answers[0])
        return offers

    def call_one(self, hook: str, plugin: Any, **arguments: Any) -> list[Any]:
        """Call a hook of one plugin alone."""
        others = [other for _, other in self.manager.list_name_plugin() if other is not None and other is not plugin]
        answers = self.manager.subset_hook_caller(hook, others)(**arguments)
        return answers if isinstance(answers, list) else [answers]

    # --- what was loaded

    def outcome(self, key: str) -> Any:
        """What became of a plugin: a Loaded, a Failure, or None if nobody has asked for it."""
        return self._outcomes.get(key)

    def loaded(self) -> list[Loaded]:
        """All plugins that are registered, but for the script's own."""
        with self._lock:
            return [outcome for outcome in self._outcomes.values() if isinstance(outcome, Loaded)]

    def failures(self) -> list[Failure]:
        """All that is quarantined."""
        with self._lock:
            return [outcome for outcome in self._outcomes.values() if isinstance(outcome, Failure)]

    def adopt(self, loaded: Loaded) -> None:
        """Take in a plugin that a script registered."""
        with self._lock:
            self._outcomes[loaded.provider.key] = loaded
        self._on_loaded(loaded)

    def quarantine(self, failure: Failure) -> None:
        """Take a plugin out; whoever asks for it from now on gets this failure."""
        with self._lock:
            self._forget(failure.provider.key)
            self._outcomes[failure.provider.key] = diagnosed(failure)

    def drop(self, key: str) -> None:
        """Forget a plugin, as if it had never been loaded."""
        with self._lock:
            self._forget(key)
            self._outcomes.pop(key, None)

    def drop_installed(self) -> None:
        """Forget all that came from installed distributions, failures included."""
        with self._lock:
            for outcome in [*self._outcomes.values()]:
                provider = getattr(outcome, "provider", None)
                if provider is None or provider.distribution not in (CORE, RUNTIME):
                    for key in [key for key, one in self._outcomes.items() if one is outcome]:
                        self.drop(key)

    def set_blocked(self, keys: Iterable[str]) -> None:
        """Let pluggy refuse these, and no others; one that is registered already is taken out."""
        with self._lock:
            wanted = set(keys)
            for key in self._blocked - wanted:
                self.manager.unblock(key)
                self._outcomes.pop(key, None)
            for key in wanted - self._blocked:
                self.manager.set_blocked(key)
                self._outcomes.pop(key, None)
            self._blocked = wanted

    def after_fork(self) -> None:
        """This is a new process: nobody else holds the lock or loads anything, and what failed may be tried again."""
        self._lock = threading.RLock()
        self._flights.clear()
        for failure in self.failures():
            self._outcomes.pop(failure.provider.key, None)

    def _forget(self, key: str) -> None:
        if self.manager.get_plugin(key) is not None:
            self.manager.unregister(name=key)


__all__ = ["Loaded", "PluginHost", "PluginValidationError"]
