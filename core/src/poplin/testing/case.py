"""What the body of a check gets: its rank, a folder, and the words in which it says what it expects."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from poplin.testing.outcomes import ComplianceError, NotClaimed

if TYPE_CHECKING:
    from torch import Tensor

    from poplin import Fabric


class Case:
    """One check in one process.

    Attributes:
        rank: of this process among those that run the check.
        world_size: how many there are.
        folder: a folder that they share, empty at the start of the check.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        folder: Path,
        last_words: Callable[[], None] = lambda: None,
        meet: Callable[[str, int], None] = lambda check, number: None,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.folder = folder
        self._last_words = last_words
        self._meet = meet
        self._launched = 0
        self._cleanup = ExitStack()

    # --- what it uses

    def use(self, fabric: Fabric) -> Fabric:
        """Launch ``fabric``, and close it after the check.

        It comes back when every rank has launched its own: one that is quick must not close before all are connected.
        """
        self._cleanup.callback(fabric.close)
        if not fabric.launched:
            fabric.launch(_nothing)
        self._launched += 1
        self._meet(self.folder.name, self._launched)
        return fabric

    def at_end(self, function: Callable[[], Any]) -> None:
        """Call ``function`` after the check, whatever comes of it."""
        self._cleanup.callback(function)

    def close(self) -> None:
        """Give back what was used."""
        self._cleanup.close()

    def die(self) -> NoReturn:
        """End this process at once, as a crash would, with its part of the check passed. For checks that are alone."""
        self._last_words()
        os._exit(0)

    # --- what it says

    def expect(self, condition: object, expected: str, found: object) -> None:
        """Fail unless ``condition`` is true.

        Args:
            condition: what must be true.
            expected: what it means, in words.
            found: what is the case instead.

        Raises:
            ComplianceError: it is not.
        """
        if not condition:
            raise ComplianceError(f"  expected: {_indented(expected)}\n  found:    {_indented(str(found))}")

    def expect_equal(self, found: object, expected: object, what: str) -> None:
        """Fail unless ``found == expected``; ``what`` says what they are."""
        self.expect(found == expected, f"{what}: {expected!r}", repr(found))

    def expect_close(self, found: Tensor, expected: Tensor, what: str, tolerance: float = 1e-6) -> None:
        """Fail unless two tensors have one shape and differ by ``tolerance`` at most, infinities and NaN alike.

        The failure says where they differ most, what stands there, and how many elements differ.
        """
        import torch

        wanted, got = expected.detach().double().cpu(), found.detach().double().cpu()
        self.expect_equal(tuple(got.shape), tuple(wanted.shape), f"shape of {what}")
        differs = ~torch.isclose(got, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
        if not differs.any():
            return
        # a NaN in one of them only differs more than any number
        distance = (got - wanted).abs().nan_to_num(nan=math.inf, posinf=math.inf).masked_fill(~differs, 0.0)
        index = tuple(int(one) for one in torch.unravel_index(distance.argmax(), distance.shape))
        place = f" at {list(index)}" if index else ""
        self.expect(
            False,
            f"{what} within {tolerance:g} of {_short(wanted)}",
            f"{_short(got)}\nlargest difference{place}: {got[index].item():.9g} instead of {wanted[index].item():.9g}; "
            f"{int(differs.sum())} of {differs.numel()} differ",
        )

    def expect_error(
        self, kinds: type[BaseException] | tuple[type[BaseException], ...], function: Callable[[], Any], what: str
    ) -> BaseException:
        """Fail unless ``function()`` raises one of ``kinds``, and return what it raised."""
        names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
        error = error_or_none(function)
        self.expect(error is not None, f"{what}: {names}", "no error")
        assert error is not None
        self.expect(isinstance(error, kinds), f"{what}: {names}", f"{type(error).__name__}: {error}")
        return error

    def needs_several(self) -> None:
        """End the check where one process runs it: it is about what goes on between ranks.

        Raises:
            NotClaimed: there is one process.
        """
        if self.world_size == 1:
            self.not_claimed("it runs on one device")

    def not_claimed(self, reason: str) -> NoReturn:
        """End the check: the extension says that it does not do this.

        Raises:
            NotClaimed: always.
        """
        raise NotClaimed(reason)


def error_or_none(function: Callable[[], Any]) -> Exception | None:
    """What ``function()`` raises, or None."""
    try:
        function()
    except Exception as error:
        return error
    return None


def _nothing(fabric: Any) -> None:
    """Launched processes need nothing more than to exist."""


def _short(tensor: Tensor) -> str:
    text = " ".join(repr(tensor).split())
    return text if len(text) <= 160 else text[:157] + "..."


def _indented(text: str) -> str:
    return text.strip().replace("\n", "\n            ")
