"""DeepSpeed's compiled extensions: built in one step, and a build that was cut off is told instead of waited for.

torch builds an extension in a folder with a file ``lock`` in it, and every other process waits until that is gone. A
process that is killed in the middle leaves it there, and whoever comes later waits for ever, in silence.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from poplin_deepspeed.errors import BuildError
from poplin_deepspeed.installation import load

_LOCK = "lock"


def folder() -> Path:
    """Where torch builds extensions."""
    from torch.utils import cpp_extension

    chosen = os.environ.get("TORCH_EXTENSIONS_DIR")
    if chosen:
        return Path(chosen)
    return Path(cpp_extension.get_default_build_root())


def stale_locks(root: Path | None = None, names: Iterable[str] | None = None) -> list[Path]:
    """Locks of builds that nobody runs any more.

    Args:
        root: where extensions are built; None means torch's place.
        names: of the extensions that matter; None means all.
    """
    root = root or folder()
    wanted = None if names is None else set(names)
    locks = [
        path
        for depth in ("*", "*/*")  # torch puts a folder for each Python and device in between, unless it is told where
        for path in root.glob(f"{depth}/{_LOCK}")
        if wanted is None or path.parent.name in wanted
    ]
    return sorted(path for path in locks if not _is_held(path))


def check_locks(names: Iterable[str], root: Path | None = None) -> None:
    """No build of these extensions was cut off.

    Raises:
        BuildError: one was; it says which file to remove.
    """
    stale = stale_locks(root, names)
    if stale:
        raise BuildError(
            f"A build of {', '.join(path.parent.name for path in stale)} was cut off and left its lock: DeepSpeed "
            f"would wait for it for ever. Remove it: rm {' '.join(map(str, stale))}"
        )


def check_compiler() -> None:
    """There is a C++ compiler, and ninja.

    Raises:
        BuildError: there isn't.
    """
    compiler = os.environ.get("CXX") or "c++"
    if not any(shutil.which(name.split()[0]) for name in (compiler, "g++", "clang++") if name.strip()):
        raise BuildError(
            "DeepSpeed must compile an extension, and there is no C++ compiler here. Install g++ (Debian: apt-get "
            "install g++), or set CXX."
        )
    beside = Path(sys.executable).parent / "ninja"
    if shutil.which("ninja") is None and not beside.exists():
        raise BuildError("DeepSpeed must compile an extension, and ninja is missing: pip install ninja")


def build(*names: str, device_type: str = "cpu") -> list[str]:
    """Build extensions now, in this one process; what is built already is only loaded.

    ``python -m poplin_deepspeed.extensions cpu_adam`` does it from the command line. Do it before several processes
    need one of them at once.

    Args:
        names: as DeepSpeed calls them: ``cpu_adam``, ``cpu_adagrad``, ``cpu_lion``, ``async_io``, ``fused_adam``...
        device_type: torch's device type, for which they are.

    Returns:
        Those that were loaded.

    Raises:
        BuildError: a lock of a build that was cut off, no compiler, an unknown name, or the compiler's own error.
    """
    check_locks(names)
    load(device_type)
    beside = str(Path(sys.executable).parent)
    for name in names:
        builder = _builder(name)
        if not _is_built(name):
            check_compiler()
        path = os.environ.get("PATH", "")
        os.environ["PATH"] = path if beside in path.split(os.pathsep) else os.pathsep.join((path, beside))
        try:
            builder.load(verbose=False)
        except Exception as error:
            raise BuildError(f"DeepSpeed's extension {name!r} can't be built here: {error}") from error
        finally:
            os.environ["PATH"] = path
    return list(names)


def _builder(name: str) -> Any:
    known: dict[str, Any] = importlib.import_module("deepspeed.ops.op_builder.all_ops").ALL_OPS
    builder = known.get(name)
    if builder is None:
        raise BuildError(f"DeepSpeed has no extension {name!r} for this device. Those that it has: {', '.join(known)}.")
    return builder


def _is_built(name: str) -> bool:
    root = folder()
    return any(root.glob(f"{name}/*.so")) or any(root.glob(f"*/{name}/*.so"))


def _is_held(path: Path) -> bool:
    """Whether a process has the lock open, as its builder does until it is done. Where that can't be seen: yes."""
    processes = Path("/proc")
    if not processes.is_dir():
        return True
    try:
        target = path.resolve(strict=True)
    except OSError:
        return True  # it is gone by now
    unseen = False
    for process in processes.iterdir():
        if not process.name.isdigit():
            continue
        try:
            held = any(os.path.realpath(entry) == str(target) for entry in (process / "fd").iterdir())
        except PermissionError:
            unseen = True  # somebody else's process
            continue
        except OSError:
            continue  # it has ended
        if held:
            return True
    return unseen and _owner(path) != os.getuid()


def _owner(path: Path) -> int:
    try:
        return path.stat().st_uid
    except OSError:
        return -1


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the extensions named on the command line."""
    parser = argparse.ArgumentParser(prog="python -m poplin_deepspeed.extensions", description=build.__doc__)
    parser.add_argument("names", nargs="+", metavar="NAME", help="cpu_adam, async_io, ...")
    parser.add_argument("--device-type", default="cpu")
    options = parser.parse_args(arguments)
    try:
        built = build(*options.names, device_type=options.device_type)
    except Exception as error:
        print(error, file=sys.stderr)
        return 1
    print(f"ready: {', '.join(built)} (in {folder()})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
