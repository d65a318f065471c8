"""In each process of ``poplin run -p MODULE``: import the modules that register plugins, then become the script.

Called as ``python -m poplin.cli.preload MODULE[,MODULE...] SCRIPT|-m MODULE [arguments...]``.
"""

from __future__ import annotations

import importlib
import os
import runpy
import sys


def main(words: list[str]) -> None:
    """Import, then run."""
    modules, *target = words
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    for name in modules.split(","):
        importlib.import_module(name)
    if target[0] == "-m":
        sys.argv = target[1:]
        runpy.run_module(target[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = target
    sys.path.insert(0, os.path.dirname(os.path.abspath(target[0])))
    runpy.run_path(target[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
