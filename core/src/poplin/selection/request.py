"""What was asked for: the arguments of Fabric, and the environment variables that the command line sets."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from poplin.errors import ArgumentTypeError, ArgumentValueError, ContradictionError

#: Prefixes of the environment variables; the first one set wins.
PREFIXES = ("POPLIN_", "LT_")
#: Precisions as they were written before each had a name of its own.
LEGACY_PRECISIONS: dict[str, str] = {"16": "16-mixed", "bf16": "bf16-mixed", "32": "32-true", "64": "64-true"}
#: Of these the new spelling is named in a warning: what they mean can't be read off them.
_AMBIGUOUS_PRECISIONS = ("16", "bf16")
#: Subjects whose objects know their own name, so that an object and its name can be the same wish.
NAMED_OBJECTS = ("accelerator", "precision")


@dataclass(frozen=True, slots=True)
class Source:
    """One explicit wish and where it stands: an argument, an environment variable, ``plugins=``, a strategy object."""

    value: Any
    origin: str


@dataclass(frozen=True, eq=False)
class Request:
    """What was asked for, the sources compared and legacy spellings replaced.

    Attributes:
        accelerator, strategy: a name, ``"auto"`` or an object.
        devices: an int, a list, text or ``"auto"``.
        num_nodes: at least 1.
        precision: a canonical name, an object, or None for the default.
        plugins: objects and names, in the order given.
        under_cli: whether the command line started this script.
        sources: for each subject that was asked for explicitly (``auto`` and None are not), what and where.
        variables: environment variables beside an object as argument: whether both mean the same, the object knows.
        notes: ``(subject, text)`` of what was read on the way and must be told.
    """

    accelerator: Any = "auto"
    strategy: Any = "auto"
    devices: Any = "auto"
    num_nodes: int = 1
    precision: Any = None
    plugins: tuple[Any, ...] = ()
    under_cli: bool = False
    sources: Mapping[str, Source] = field(default_factory=dict)
    variables: Mapping[str, Source] = field(default_factory=dict)
    notes: tuple[tuple[str, str], ...] = ()

    @classmethod
    def read(
        cls,
        accelerator: Any = "auto",
        strategy: Any = "auto",
        devices: Any = "auto",
        num_nodes: Any = 1,
        precision: Any = None,
        plugins: Any = None,
        environ: Mapping[str, str] | None = None,
    ) -> Request:
        """Read the arguments and the environment variables ``POPLIN_*`` and ``LT_*``.

        Args:
            accelerator: a name, ``"auto"`` or an object.
            strategy: a name, ``"auto"`` or an object.
            devices: a count, indices, ``-1`` or ``"auto"``.
            num_nodes: number of nodes.
            precision: a name, old or new, or an object.
            plugins: one or several objects or registered names.
            environ: the environment; None means the one of this process.

        Raises:
            ContradictionError: an argument and an environment variable ask for different things.
            ArgumentTypeError, ArgumentValueError: an argument can't be meant.
        """
        environ = os.environ if environ is None else environ
        reader = _Reader(environ)
        return cls(
            accelerator=reader.read("accelerator", accelerator, "auto", _check_name_or_object),
            strategy=reader.read("strategy", strategy, "auto", _check_name_or_object),
            devices=reader.read("devices", devices, "auto", _check_devices),
            num_nodes=reader.read("num_nodes", num_nodes, 1, _check_num_nodes),
            precision=reader.read("precision", precision, None, _canonical_precision),
            plugins=_plugin_list(plugins),
            under_cli=_is_set(environ, "CLI_USED"),
            sources=reader.sources,
            variables=reader.variables,
            notes=tuple(reader.notes),
        )

    def explicit(self, subject: str) -> Source | None:
        """The explicit wish about ``subject``, or None where the choice was left open."""
        return self.sources.get(subject)

    def all_explicit(self, subject: str) -> tuple[Source, ...]:
        """Every explicit wish about ``subject`` among arguments and environment variables."""
        found = (self.sources.get(subject), self.variables.get(subject))
        return tuple(source for source in found if source is not None)


class _Reader:
    """Brings an argument and its environment variable together."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.sources: dict[str, Source] = {}
        self.variables: dict[str, Source] = {}
        self.notes: list[tuple[str, str]] = []

    def read(self, subject: str, argument: Any, default: Any, check: Any) -> Any:
        given = (
            None if _is_open(argument, default) else Source(argument, f"the argument {subject}={describe(argument)}")
        )
        variable = self._variable(subject, default)
        wishes = []
        for source in (given, variable):
            if source is not None:
                value, note = check(source.value, source.origin)
                wishes.append(Source(value, source.origin))
                if note:
                    self.notes.append((subject, note))
        if not wishes:
            return default
        self.sources[subject] = chosen = wishes[0]
        for other in wishes[1:]:
            if subject in NAMED_OBJECTS and _as_text(chosen.value) is None:
                self.variables[subject] = other
            elif not agree(chosen.value, other.value):
                raise contradiction(subject, chosen, other)
        return chosen.value

    def _variable(self, subject: str, default: Any) -> Source | None:
        found = [
            (name, value)
            for prefix in PREFIXES
            if (value := self.environ.get(name := prefix + subject.upper())) and not _is_open(value, default)
        ]
        if not found:
            return None
        for name, value in found[1:]:
            if value != found[0][1]:
                self.notes.append((subject, f"{found[0][0]}={found[0][1]} wins over {name}={value}"))
        name, value = found[0]
        return Source(value, f"the environment variable {name}={value} (set by the command line, or by hand)")


def contradiction(subject: str, one: Source, other: Source) -> ContradictionError:
    """The error for two explicit sources that differ."""
    return ContradictionError(
        f"Two different things were asked for as {subject.replace('_', ' ')}: {one.origin}, and {other.origin}. "
        "Leave one of them out, or make them the same."
    )


def agree(one: Any, other: Any) -> bool:
    """Whether two explicit wishes are the same: one object, or equal text, whatever way it is written."""
    if one is other:
        return True
    texts = _as_text(one), _as_text(other)
    return None not in texts and texts[0] == texts[1]


def describe(value: Any) -> str:
    """A short text for ``value`` in a message: names and numbers as written, objects by their class."""
    if value is None or isinstance(value, (str, bytes, int, float, list, tuple, dict, set)):
        text = repr(value)
        return text if len(text) <= 80 else text[:77] + "..."
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"<{type(value).__name__} object>"


def _as_text(value: Any) -> str | None:
    if isinstance(value, (list, tuple)):
        # "1," is the list [1], while "1" is a count
        return ",".join(str(item) for item in value) + ("," if len(value) == 1 else "")
    if isinstance(value, (str, int)) and not isinstance(value, bool):
        text = "".join(str(value).split()).lower().replace("_", "-").replace(".", "-")
        return text.rstrip(",") if text.count(",") > 1 else text
    return None


def _is_open(value: Any, default: Any) -> bool:
    """Whether ``value`` leaves the choice open: None, ``auto``, or the default (which can't be told from silence)."""
    if value is None:
        return True
    if isinstance(value, str):
        return value.strip().lower() == "auto" or value == str(default)
    return type(value) is type(default) and bool(value == default)


def _is_set(environ: Mapping[str, str], name: str) -> bool:
    for prefix in PREFIXES:
        if (value := environ.get(prefix + name)) is not None:
            return value.strip().lower() not in ("", "0", "false", "no")
    return False


# --- each argument's own reading: (value, a note for the trace or "")


def _check_name_or_object(value: Any, origin: str) -> tuple[Any, str]:
    if isinstance(value, str) and not value.strip():
        raise ArgumentValueError(f"{_start(origin)} is empty. Give a name, or 'auto'.")
    return value.strip() if isinstance(value, str) else value, ""


def _check_devices(value: Any, origin: str) -> tuple[Any, str]:
    hint = "Give a count (2), indices ([0, 1] or '0,1'), -1 for all, or 'auto'."
    value = _plain_int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str, list, tuple)):
        raise ArgumentTypeError(f"{_start(origin)} can't be read as devices. {hint}")
    if isinstance(value, str) and not value.strip(", "):
        raise ArgumentValueError(f"{_start(origin)} names no device. {hint}")
    return [_plain_int(item) for item in value] if isinstance(value, (list, tuple)) else value, ""


def _check_num_nodes(value: Any, origin: str) -> tuple[int, str]:
    hint = "Give the number of nodes, an int of at least 1."
    value = _plain_int(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ArgumentTypeError(f"{_start(origin)} is no number of nodes. {hint}")
    try:
        number = int(value)
    except ValueError:
        raise ArgumentValueError(f"{_start(origin)} is no number of nodes. {hint}") from None
    if number < 1:
        raise ArgumentValueError(f"{_start(origin)} is less than one node. {hint}")
    return number, ""


def _canonical_precision(value: Any, origin: str) -> tuple[Any, str]:
    if isinstance(value, (bool, float)) or (not isinstance(value, (str, int)) and _is_plain(value)):
        raise ArgumentTypeError(
            f"{_start(origin)} is no precision. Give a name such as '32-true', '16-mixed' or 'bf16-mixed'."
        )
    if not isinstance(value, (str, int)):
        return value, ""  # an object: its interface is checked when it is resolved
    text = str(value).strip().lower()
    if not text:
        raise ArgumentValueError(f"{_start(origin)} is empty. Give a name such as '32-true', or leave it out.")
    if text not in LEGACY_PRECISIONS:
        return str(value).strip(), ""
    name = LEGACY_PRECISIONS[text]
    if text in _AMBIGUOUS_PRECISIONS:
        from poplin.rank_zero import rank_zero_warn

        rank_zero_warn(f"precision={value!r} is read as {name!r}. Write precision={name!r}, which says what is meant.")
    return name, f"{value!r} is the old spelling of {name!r}"


def _plain_int(value: Any) -> Any:
    """NumPy's integers, and others that can be an index, as ints; everything else as it is."""
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except (TypeError, ValueError):
        return value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bytes, list, tuple, set, frozenset, dict, complex, type))


def _plugin_list(plugins: Any) -> tuple[Any, ...]:
    if plugins is None:
        return ()
    if isinstance(plugins, str) or not isinstance(plugins, Iterable) or _is_extension(plugins):
        plugins = (plugins,)
    return tuple(plugins)


def _is_extension(value: Any) -> bool:
    from poplin.extension import Extension

    return isinstance(value, Extension)


def _start(origin: str) -> str:
    return origin[0].upper() + origin[1:]
