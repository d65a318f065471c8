"""Import somebody else's library when it is needed, or say what to do."""

from __future__ import annotations

import importlib
import importlib.metadata
from types import ModuleType

from poplin.errors import MissingPackageError


def import_library(module: str, needed_by: str, install: str | None = None) -> ModuleType:
    """Import ``module``, which a plugin needs.

    Args:
        module: its import name.
        needed_by: who needs it, for the message: ``"The logger 'acme'"``.
        install: what to give pip; None means the first part of ``module``.

    Raises:
        MissingPackageError: it is not installed, or it is installed and can't be imported: then with the cause.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".")[0] != error.name.split(".")[0]:
            raise _broken(module, needed_by, error) from error  # what it needs itself is missing
        package = install or module.partition(".")[0]
        raise MissingPackageError(
            f"{needed_by} needs the library {module.partition('.')[0]}, which is not installed. Install it: "
            f"pip install {package}"
        ) from error
    except Exception as error:  # a library built for another version of torch, or of the system
        raise _broken(module, needed_by, error) from error


def _broken(module: str, needed_by: str, error: Exception) -> MissingPackageError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else ""
    return MissingPackageError(
        f"{needed_by} needs the library {module.partition('.')[0]}, which is installed and can't be imported here: "
        f"{type(error).__name__}: {first}"
    )
