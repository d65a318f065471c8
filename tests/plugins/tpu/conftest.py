"""Runtimes that are not here: distributions made of a few modules, and processes that have them on their path."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poplin.testing import make_distribution

HERE = Path(__file__).parent
FAKES = HERE / "fakes"
#: The version that a torch_xla for this torch has.
FITTING = ".".join(torch.__version__.split(".")[:2]) + ".0"
#: What says something about devices or processes, and no test must inherit.
VARIABLES = (
    *("PJRT_", "CPU_NUM_DEVICES", "TORCH_DEVICE_BACKEND", "FAKE_"),
    *("POPLIN_", "LT_", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
)


def _install(site, package, version=FITTING, modules=None):
    sources = {f"{package}/{path}": text for path, text in (modules or {}).items()}
    if modules is None:
        sources = {str(path.relative_to(FAKES)): path.read_text() for path in (FAKES / package).rglob("*.py")}
    for name in list(sources):
        for parent in Path(name).parents[:-1]:
            sources.setdefault(f"{parent}/__init__.py", "")
    autoload = {"torch.backends": {package: f"{package}:autoload"}} if package == "torch_tpu" else None
    make_distribution(site, package, version, entry_points=autoload, modules=sources)


def _start(folder, *words, code=0, timeout=170, **variables):
    environment = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    paths = os.pathsep.join(map(str, (folder / "site", HERE / "programs")))
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=folder,
        env=environment | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", **variables},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    reports = [line.removeprefix("REPORT ") for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    return json.loads(reports[-1]) if reports else done


@pytest.fixture(scope="session")
def install_into():
    """``install_into(site, package, version=…, modules={path: source})``; without modules, a stand-in of fakes/."""
    return _install


@pytest.fixture(scope="session")
def start():
    """``start(folder, *words, code=0, **variables)`` runs this Python there, with ``folder/site`` on its path.

    Returns what it reports after "REPORT ", or the finished process.
    """
    return _start


@pytest.fixture(scope="session")
def programs():
    return HERE / "programs"


@pytest.fixture
def install(tmp_path):
    """``install(package, …)`` into the site folder of this test."""

    def into(package, **options):
        _install(tmp_path / "site", package, **options)

    return into


@pytest.fixture
def run(tmp_path):
    """``run(*words, …)`` with the site folder of this test on its path."""

    def with_site(*words, **options):
        return _start(tmp_path, *words, **options)

    return with_site
