"""A command in a process of its own, and a site folder for packages that are made for one test."""

import os
import subprocess
import sys

import pytest


@pytest.fixture
def site(tmp_path):
    """An empty folder that the commands have on their path, before everything else."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def poplin(site, tmp_path):
    """Run ``poplin`` with some words; returns the finished process."""

    def run(*words, code=0, timeout=120, **variables):
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("POPLIN_", "LT_"))}
        environment |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", **variables}
        done = subprocess.run(
            [sys.executable, "-m", "poplin", *map(str, words)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run
