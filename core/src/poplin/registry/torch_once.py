"""``import torch``, tried once: after one that broke off half-way, a second can take the whole process with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import TracebackType

from poplin.registry.records import NO_TORCH, Failure, message_of


class TorchOnce:
    """A context in which ``import torch`` is refused, with the one reason, once it has failed.

    Args:
        failed: the error with which it failed; None as long as it has not. It is asked at each import of torch.
    """

    def __init__(self, failed: Callable[[], BaseException | None]) -> None:
        self._failed = failed

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """What Python asks of whatever stands in ``sys.meta_path``.

        Raises:
            ImportError: torch is wanted, and has failed before.
        """
        error = self._failed() if fullname == "torch" else None
        if error is not None:
            raise ImportError(f"{NO_TORCH}: {type(error).__name__}: {message_of(error)}", name=fullname) from error

    def __enter__(self) -> TorchOnce:
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def torch_error(failures: Iterable[Failure]) -> BaseException | None:
    """The error with which torch's import failed, if one of these came of it."""
    return next((failure.error for failure in failures if failure.stage == NO_TORCH), None)
