"""One name looked up: the one offer that it means, or the error that says in which of the six ways it failed."""

from __future__ import annotations

from typing import NoReturn

from poplin.errors import (
    ArgumentValueError,
    BlockedNameError,
    BrokenPluginError,
    IncompatiblePluginError,
    NameConflictError,
    NotInstalledError,
    UnknownNameError,
)
from poplin.registry import known
from poplin.registry.catalogue import BLOCKED, FAILED, INCOMPATIBLE, Catalogue, Offer
from poplin.registry.kinds import KINDS, get_kind
from poplin.registry.names import Reference, fold, parse_reference
from poplin.registry.records import CORE


def locate(catalogue: Catalogue, kind: str, name: str) -> Offer:
    """The offer that ``name`` means. Nothing is imported.

    Args:
        catalogue: what there is.
        kind: the kind that is looked for.
        name: ``[kind/][dist:]name``.

    Raises:
        UnknownNameError: nobody offers it, and it belongs to no package that is known.
        NotInstalledError: a known package offers it, and is not installed.
        BlockedNameError: a control keeps it out.
        IncompatiblePluginError: its plugin is for another version of the core.
        NameConflictError: several offer it.
        BrokenPluginError: its metadata is at fault.
        ArgumentValueError: the reference can't be read, or names another kind.
    """
    kind = get_kind(kind).name
    reference = parse_reference(name)
    if reference.kind not in (None, kind):
        raise ArgumentValueError(f"{name!r} asks for one of the {reference.kind}; here, one of the {kind} is needed.")
    offers = catalogue.named(kind, reference.name, reference.distribution)
    usable = [offer for offer in offers if offer.is_usable]
    if not offers:
        _raise_unknown(catalogue, kind, reference)
    if not usable:
        _raise_kept_out(kind, reference, offers)
    built_in = [offer for offer in usable if offer.provider.distribution == CORE]
    if built_in and reference.distribution is None:
        return built_in[0]
    if len({offer.provider for offer in usable}) > 1:
        _raise_conflict(kind, reference, usable)
    return usable[0]


def _raise_kept_out(kind: str, reference: Reference, offers: list[Offer]) -> NoReturn:
    what = f"{KINDS[kind].singular} {reference.name!r}"
    by_status = {offer.status: offer for offer in offers}
    if BLOCKED in by_status:
        offer = by_status[BLOCKED]
        raise BlockedNameError(
            f"The {what} of {offer.provider} is installed and kept out: {offer.reason}. Change that variable (or leave "
            "out the -p no:… that set it) to use it."
        )
    if INCOMPATIBLE in by_status:
        offer = by_status[INCOMPATIBLE]
        raise IncompatiblePluginError(f"The {what} of {offer.provider} was skipped, unimported: {offer.reason}.")
    offer = by_status[FAILED]
    raise BrokenPluginError(f"The {what} of {offer.provider} is installed but broken: {offer.reason}.")


def _raise_conflict(kind: str, reference: Reference, usable: list[Offer]) -> NoReturn:
    choices = sorted({f"{offer.provider.distribution}:{offer.name}" for offer in usable})
    owners = sorted({f"{offer.provider} ({offer.provider.target}, {offer.provider.location})" for offer in usable})
    if len(choices) == 1:
        remedy = f"Update or uninstall {usable[0].provider.distribution}: one distribution must declare a name once."
    else:
        remedy = (
            f"Write {' or '.join(repr(choice) for choice in choices)}, or block one of them (POPLIN_DISABLE_PLUGINS)."
        )
    raise NameConflictError(
        f"The {KINDS[kind].singular} {reference.name!r} is offered more than once: by {' and by '.join(owners)}. "
        f"{remedy}"
    )


def _raise_unknown(catalogue: Catalogue, kind: str, reference: Reference) -> NoReturn:
    singular = KINDS[kind].singular
    if reference.distribution is None and fold(reference.name) in KINDS[kind].roles:
        raise UnknownNameError(
            f"{reference.name!r} is a role, for which plugins are asked, and no {singular} has this name. "
            f"The {kind} are {_listed(catalogue.names(kind))}."
        )
    if reference.distribution is not None:
        _raise_unknown_of(catalogue, kind, reference)
    packages = known.packages_offering(kind, reference.name)
    installed = {fold(offer.provider.distribution) for offer in catalogue.offers}
    absent = [package for package in packages if fold(package) not in installed]
    if absent:
        raise NotInstalledError(
            f"The {singular} {reference.name!r} is offered by the package {' or '.join(repr(one) for one in absent)}, "
            f"which is not installed. Install it: pip install {absent[0]}"
        )
    upgrade = f" A newer {packages[0]} offers it: pip install -U {packages[0]}." if packages else ""
    close = catalogue.close_to(kind, reference.name, known.names(kind))
    hint = f" Did you mean {' or '.join(repr(name) for name in close)}?" if close else ""
    raise UnknownNameError(
        f"There is no {singular} {reference.name!r}.{hint}{upgrade} The {kind} here are "
        f"{_listed(catalogue.names(kind))}; `poplin plugins` lists everything."
    )


def _raise_unknown_of(catalogue: Catalogue, kind: str, reference: Reference) -> NoReturn:
    """``dist:name``, and there is no such thing."""
    wanted = fold(reference.distribution or "")
    its = [offer for offer in catalogue.offers if fold(offer.provider.distribution) == wanted]
    if its:
        offered = [offer.name for offer in its if offer.kind == kind and not offer.is_role]
        raise UnknownNameError(
            f"{its[0].provider} is installed and offers no {KINDS[kind].singular} {reference.name!r}; its {kind}: "
            f"{_listed(sorted(offered))}."
        )
    if wanted in {fold(package) for package in known.packages()}:
        raise NotInstalledError(
            f"The package {reference.distribution!r} is not installed. Install it: pip install {reference.distribution}"
        )
    others = [offer.provider.distribution for offer in catalogue.named(kind, reference.name)]
    hint = f" {reference.name!r} is offered by {' and '.join(others)}." if others else ""
    raise UnknownNameError(
        f"No installed distribution {reference.distribution!r} offers anything to Poplin.{hint} "
        "`poplin plugins` lists all that do."
    )


def _listed(names: list[str]) -> str:
    return ", ".join(names) if names else "none"
