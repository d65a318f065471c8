"""The trace: every choice made on the user's behalf, with its reason and with what was passed over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

#: Longer choices don't widen the column.
_WIDEST_CHOICE = 36


class PassedOver(NamedTuple):
    """What was not chosen, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True, init=False)
class Decision:
    """One choice. Plain text throughout, so that it pickles wherever the run goes.

    Args:
        subject: what was decided: ``"accelerator"``, ``"sampler"``, ...
        choice: what was chosen.
        provider: whose it is: text such as ``"poplin-core 0.1.0"``, or anything with ``distribution`` and
            ``version``. None where nobody in particular provides it.
        reason: why it was chosen.
        passed_over: pairs ``(what, why)`` of what was not chosen.
    """

    subject: str
    choice: str
    provider: str | None
    reason: str
    passed_over: tuple[PassedOver, ...]

    def __init__(
        self,
        subject: str,
        choice: Any,
        provider: Any = None,
        reason: str = "",
        passed_over: Iterable[tuple[str, str]] = (),
    ) -> None:
        values = {
            "subject": str(subject),
            "choice": str(choice),
            "provider": provider_label(provider),
            "reason": str(reason),
            "passed_over": tuple(PassedOver(str(what), str(why)) for what, why in passed_over),
        }
        for field, value in values.items():
            object.__setattr__(self, field, value)

    def __reduce__(self) -> tuple[Any, ...]:
        passed_over = tuple(tuple(item) for item in self.passed_over)
        return type(self), (self.subject, self.choice, self.provider, self.reason, passed_over)


class Trace:
    """The decisions of one run, oldest first. It is only ever appended to."""

    __slots__ = ("_decisions",)

    def __init__(self) -> None:
        self._decisions: list[Decision] = []

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was decided so far."""
        return tuple(self._decisions)

    def add(self, decision: Decision) -> None:
        """Record a decision. Saying again what was said last about the same subject adds nothing."""
        if decision not in self._decisions[-8:]:
            self._decisions.append(decision)

    def note(
        self,
        subject: str,
        choice: Any,
        reason: str = "",
        provider: Any = None,
        passed_over: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Record a decision, given by its parts."""
        self.add(Decision(subject, choice, provider, reason, passed_over))

    def render(self) -> str:
        """The decisions as aligned text, for people."""
        return "\n".join(render_lines(self._decisions))

    def __len__(self) -> int:
        return len(self._decisions)

    def __repr__(self) -> str:
        return f"<Trace of {len(self._decisions)} decisions>"


def provider_label(provider: Any) -> str | None:
    """``"distribution version"`` of a provider; text is taken as it is, None stays None."""
    if provider is None or isinstance(provider, str):
        return provider
    distribution = getattr(provider, "distribution", None)
    version = getattr(provider, "version", None)
    if distribution is None:
        return str(provider)
    return f"{distribution} {version}" if version else str(distribution)


def render_lines(decisions: Iterable[Decision]) -> list[str]:
    """The lines of :meth:`Trace.render`: subject and choice in columns, reasons indented beneath."""
    decisions = list(decisions)
    if not decisions:
        return ["(nothing has been decided yet)"]
    first = max(len(decision.subject) for decision in decisions) + 2
    second = max((len(_one_line(item.choice)) for item in decisions if len(item.choice) <= _WIDEST_CHOICE), default=0)
    lines: list[str] = []
    for decision in decisions:
        head = f"{decision.subject:<{first}}{_one_line(decision.choice):<{second}}"
        lines.append(f"{head}  {decision.provider}" if decision.provider else head.rstrip())
        margin = " " * first
        if decision.reason:
            lines.append(f"{margin}because {_one_line(decision.reason)}")
        lines += [f"{margin}not {_one_line(what)}: {_one_line(why)}" for what, why in decision.passed_over]
    return lines


def _one_line(text: str) -> str:
    return " ".join(text.split())
