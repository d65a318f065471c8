"""One clear error where a command needs torch and can't have it."""

from __future__ import annotations

from poplin.errors import MissingPackageError
from poplin.utilities.unwinding import let_through


def require_torch() -> None:
    """Import torch.

    Raises:
        MissingPackageError: it can't be imported, whatever the reason; that is the cause.
    """
    try:
        import torch  # noqa: F401
    except BaseException as error:
        let_through(error)
        raise MissingPackageError(
            f"This command needs torch, and `import torch` fails: {type(error).__name__}: {error}. "
            "`poplin doctor` looks for the cause. If torch is not installed: pip install torch."
        ) from error
