"""What loading the plugins of one distribution does to a process that has done nothing else. Prints JSON.

``python -m poplin.testing.suites.packaging_probe DISTRIBUTION``
"""

from __future__ import annotations

import atexit
import gc
import json
import logging
import os
import random
import signal
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from poplin import hookimpl, lazy, registry
from poplin.registry.catalogue import FAILED
from poplin.registry.kinds import KINDS
from poplin.registry.lazy import resolve
from poplin.registry.records import Failure
from poplin.registry.service import REGISTRY

_LIGHT = {"poplin", "pluggy", "packaging", "importlib_metadata", "zipp"}


def state() -> dict[str, str]:
    """What belongs to the whole process, as text that can be compared."""
    handlers = [(one.name, repr(signal.getsignal(one))) for one in signal.Signals if one in signal.valid_signals()]
    looks: dict[str, Callable[[], Any]] = {
        "environment variables": lambda: sorted(os.environ.items()),
        "sys.path": lambda: list(sys.path),
        "sys.meta_path": lambda: [repr(one) for one in sys.meta_path],
        "sys.excepthook": lambda: repr(sys.excepthook),
        "standard streams": lambda: [id(sys.stdin), id(sys.stdout), id(sys.stderr)],
        "warning filters": lambda: [repr(one) for one in warnings.filters],
        "signal handlers": lambda: handlers_now(),
        "threads": lambda: sorted(thread.name for thread in threading.enumerate()),
        "atexit callbacks": lambda: atexit._ncallbacks(),
        "root logger": lambda: [logging.root.level, [repr(one) for one in logging.root.handlers]],
        "random state": lambda: hash(random.getstate()),
        "working directory": os.getcwd,
        "socket timeout": socket.getdefaulttimeout,
        "garbage collector": gc.get_threshold,
    }

    def handlers_now() -> list[tuple[str, str]]:
        return [(name, repr(signal.getsignal(signal.Signals[name]))) for name, _ in handlers]

    return {name: repr(look()) for name, look in looks.items()}


def probe(distribution: str) -> dict[str, Any]:
    """Load every plugin of ``distribution``, and tell what came of it.

    Returns:
        ``heavy``: packages that were imported beside its own; ``changed``: what of the process is not as it was;
        ``import_failed``, ``mismatch`` and ``hooks_failed``: text for each plugin with such a fault;
        ``factories_failed``: text for each callbacks factory that can't be had or called.
    """
    hookimpl(lambda: None)
    lazy("a:b")
    current = REGISTRY.catalogue(warn_of_controls=False)
    mine = [offer for offer in current.offers if offer.provider.distribution == distribution]
    providers = list(dict.fromkeys(offer.provider for offer in mine if offer.kind in (*KINDS, "ambient")))
    told: dict[str, Any] = {"import_failed": [], "mismatch": [], "hooks_failed": []}
    told["names_failed"] = [offer.reason for offer in mine if offer.status == FAILED]
    warnings.filterwarnings("default", message="(the first use sorts out the filters)")
    before, modules = state(), set(sys.modules)
    for provider in providers:
        try:
            resolve(provider.target)
        except BaseException as error:
            told["import_failed"].append("".join(traceback.format_exception(error)))
            continue
        loaded = REGISTRY.load(provider)
        if isinstance(loaded, Failure):
            kind = "mismatch" if "its metadata disagree" in str(loaded.error) else "hooks_failed"
            told[kind].append(f"{loaded.stage}: {type(loaded.error).__name__}: {loaded.error}")
    after = state()
    told["changed"] = [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]
    own = {provider.target.partition(":")[0].partition(".")[0] for provider in providers}
    packages = {name.partition(".")[0] for name in set(sys.modules) - modules}
    told["heavy"] = sorted(packages - own - _LIGHT - set(sys.stdlib_module_names))
    told["factories_failed"] = list(_failed_factories(distribution))  # last: they may import whatever they like
    return told


def _failed_factories(distribution: str) -> Iterator[str]:
    """The callbacks factories that can't be had or called, as they would fail for each Fabric."""
    for factory in REGISTRY.callback_factories():
        if factory.provider.distribution != distribution:
            continue
        error = factory.error
        if factory.function is not None:
            try:
                factory.function()
            except BaseException as failure:  # as above: whatever would end a script
                error = failure
        if error is not None:
            yield f"{factory.name}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    registry.names("strategies")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a plugin prints is no answer
    print(json.dumps(probe(sys.argv[1])), file=answers)
