"""Whether a checkpoint fits the objects that are to be restored: found out, and said, before anything is written.

The same findings and the same message for a file and for a folder: both come down to names, shapes and dtypes.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from poplin.errors import CheckpointMismatchError, PossibleUserWarning

_SHOWN = 10


@dataclass(frozen=True)
class Spec:
    """What is compared of one tensor; ``shape`` is None where any will do (a lazy parameter)."""

    shape: tuple[int, ...] | None
    dtype: torch.dtype | None = None


@dataclass
class Findings:
    """What does not fit, under the user's names."""

    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    shapes: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)

    def miss(self, name: str, candidates: Iterable[str] = ()) -> None:
        """Note that ``name`` is missing, and what it may be a misspelling of."""
        self.missing.append(name)
        close = difflib.get_close_matches(name, [candidate for candidate in candidates if candidate != name], n=2)
        if close:
            self.hints.append(f"{name!r} may be meant to be {' or '.join(repr(other) for other in close)}")

    def compare(self, prefix: str, here: Mapping[str, Spec], saved: Mapping[str, Spec]) -> None:
        """Note how the tensors ``saved`` differ from those that are ``here``.

        Args:
            prefix: the object's name.
            here: the object's own.
            saved: the checkpoint's.
        """
        for name in here:
            if name not in saved:
                self.miss(_join(prefix, name), ())
        self.unexpected += [_join(prefix, name) for name in saved if name not in here]
        for name, spec in here.items():
            if name in saved:
                self._compare_one(_join(prefix, name), spec, saved[name])

    def _compare_one(self, name: str, here: Spec, saved: Spec) -> None:
        if here.shape is not None and saved.shape is not None and here.shape != saved.shape:
            if not (here.shape == () and saved.shape == (1,)):  # torch takes these for each other
                self.shapes.append(f"{name}: {_shape(saved.shape)} in the checkpoint, {_shape(here.shape)} here")
        elif here.dtype is not None and saved.dtype is not None and _rank(saved.dtype) > _rank(here.dtype):
            self.others.append(f"{name}: {saved.dtype} in the checkpoint would lose its values in {here.dtype}")

    def fatal(self, strict: bool) -> bool:
        """Whether nothing may be restored. Wrong shapes are an error in any case, as in torch."""
        return bool(self.shapes or self.others or (strict and (self.missing or self.unexpected)))

    def lines(self) -> list[str]:
        """The findings, a kind a line."""
        return [
            line
            for title, names in (
                ("missing in the checkpoint", self.missing),
                ("unexpected in the checkpoint", self.unexpected),
                ("of another shape", self.shapes),
                ("not to be restored", self.others),
            )
            if (line := _line(title, names))
        ]

    def conclude(self, where: str, strict: bool) -> None:
        """Raise or warn.

        Raises:
            CheckpointMismatchError: something does not fit, and nothing has been restored.
        """
        lines = self.lines()
        if not lines:
            return
        text = "\n".join(f"  {line}" for line in lines)
        hint = f"\n  {'; '.join(self.hints[:5])}." if self.hints else ""
        if self.fatal(strict):
            advice = (
                ""
                if self.shapes or self.others
                else "\nstrict=False restores what is there and leaves the rest as it is."
            )
            raise CheckpointMismatchError(
                f"The checkpoint {where} does not fit, and nothing was restored:\n{text}{hint}{advice}"
            )
        warnings.warn(
            f"With strict=False, the checkpoint {where} was restored only in part:\n{text}{hint}",
            PossibleUserWarning,
            stacklevel=2,
        )


def _join(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix else name


def _shape(shape: tuple[int, ...]) -> str:
    return str(tuple(shape))


def _rank(dtype: torch.dtype) -> int:
    """Which kinds of number hold which: bool and integers < floats < complex."""
    return 2 if dtype.is_complex else 1 if dtype.is_floating_point else 0


def _line(title: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{title} ({len(names)}): {', '.join(names[:_SHOWN])}{more}"
