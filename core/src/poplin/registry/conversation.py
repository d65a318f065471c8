"""Selection hooks, asked together; lifecycle hooks, told one by one. One plugin that fails spoils it for nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from poplin.registry import calling
from poplin.registry.catalogue import BLOCKED, Catalogue, rank
from poplin.registry.complaints import Complaints
from poplin.registry.lifecycle import LiveFabrics
from poplin.registry.manager import Loaded, PluginHost
from poplin.registry.records import Answer, Failure, Provider
from poplin.utilities.unwinding import let_through


class Conversation:
    """Talks to the plugins of one host.

    Args:
        host: gives the host.
        load: loads a plugin.
        catalogue: gives the catalogue.
        complaints: hears of failures.
    """

    def __init__(
        self,
        host: Callable[[], PluginHost],
        load: Callable[[Provider], Loaded | Failure],
        catalogue: Callable[[], Catalogue],
        complaints: Complaints,
    ) -> None:
        self._host = host
        self._load = load
        self._catalogue = catalogue
        self._complaints = complaints
        self._live = LiveFabrics()

    def ask(self, hook: str, providers: Iterable[Provider], /, **arguments: Any) -> tuple[Any, list[Answer]]:
        """Call a selection hook of these plugins, in this order; one that fails is taken out, and the rest asked again.

        Returns:
            The outcome, and each plugin's answer in the order of asking; then those that failed.

        Raises:
            SelectionError: a plugin vetoed (``poplin_check_selection`` only).
            BrokenPluginError: a plugin failed, and the controls are strict.
        """
        failed: list[Answer] = []
        plugins: list[Loaded] = []
        for provider in dict.fromkeys(providers):
            loaded = self.load_or_complain(provider)
            if isinstance(loaded, Failure):
                failed += [Answer(provider, None, loaded.error)] if loaded.stage != BLOCKED else []
            elif loaded.implements(hook) and all(loaded.plugin is not other.plugin for other in plugins):
                plugins.append(loaded)
        while True:
            outcome = calling.call(self._host().specs, hook, plugins, arguments)
            culprit = outcome.culprit
            if culprit is None or culprit.error is None:
                return outcome.value, [*outcome.answers, *failed]
            failed.append(culprit)
            plugins = [loaded for loaded in plugins if loaded.provider != culprit.provider]
            failure = Failure(culprit.provider, f"call of {hook}", culprit.error)
            self._host().quarantine(failure)
            self._complaints.raise_or_warn(failure)

    def tell(self, hook: str, fabric: Any) -> list[Answer]:
        """Call a lifecycle hook of every registered plugin, one by one; what one raises is a warning."""
        self._live.note(hook, fabric)
        blocked = self._catalogue().blocked_keys
        plugins = sorted(self._host().loaded(), key=lambda loaded: rank(loaded.provider))
        return [
            self._tell_one(loaded, hook, fabric)
            for loaded in plugins
            if loaded.implements(hook) and loaded.provider.key not in blocked
        ]

    def catch_up(self, loaded: Loaded) -> None:
        """Tell a plugin that was loaded just now of the Fabrics that are alive."""

        def tell(hook: str, fabric: Any) -> None:
            if loaded.implements(hook):
                self._tell_one(loaded, hook, fabric)

        self._live.replay(tell)

    def load_or_complain(self, provider: Provider) -> Loaded | Failure:
        """Load a plugin that nobody asked for by name.

        Raises:
            BrokenPluginError: it failed, and the controls are strict.
        """
        loaded = self._load(provider)
        if isinstance(loaded, Failure) and loaded.stage != BLOCKED:
            self._complaints.raise_or_warn(loaded)
        return loaded

    def after_fork(self) -> None:
        """Nobody else holds a lock in a new process."""
        self._live.after_fork()

    def _tell_one(self, loaded: Loaded, hook: str, fabric: Any) -> Answer:
        try:
            self._host().call_one(hook, loaded.plugin, fabric=fabric)
        except BaseException as error:
            let_through(error)
            failure = Failure(loaded.provider, f"call of {hook}", error)
            self._host().quarantine(failure)
            self._complaints.of_failure(failure)
            return Answer(loaded.provider, None, error)
        return Answer(loaded.provider, None)
