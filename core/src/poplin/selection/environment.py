"""Which cluster environment: who this process is among all."""

from __future__ import annotations

from collections.abc import Mapping

from poplin import registry
from poplin.environments.environment import ClusterEnvironment
from poplin.errors import BrokenPluginError
from poplin.rank_zero import rank_zero_warn
from poplin.registry import Failure, Found
from poplin.selection.carried import Carried
from poplin.selection.common import (
    choose,
    created,
    first_line,
    instance_of,
    label,
    label_of,
    passed_over_failure,
)
from poplin.selection.request import Source
from poplin.selection.trace import PassedOver, Trace
from poplin.utilities.unwinding import let_through

_KIND = "environments"
#: Chosen where no other detects itself.
_LAST = "local"


def resolve_environment(plugins: Mapping[str, Source], carried: Carried, trace: Trace) -> ClusterEnvironment:
    """The environment: the one asked for, else the detecting one of highest priority, ``local`` last.

    Raises:
        ContradictionError: ``plugins=`` and the strategy object differ.
        LookupFailedError: the one asked for by name can't be had.
    """
    source = choose("cluster environment", (plugins.get(_KIND), carried.source("cluster_environment")))
    if source is None:
        return _detected(trace)
    if isinstance(source.value, str):
        found = registry.find(_KIND, source.value)
        trace.note("environment", found.name, f"asked for: {source.origin}", found.provider)
        return created(found, ClusterEnvironment)
    environment = instance_of(source.value, ClusterEnvironment, source.origin)
    trace.note("environment", type(environment).__name__, f"asked for: {source.origin}", label_of(environment))
    return environment


def _detected(trace: Trace) -> ClusterEnvironment:
    detecting: list[tuple[int, Found]] = []
    passed_over: list[PassedOver] = []
    for candidate in registry.role_candidates(_KIND, "auto"):
        if isinstance(candidate, Failure):
            passed_over.append(passed_over_failure(candidate))
            _warn_broken(label(candidate.provider), candidate.error)
            continue
        who = f"{candidate.name} ({label(candidate.provider)})"
        if candidate.name == _LAST:
            continue
        try:
            offer = candidate.target_class()
            here, priority = bool(offer.detect()), int(offer.priority)
        except BaseException as error:
            let_through(error)
            passed_over.append(PassedOver(who, f"its detection failed ({first_line(error)})"))
            _warn_broken(who, error)
            continue
        if here:
            detecting.append((priority, candidate))
        else:
            passed_over.append(PassedOver(who, "did not start this process"))
    if not detecting:
        found, reason = registry.find(_KIND, _LAST), "nothing else says that it started this process"
    else:
        detecting.sort(key=lambda item: -item[0])
        priority, found = detecting[0]
        reason = f"it started this process (detected, priority {priority})"
        passed_over += [
            PassedOver(f"{other.name} ({label(other.provider)})", f"detected too, priority {lower} against {priority}")
            for lower, other in detecting[1:]
        ]
    trace.note("environment", found.name, reason, found.provider, passed_over)
    return created(found, ClusterEnvironment)


def _warn_broken(who: str, error: BaseException) -> None:
    text = (
        f"The environment plugin {who} is broken ({first_line(error)}): whether it started this process is unknown. "
        "Repair it, uninstall it, or block it (POPLIN_DISABLE_PLUGINS)."
    )
    if registry.is_strict():
        raise BrokenPluginError(text) from error
    rank_zero_warn(f"{text} The run goes on without it.")
