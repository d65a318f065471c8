"""The part of ``poplin doctor`` that imports torch and plugins. It runs in a process of its own, which may die.

Each thing learnt is written at once, a line of JSON, so that a crash loses nothing but what crashed.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poplin.registry.torch_once import TorchOnce
from poplin.utilities.unwinding import let_through

#: How many frames of a failure are shown.
FRAMES = 3


def main(arguments: list[str]) -> int:
    """Run the stages that are asked for.

    Args:
        arguments: the file to write to, "torch" or "backends", and the modules to import first (``-p``).
    """
    path, what, *modules = arguments
    os.dup2(2, 1)  # what torch or a plugin prints is no part of the report

    def tell(stage: str, **facts: Any) -> None:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"stage": stage, **facts}) + "\n")

    torch_error = _attempt(tell, "torch", _torch)
    if what == "backends":
        if torch_error is None:
            _each_backend(tell)
        return 0 if torch_error is None else 1
    with TorchOnce(lambda: torch_error):  # else each of the next would import it again, and that may be the end
        for module in modules:
            importlib.import_module(module)  # the command has done the same, and it worked
        _attempt(tell, "plugins", _plugins)
        _attempt(tell, "devices", _devices)
        _attempt(tell, "selection", _selection)
    return 0


def _attempt(
    tell: Callable[..., None], stage: str, learn: Callable[[], dict[str, Any]], **facts: Any
) -> BaseException | None:
    tell(stage, begun=True, **facts)
    try:
        tell(stage, **facts, **learn())
    except BaseException as error:
        let_through(error)
        tell(stage, **facts, error=describe(error))
        return error
    return None


def describe(error: BaseException) -> str:
    """The error, its causes, and where the innermost came from."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    lines = [f"{type(each).__name__}: {each}" for each in chain]
    frames = traceback.extract_tb(chain[-1].__traceback__)[-FRAMES:]
    return "\ncaused by ".join(lines) + "".join(f"\n  at {frame.filename}:{frame.lineno}" for frame in frames)


def _torch() -> dict[str, Any]:
    start = time.perf_counter()
    import torch

    elapsed = time.perf_counter() - start
    seen = torch.accelerator.current_accelerator(check_available=True)
    return {
        "version": torch.__version__,
        "seconds": elapsed,
        "file": torch.__file__,
        "accelerator": None if seen is None else seen.type,
        "count": torch.accelerator.device_count(),
        "distributed": torch.distributed.is_available(),
    }


def _each_backend(tell: Callable[..., None]) -> None:
    """Do what ``import torch`` does with these entry points, one after the other."""
    from importlib.metadata import EntryPoint

    from poplin.cli.metadata import TORCH_BACKENDS_GROUP, torch_backends

    for point in torch_backends():

        def load(point: Any = point) -> dict[str, Any]:
            EntryPoint(point.name, point.value, TORCH_BACKENDS_GROUP).load()()
            return {}

        _attempt(tell, "backend", load, name=point.name, value=point.value, distribution=point.distribution)


def _plugins() -> dict[str, Any]:
    from poplin.cli.plugins import row_as_dict
    from poplin.registry import rows

    return {"rows": [row_as_dict(row) for row in rows(load=True)]}


def _devices() -> dict[str, Any]:
    from poplin.errors import LookupFailedError
    from poplin.registry import find, names

    devices: dict[str, list[Any]] = {}
    for name in names("accelerators"):
        try:
            devices[name] = list(find("accelerators", name).target_class().availability())
        except LookupFailedError as error:
            devices[name] = [False, str(error)]
        except Exception as error:
            devices[name] = [False, f"asking it raised {describe(error)}"]
    return {"devices": devices}


def _selection() -> dict[str, Any]:
    from poplin.selection import Request, select

    selection = select(Request.read())
    return {"accelerator": selection.accelerator.name(), "devices": [str(device) for device in selection.devices]}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
