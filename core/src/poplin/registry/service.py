"""The registry of a process: discovery, catalogue, host and the script's own registrations, put together."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from typing import Any

from poplin.errors import BrokenPluginError
from poplin.registry import catalogue, discovery, factories, roles
from poplin.registry.binaries import diagnosed
from poplin.registry.catalogue import BLOCKED, INCOMPATIBLE, Catalogue, Offer
from poplin.registry.complaints import Complaints
from poplin.registry.controls import ALLOW, BLOCK, STRICT, read_controls
from poplin.registry.conversation import Conversation
from poplin.registry.kinds import AMBIENT, CALLBACKS, KINDS
from poplin.registry.lookup import locate
from poplin.registry.manager import Loaded, PluginHost
from poplin.registry.names import fold
from poplin.registry.owners import Owners
from poplin.registry.records import (
    CORE,
    RUNTIME,
    CallbackFactory,
    Failure,
    Found,
    Provider,
    Row,
    broken,
)
from poplin.registry.runtime import Registrations
from poplin.registry.torch_once import TorchOnce, torch_error

_SPECS = "poplin.registry.hookspecs"


class Registry:
    """What the functions of ``poplin.registry`` work on. There is one in each process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._scan: tuple[Any, discovery.Scan] | None = None
        self._catalogue: tuple[Any, Catalogue] | None = None
        self._controls_checked = False
        self._host: PluginHost | None = None
        self.own = Registrations()
        self.owners = Owners()
        self.complaints = Complaints()
        self.conversation = Conversation(lambda: self.host, self.load, self.catalogue, self.complaints)
        self._looked_up: set[tuple[str, str, str]] = set()
        self._offer_failures: dict[tuple[str, str, str], Failure] = {}
        self._remarks: dict[tuple[str, str, str], str] = {}
        os.register_at_fork(after_in_child=self._after_fork)

    # --- what there is

    @property
    def host(self) -> PluginHost:
        """The host of the plugins."""
        with self._lock:
            if self._host is None:
                self._host = PluginHost(importlib.import_module(_SPECS), self.conversation.catch_up)
            return self._host

    def scan(self) -> discovery.Scan:
        """What is installed: one look over ``sys.path`` in each process, and another when that has changed."""
        key = (tuple(sys.path), os.getpid())
        with self._lock:
            if self._scan is None or self._scan[0] != key:
                self._scan = (key, discovery.scan(sys.path))
            return self._scan[1]

    def catalogue(self, warn_of_controls: bool = True) -> Catalogue:
        """All that can be looked up, under the controls that are in force now.

        Args:
            warn_of_controls: whether a control that matches nothing is warned about. (Not while a script registers
                what it may be about.)
        """
        variables = tuple(os.environ.get(variable) for variable in (ALLOW, BLOCK, STRICT))
        with self._lock:
            found = self.scan()
            key = (found, variables, self.own.version)
            if self._catalogue is None or self._catalogue[0] != key:
                self._catalogue = (key, self._new_catalogue(found))
                self._controls_checked = False
            current = self._catalogue[1]
            to_check = warn_of_controls and not self._controls_checked
            self._controls_checked = self._controls_checked or to_check
        if to_check:
            self.complaints.of_controls(current)
        return current

    def _new_catalogue(self, found: discovery.Scan) -> Catalogue:
        from poplin import __version__

        declared = [
            *self._built_in(__version__),
            *catalogue.declared_offers(found.distributions),
            *catalogue.own_offers(self.own),
        ]
        incompatible = catalogue.incompatible_distributions(found.distributions, __version__)
        new = Catalogue(declared, read_controls(), incompatible)
        self.host.set_blocked(new.blocked_plugins)
        return new

    def refresh(self) -> None:
        """Forget what is installed and what was loaded, but nothing that the script registered."""
        importlib.invalidate_caches()
        with self._lock:
            self._scan = self._catalogue = None
            self._offer_failures.clear()
            self._remarks.clear()
            self._looked_up.clear()
            self.complaints.forget()
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
                self.complaints.once(
                    (INCOMPATIBLE, offer.provider.key), f"The plugin {offer.provider} is left out: {offer.reason}."
                )
        return [offer.provider for offer in current.of_kind(AMBIENT) if offer.is_usable]

    def load_ambient(self) -> None:
        """Load the ambient plugins, each once. One that fails is a warning that names it; in strict mode, an error."""
        for provider in self.ambient_providers():
            self.conversation.load_or_complain(provider)

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
        with TorchOnce(lambda: torch_error(self.failures())):
            for offer in current.offers:
                if offer.is_usable and offer.kind != CALLBACKS:
                    self._load_offer(offer, current)
            self.callback_factories()

    def _load_offer(self, offer: Offer, current: Catalogue) -> None:
        loaded = self.load(offer.provider, current)
        if isinstance(loaded, Loaded) and offer.kind in KINDS and not offer.is_role:
            self._looked_up.add((offer.kind, offer.folded, offer.provider.key))
            self._note_roles(offer, self._found(offer, loaded).check_target())

    def _note_roles(self, offer: Offer, target: Any) -> None:
        remark = roles.remark(offer.kind, self.undeclared_roles(offer.kind, target, offer.provider))
        self._remarks[offer.kind, offer.folded, offer.provider.key] = remark

    def undeclared_roles(self, kind: str, target: Any, provider: Provider) -> list[str]:
        """The roles that a class takes, and for which its plugin is never asked."""
        if provider.distribution in (CORE, RUNTIME):  # which need no metadata
            return []
        its = [offer for offer in self.catalogue().of_kind(kind) if offer.provider.key == provider.key]
        return roles.undeclared(kind, target, [offer.name for offer in its if offer.is_role])

    def _row(self, offer: Offer) -> Row:
        remark = self._remarks.get((offer.kind, offer.folded, offer.provider.key), "")
        status, reason = offer.status, offer.reason or offer.note or remark
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

    # --- what failed

    def failures(self) -> list[Failure]:
        """All that failed: plugins, and single offers."""
        return [*self.host.failures(), *self._offer_failures.values()]

    def is_strict(self) -> bool:
        """Whether what would be a warning about a plugin is an error (``POPLIN_STRICT_PLUGINS``)."""
        return read_controls().strict

    def _after_fork(self) -> None:
        self._lock = threading.RLock()
        self.conversation.after_fork()
        self.owners.after_fork()
        if self._host is not None:
            self._host.after_fork()
        self.complaints.forget()


#: The registry of this process.
REGISTRY = Registry()
