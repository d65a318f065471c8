"""Find classes and functions of a test module in another process than that which described them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from poplin.errors import LaunchError


def load_suite(where: dict[str, Any]) -> type[Any]:
    """The class of a suite, in another process than that which described it (``describe``).

    Raises:
        LaunchError: it can't be had here.
    """
    suite = load_object(where)
    if not isinstance(suite, type):
        raise LaunchError(f"{where['qualname']} of {where['file']} is no suite.")
    attributes = where["attributes"]
    return type(suite.__name__, (suite,), attributes) if attributes else suite


def load_object(where: Mapping[str, Any]) -> Any:
    """A class or function of a module, in another process than that which described it.

    Args:
        where: ``module``, ``file`` and ``qualname``.

    Raises:
        LaunchError: it can't be had here.
    """
    found: Any = _module(where["module"], where["file"])
    for part in where["qualname"].split("."):
        found = getattr(found, part, None)
    if found is None:
        raise LaunchError(
            f"{where['qualname']} of {where['file']} can't be had in another process. Define it at the top of its "
            "module."
        )
    return found


def load_file(path: str) -> Any:
    """The module in a file, under the name that pytest would give it: that of the file.

    Raises:
        FileNotFoundError: there is no such file.
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(path)
    return _module(Path(path).stem, os.path.abspath(path))


def _module(name: str, file: str) -> Any:
    if name != "__main__":
        try:
            module = importlib.import_module(name)
        except ImportError:
            module = None
        if module is not None and os.path.realpath(getattr(module, "__file__", None) or "") == os.path.realpath(file):
            return module
    name = "poplin_compliance_suite" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise LaunchError(f"The module {name} of a suite can't be had from {file} in another process.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.append(str(Path(file).parent))
    spec.loader.exec_module(module)
    return module
