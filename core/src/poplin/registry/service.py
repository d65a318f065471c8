"""The registry of a process: discovery, catalogue, host and the script's own registrations, put together."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterable
from typing import Any

from poplin.errors import BrokenPluginError
from poplin.registry import calling, catalogue, discovery, factories
from poplin.registry.catalogue import BLOCKED, INCOMPATIBLE, Catalogue, Offer
from poplin.registry.controls import ALLOW, BLOCK, STRICT, Word, read_controls
from poplin.registry.kinds import AMBIENT, CALLBACKS, KINDS
from poplin.registry.lifecycle import LiveFabrics
from poplin.registry.lookup import locate
from poplin.registry.manager import Loaded, PluginHost
from poplin.registry.notices import warn
from poplin.registry.owners import Owners
from poplin.registry.records import (
    CORE,
    RUNTIME,
    Answer,
    CallbackFactory,
    Failure,
    Found,
    Provider,
    Row,
    broken,
)
from poplin.registry.runtime import Registrations

_SPECS = "poplin.registry.hookspecs"


class Registry:
    """What the functions of ``poplin.registry`` work on. There is one in each process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._scan: tuple[Any, discovery.Scan] | None = None
        self._catalogue: tuple[Any, Catalogue] | None = None
        self._host: PluginHost | None = None
        self.own = Registrations()
        self.owners = Owners()
        self._live = LiveFabrics()
        self._looked_up: set[tuple[str, str, str]] = set()
        self._offer_failures: dict[tuple[str, str, str], Failure] = {}
        self._warned: set[Any] = set()
        os.register_at_fork(after_in_child=self._after_fork)

    # --- what there is

    @property
    def host(self) -> PluginHost:
        """The host of the plugins."""
        with self._lock:
            if self._host is None:
                self._host = PluginHost(importlib.import_module(_SPECS), self._tell_of_live_fabrics)
            return self._host

    def scan(self) -> discovery.Scan:
        """What is installed: one look over ``sys.path`` in each process, and another when that has changed."""
        key = (tuple(sys.path), os.getpid())
        with self._lock:
            if self._scan is None or self._scan[0] != key:
                self._scan = (key, discovery.scan(sys.path))
            return self._scan[1]

    def catalogue(self) -> Catalogue:
        """All that can be looked up, under the controls that are in force now."""
        variables = tuple(os.environ.get(variable) for variable in (ALLOW, BLOCK, STRICT))
        with self._lock:
            found = self.scan()
            key = (id(found), variables, self.own.version)
            if self._catalogue is not None and self._catalogue[0] == key:
                return self._catalogue[1]
            from poplin import __version__

            distributions = [one for one in found.distributions if one.name != CORE]
            declared = [
                *self._built_in(__version__),
                *catalogue.declared_offers(distributions),
                *catalogue.own_offers(self.own),
            ]
            incompatible = catalogue.incompatible_distributions(distributions, __version__)
            new = Catalogue(declared, read_controls(), incompatible)
            self._catalogue = (key, new)
            self.host.set_blocked(new.blocked_plugins)
        self._warn_of_unmatched(new)
        return new

    def refresh(self) -> None:
        """Forget what is installed and what was loaded, but nothing that the script registered."""
        importlib.invalidate_caches()
        with self._lock:
            self._scan = self._catalogue = None
            self._offer_failures.clear()
            self._looked_up.clear()
            self._warned.clear()
            self.host.drop_installed()

    def _built_in(self, version: str) -> list[Offer]:
        location = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        offers = []
        for kind in KINDS.values():
            provider = Provider(CORE, version, kind.builtin, location)
            loaded = self.host.load(provider, None, ambient=False)
            if isinstance(loaded, Failure):
                raise broken(loaded) from loaded.error
            offers += [Offer(kind.name, name, provider) for name, _ in loaded.offers.get(kind.name, {}).values()]
        return offers

    # --- one name

    def find(self, kind: str, name: str) -> Found:
        """Look one name up and load the one plugin that offers it."""
        current = self.catalogue()
        offer = locate(current, kind, name)
        loaded = self.load(offer.provider, current)
        if isinstance(loaded, Failure):
            raise broken(loaded.of(offer.kind, offer.name)) from loaded.error
        self._looked_up.add((offer.kind, offer.folded, offer.provider.key))
        return self._found(offer, loaded)

    def load(self, provider: Provider, current: Catalogue | None = None) -> Loaded | Failure:
        """Load a plugin, once, if the controls let it in."""
        current = current if current is not None else self.catalogue()
        if provider.distribution == RUNTIME:
            outcome = self.host.outcome(provider.key)
            own = outcome if isinstance(outcome, Failure) else self.own.loaded_by(provider)
            return own if own is not None else Failure(provider, "import", LookupError("it is no longer registered"))
        if provider.distribution == CORE:
            return self.host.load(provider, None, ambient=False)
        if provider.key in current.blocked_keys:
            return Failure(provider, BLOCKED, BrokenPluginError("it is kept out by a control, or incompatible"))
        return self.host.load(provider, current.declared_names(provider), current.is_ambient(provider))

    def _found(self, offer: Offer, loaded: Loaded) -> Found:
        if offer.provider.distribution == RUNTIME:
            make = self.own.names[offer.kind, offer.folded].offer
        else:
            make = loaded.offers[offer.kind][offer.folded][1]
        return Found(offer.kind, offer.name, offer.provider, make, self._note_failure, self.owners.note)

    def _note_failure(self, failure: Failure) -> Failure:
        from poplin.registry.binaries import diagnosed
        from poplin.registry.names import fold

        failure = diagnosed(failure)
        self._offer_failures[failure.kind or "", fold(failure.name or ""), failure.provider.key] = failure
        return failure

    # --- several

    def role_candidates(self, kind: str, role: str) -> list[Found | Failure]:
        """Every offer of the plugins that declared the role, of the built-ins, and of what the script registered."""
        current = self.catalogue()
        candidates: list[Found | Failure] = []
        asked = {provider.key for provider in self.role_providers(kind, role)}
        incompatible = {
            offer.provider: offer
            for offer in current.of_kind(kind)
            if offer.is_role and offer.name == role and offer.status == INCOMPATIBLE
        }
        for provider, offer in incompatible.items():
            candidates.append(Failure(provider, INCOMPATIBLE, BrokenPluginError(offer.reason), kind))
        failed: set[str] = set()
        for offer in current.of_kind(kind):
            provider = offer.provider
            if offer.provider.distribution not in (CORE, RUNTIME) and provider.key not in asked:
                continue
            if not offer.is_usable or provider.key in failed:
                continue
            loaded = self.load(provider, current)
            if isinstance(loaded, Failure):
                failed.add(provider.key)
                candidates.append(loaded.of(kind, None))
            elif not offer.is_role:
                candidates.append(self._found(offer, loaded))
        return candidates

    def role_providers(self, kind: str, role: str) -> list[Provider]:
        """The plugins that declared a role and may take it."""
        return [
            offer.provider
            for offer in self.catalogue().of_kind(kind)
            if offer.is_role and offer.name == role and offer.is_usable
        ]

    def ambient_providers(self) -> list[Provider]:
        """The ambient plugins that may take part, and the script's own plugin objects."""
        current = self.catalogue()
        for offer in current.of_kind(AMBIENT):
            if offer.status == INCOMPATIBLE:
                self._warn_once(
                    (INCOMPATIBLE, offer.provider.key), f"The plugin {offer.provider} is left out: {offer.reason}."
                )
        return [offer.provider for offer in current.of_kind(AMBIENT) if offer.is_usable]

    def load_ambient(self) -> None:
        """Load the ambient plugins, each once. One that fails is a warning that names it; in strict mode, an error."""
        for provider in self.ambient_providers():
            self._load_or_warn(provider)

    def callback_factories(self) -> list[CallbackFactory]:
        """The functions of installed packages that make callbacks, each once."""
        offers = [offer for offer in self.catalogue().of_kind(CALLBACKS) if offer.is_usable]
        return factories.load(self.host, offers)

    def rows(self, load: bool) -> list[Row]:
        """Everything, one row for each declared name."""
        if load:
            self._load_everything()
        return [self._row(offer) for offer in self.catalogue().offers]

    def _load_everything(self) -> None:
        current = self.catalogue()
        for offer in current.offers:
            if offer.is_usable and offer.kind != CALLBACKS:
                loaded = self.load(offer.provider, current)
                if isinstance(loaded, Loaded) and offer.kind in KINDS and not offer.is_role:
                    self._looked_up.add((offer.kind, offer.folded, offer.provider.key))
                    self._found(offer, loaded).check_target()
        self.callback_factories()

    def _row(self, offer: Offer) -> Row:
        status, reason = offer.status, offer.reason or offer.note
        if offer.is_usable:
            failure = self._failure_of(offer)
            if failure is not None:
                status, reason = catalogue.FAILED, failure.reason
            elif status == catalogue.AVAILABLE and self._is_loaded(offer):
                status = "loaded"
        return Row(offer.kind, offer.name, *offer.provider, status, reason)

    def _failure_of(self, offer: Offer) -> Failure | None:
        key = factories.key_of(offer.provider) if offer.kind == CALLBACKS else offer.provider.key
        outcome = self.host.outcome(key)
        if isinstance(outcome, Failure):
            return outcome
        return self._offer_failures.get((offer.kind, offer.folded, offer.provider.key))

    def _is_loaded(self, offer: Offer) -> bool:
        if offer.kind == CALLBACKS:
            return self.host.outcome(factories.key_of(offer.provider)) is not None
        if offer.provider.distribution == CORE:  # their modules are read for their names
            return (offer.kind, offer.folded, offer.provider.key) in self._looked_up
        return offer.provider.distribution == RUNTIME or self.host.outcome(offer.provider.key) is not None

    # --- hooks

    def ask(self, hook: str, providers: Iterable[Provider], /, **arguments: Any) -> tuple[Any, list[Answer]]:
        """Call a selection hook of these plugins, in this order; one that fails is taken out, and the rest asked again.

        Returns:
            The outcome, and each plugin's answer in the order of asking; then those that failed.
        """
        failed: list[Answer] = []
        plugins: list[Loaded] = []
        for provider in dict.fromkeys(providers):
            loaded = self._load_or_warn(provider)
            if isinstance(loaded, Failure):
                failed.append(Answer(provider, None, loaded.error))
            elif loaded.implements(hook) and all(loaded.plugin is not other.plugin for other in plugins):
                plugins.append(loaded)
        while True:
            outcome = calling.call(self.host.specs, hook, plugins, arguments)
            culprit = outcome.culprit
            if culprit is None or culprit.error is None:
                return outcome.value, [*outcome.answers, *failed]
            failed.append(culprit)
            plugins = [loaded for loaded in plugins if loaded.provider != culprit.provider]
            self._quarantine(Failure(culprit.provider, f"call of {hook}", culprit.error))

    def tell(self, hook: str, fabric: Any) -> list[Answer]:
        """Call a lifecycle hook of every registered plugin, one by one; what one raises is a warning."""
        self._live.note(hook, fabric)
        blocked = self.catalogue().blocked_keys
        plugins = sorted(self.host.loaded(), key=lambda loaded: catalogue.rank(loaded.provider))
        return [
            self._tell_one(loaded, hook, fabric)
            for loaded in plugins
            if loaded.implements(hook) and loaded.provider.key not in blocked
        ]

    def _tell_one(self, loaded: Loaded, hook: str, fabric: Any) -> Answer:
        try:
            self.host.call_one(hook, loaded.plugin, fabric=fabric)
        except (Exception, SystemExit) as error:
            failure = Failure(loaded.provider, f"call of {hook}", error)
            self.host.quarantine(failure)
            self._warn_of_failure(failure)
            return Answer(loaded.provider, None, error)
        return Answer(loaded.provider, None)

    def _tell_of_live_fabrics(self, loaded: Loaded) -> None:
        def tell(hook: str, fabric: Any) -> None:
            if loaded.implements(hook):
                self._tell_one(loaded, hook, fabric)

        self._live.replay(tell)

    # --- what fails

    def _load_or_warn(self, provider: Provider) -> Loaded | Failure:
        loaded = self.load(provider)
        if isinstance(loaded, Failure) and loaded.stage != BLOCKED:
            self._raise_or_warn(loaded)
        return loaded

    def _quarantine(self, failure: Failure) -> None:
        self.host.quarantine(failure)
        self._raise_or_warn(failure)

    def _raise_or_warn(self, failure: Failure) -> None:
        if self.is_strict():
            raise broken(failure) from failure.error
        self._warn_of_failure(failure)

    def _warn_of_failure(self, failure: Failure) -> None:
        self._warn_once(
            (failure.provider.key, failure.stage),
            f"{broken(failure)}\nThe run goes on without it. (POPLIN_STRICT_PLUGINS=1 makes this an error.)",
        )

    def _warn_of_unmatched(self, current: Catalogue) -> None:
        for word, hits in current.hits().items():
            if not hits:
                self._warn_once(("control", word.variable, word.text), _unmatched(current, word))

    def _warn_once(self, key: Any, message: str) -> None:
        with self._lock:
            if key in self._warned:
                return
            self._warned.add(key)
        warn(message)

    def failures(self) -> list[Failure]:
        """All that failed: plugins, and single offers."""
        return [*self.host.failures(), *self._offer_failures.values()]

    def is_strict(self) -> bool:
        """Whether what would be a warning about a plugin is an error (``POPLIN_STRICT_PLUGINS``)."""
        return read_controls().strict

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self._live.after_fork()
        if self._host is not None:
            self._host.after_fork()
        self._warned.clear()


def _unmatched(current: Catalogue, word: Word) -> str:
    import difflib

    from poplin.registry.names import fold

    if word.reference is None:
        return f"{word.variable}: {word.text!r} can't be read and has no effect. The form is [kind/][dist:]name."
    words = {fold(offer.name): offer.name for offer in current.offers}
    words |= {fold(offer.provider.distribution): offer.provider.distribution for offer in current.offers}
    close = difflib.get_close_matches(fold(word.reference.name), list(words), n=3)
    hint = f" Did you mean {' or '.join(repr(words[match]) for match in close)}?" if close else ""
    return f"{word.variable}: {word.text!r} matches no installed plugin and no name, so it has no effect.{hint}"


#: The registry of this process.
REGISTRY = Registry()
