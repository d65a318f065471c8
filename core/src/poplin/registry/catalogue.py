"""What can be looked up: every declared name with its state. Built from metadata, controls and the script's own."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from poplin.registry.compatibility import incompatibility
from poplin.registry.controls import Controls, Word
from poplin.registry.discovery import Distribution
from poplin.registry.kinds import AMBIENT, CALLBACKS, GROUPS, KINDS
from poplin.registry.names import fold, is_registrable
from poplin.registry.records import CORE, RUNTIME, Provider
from poplin.registry.runtime import Registrations

AVAILABLE, ROLE, BLOCKED, CONFLICT, INCOMPATIBLE, FAILED = (
    "available",
    "role",
    "blocked",
    "conflict",
    "incompatible",
    "failed",
)


@dataclass(frozen=True)
class Offer:
    """One declared name."""

    kind: str
    name: str
    provider: Provider
    status: str = AVAILABLE
    reason: str = ""
    is_role: bool = False
    #: What its registration says of it.
    note: str = ""

    @property
    def folded(self) -> str:
        """The form in which its name is compared."""
        return fold(self.name)

    @property
    def is_usable(self) -> bool:
        """Whether a look-up may come to it."""
        return self.status in (AVAILABLE, ROLE, CONFLICT)


class Catalogue:
    """All offers, sorted: by kind, name and distribution.

    Args:
        declared: the offers as they were declared, all of them available or roles.
        controls: what the environment says.
        incompatible: distribution → why it does not fit this core.
    """

    def __init__(self, declared: Iterable[Offer], controls: Controls, incompatible: dict[str, str]) -> None:
        self.controls = controls
        order = {kind: number for number, kind in enumerate([*KINDS, AMBIENT, CALLBACKS])}
        offers = sorted(
            declared,
            key=lambda offer: (order[offer.kind], offer.is_role, offer.folded, *rank(offer.provider), offer.name),
        )
        self._declared = offers
        offers = [self._controlled(offer, incompatible) for offer in offers]
        offers = [self._role_controlled(offer, offers) if offer.is_role else offer for offer in offers]
        self.offers: list[Offer] = _with_conflicts(offers)
        self._by_kind: dict[str, list[Offer]] = defaultdict(list)
        for offer in self.offers:
            self._by_kind[offer.kind].append(offer)

    def of_kind(self, kind: str) -> list[Offer]:
        """All offers and roles of a kind."""
        return self._by_kind.get(kind, [])

    def named(self, kind: str, name: str, distribution: str | None = None) -> list[Offer]:
        """The offers (no roles) of that name, whatever their state."""
        return [
            offer
            for offer in self.of_kind(kind)
            if not offer.is_role
            and offer.folded == fold(name)
            and (distribution is None or fold(distribution) == fold(offer.provider.distribution))
        ]

    def names(self, kind: str) -> list[str]:
        """What can be asked for now, sorted."""
        usable = {offer.folded: offer.name for offer in self.of_kind(kind) if offer.is_usable and not offer.is_role}
        return sorted(usable.values())

    def close_to(self, kind: str, name: str, others: Iterable[str] = ()) -> list[str]:
        """Names of that kind that ``name`` may have meant."""
        candidates = {fold(candidate): candidate for candidate in [*others, *self.names(kind)]}
        return [candidates[match] for match in difflib.get_close_matches(fold(name), list(candidates), n=3)]

    def declared_names(self, provider: Provider) -> dict[str, list[str]]:
        """Kind → the names (no roles) that metadata declares for this plugin, those kept out included."""
        names: dict[str, list[str]] = defaultdict(list)
        for offer in self.offers:
            if offer.provider.key == provider.key and offer.kind in KINDS and not offer.is_role:
                names[offer.kind].append(offer.name)
        return dict(names)

    def is_ambient(self, provider: Provider) -> bool:
        """Whether metadata declares this plugin as ambient."""
        return any(offer.provider.key == provider.key for offer in self.of_kind(AMBIENT))

    @cached_property
    def blocked_keys(self) -> frozenset[str]:
        """Plugins of which nothing at all may take part."""
        usable = {offer.provider.key for offer in self.offers if offer.status not in (BLOCKED, INCOMPATIBLE)}
        return frozenset(offer.provider.key for offer in self.offers) - usable

    @property
    def blocked_plugins(self) -> list[str]:
        """Those of them that are installed plugins: pluggy need not hear of the built-ins and the script's own."""
        return [key for key in self.blocked_keys if key.partition("/")[0] not in (CORE, RUNTIME)]

    def hits(self) -> dict[Word, list[str]]:
        """What each word of the controls means here."""
        return {
            word: [
                f"{offer.kind}/{offer.name} of {offer.provider.distribution}"
                for offer in self._declared
                if word.matches(offer.kind, offer.name, offer.provider.distribution)
            ]
            for word in self.controls.words
        }

    def _controlled(self, offer: Offer, incompatible: dict[str, str]) -> Offer:
        if offer.status == FAILED:
            return offer
        if reason := self.controls.verdict(offer.kind, offer.name, offer.provider.distribution):
            return replace(offer, status=BLOCKED, reason=reason)
        if reason := incompatible.get(offer.provider.distribution, ""):
            return replace(offer, status=INCOMPATIBLE, reason=reason)
        return offer

    def _role_controlled(self, role: Offer, offers: Sequence[Offer]) -> Offer:
        """A role goes with the names for which it stands: it is in while one is, if it is not blocked itself."""
        siblings = [
            offer
            for offer in offers
            if offer.provider.key == role.provider.key and offer.kind == role.kind and not offer.is_role
        ]
        by_name = any(word.matches(role.kind, role.name, role.provider.distribution) for word in self.controls.block)
        if role.status == BLOCKED and not by_name and any(offer.status == AVAILABLE for offer in siblings):
            return replace(role, status=ROLE, reason="")
        if role.status == ROLE and siblings and all(offer.status == BLOCKED for offer in siblings):
            return replace(role, status=BLOCKED, reason=siblings[0].reason)
        return role


def declared_offers(distributions: Iterable[Distribution]) -> list[Offer]:
    """What the metadata of installed distributions declares."""
    return [
        _declared(
            GROUPS[entry.group],
            entry.name,
            Provider(distribution.name, distribution.version, entry.value, distribution.location),
        )
        for distribution in distributions
        for entry in dict.fromkeys(entry._replace(group=_first_group(entry.group)) for entry in distribution.entries)
    ]


def own_offers(own: Registrations) -> list[Offer]:
    """What the script registered: its names, and its plugin objects that implement other hooks."""
    offer_hooks = {kind.hook for kind in KINDS.values()}
    offers = [Offer(one.kind, one.name, one.provider, note=one.description) for one in own.names.values()]
    for _, loaded in own.objects:
        if any(implementation.hook not in offer_hooks for implementation in loaded.implementations):
            offers.append(Offer(AMBIENT, loaded.provider.target.rpartition(":")[2], loaded.provider))
    return offers


def incompatible_distributions(distributions: Iterable[Distribution], core_version: str) -> dict[str, str]:
    """Distribution → why it does not fit this core, for those that do not."""
    reasons = {found.name: incompatibility(found.name, found.requires, core_version) for found in distributions}
    return {name: reason for name, reason in reasons.items() if reason}


def _first_group(group: str) -> str:
    """One group stands for all that declare the same kind."""
    return next(first for first, kind in GROUPS.items() if kind == GROUPS[group])


def _declared(kind: str, name: str, provider: Provider) -> Offer:
    if kind not in KINDS:
        return Offer(kind, name, provider)
    if fold(name) in KINDS[kind].roles:
        return Offer(kind, fold(name), provider, ROLE, is_role=True)
    if not is_registrable(name):
        reason = (
            f"the name {name!r} can't be registered: lower-case letters and digits, with '.', '_', '-' between them"
        )
        return Offer(kind, name, provider, FAILED, reason)
    return Offer(kind, name, provider)


def _with_conflicts(offers: list[Offer]) -> list[Offer]:
    """Mark the names that several offer, unless the built-in one is among them: that one counts."""
    rivals: dict[tuple[str, str], list[Offer]] = defaultdict(list)
    for offer in offers:
        if offer.kind in KINDS and offer.status == AVAILABLE:
            rivals[offer.kind, offer.folded].append(offer)
    result = []
    for offer in offers:
        others = [other for other in rivals.get((offer.kind, offer.folded), ()) if other.provider != offer.provider]
        if offer.status == AVAILABLE and others and offer.provider.distribution != CORE:
            offer = replace(offer, status=CONFLICT, reason=_conflict(offer, others))
        result.append(offer)
    return result


def _conflict(offer: Offer, others: Sequence[Offer]) -> str:
    distributions = list(dict.fromkeys(other.provider.distribution for other in others))
    if CORE in distributions:
        reference = f"{offer.provider.distribution}:{offer.name}"
        return f"the built-in {offer.name!r} can't be shadowed; {reference!r} picks this one"
    if distributions == [offer.provider.distribution]:
        return f"{offer.provider.distribution} declares this name for several plugins: a fault of its metadata"
    return f'also offered by {", ".join(distributions)}; "{offer.provider.distribution}:{offer.name}" picks this one'


def rank(provider: Provider) -> tuple[int, str, str]:
    """By what plugins are ordered: the built-ins first, then by distribution, what the script registered last."""
    place = {CORE: 0, RUNTIME: 2}.get(provider.distribution, 1)
    return place, fold(provider.distribution), provider.target
