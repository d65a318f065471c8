"""``poplin env``: versions and settings, for a bug report. Reads metadata only; imports nothing that could fail."""

from __future__ import annotations

import os
import platform
import sys

from poplin.cli.metadata import installed_version
from poplin.cli.tables import table

#: Packages whose version matters beside our own.
PACKAGES = ("torch", "numpy", "pluggy", "importlib-metadata", "lightning-utilities", "fsspec", "packaging")
#: Variables that change what a run does: ours, those that a launcher sets, and torch's.
PREFIXES = ("POPLIN_", "LT_", "PL_", "TORCH", "OMP_", "MASTER_", "SLURM_")
NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")


def print_environment() -> int:
    """Print the system, the packages and the variables."""
    sections = {
        "system": [
            ["python", f"{platform.python_version()} ({sys.executable})"],
            ["platform", platform.platform()],
            ["processors", str(os.cpu_count())],
        ],
        "packages": [[name, version] for name, version in package_versions()],
        "variables": [[name, value] for name, value in run_variables()] or [["none", ""]],
    }
    for number, (title, lines) in enumerate(sections.items()):
        print(f"{'' if number == 0 else chr(10)}{title}")
        print(table(lines, indent="  "))
    return 0


def package_versions() -> list[tuple[str, str]]:
    """Poplin, every distribution that offers something to it, and what the core rests on, each with its version."""
    from poplin import __version__
    from poplin.registry import rows

    own = {row.distribution: row.version for row in rows()} | {"poplin-core": __version__}
    return [*sorted(own.items()), *((name, installed_version(name) or "not installed") for name in PACKAGES)]


def run_variables() -> list[tuple[str, str]]:
    """The environment variables that have a say in a run."""
    return sorted((name, value) for name, value in os.environ.items() if name.startswith(PREFIXES) or name in NAMES)
