"""Fixtures of pytest for authors of plugins. In ``conftest.py``::

    pytest_plugins = ["poplin.testing.fixtures"]

There is no pytest plugin of Poplin's that loads by itself (an entry point ``pytest11``): it would take part in every
test run of every environment that has Poplin installed, asked or not. The suites themselves need no fixture and no
plugin: they are plain classes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poplin import registry
from poplin.testing.distributions import make_distribution


@pytest.fixture
def fake_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Path]]:
    """A function that installs a distribution for the length of a test, with real metadata on the disk.

    Its arguments are those of ``poplin.testing.make_distribution`` after the folder: name, version, ``entry_points``,
    ``modules``, ``requires``. It returns the metadata folder. The distribution is found in this process and in those
    that it starts; after the test it, and the modules that were imported from it, are gone.
    """
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    present = set(sys.modules)

    def install(name: str, version: str | None = "1.0", **options: Any) -> Path:
        made = make_distribution(site, name, version, **options)
        registry.refresh()
        return made

    yield install
    for name in set(sys.modules) - present:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(site)):
            del sys.modules[name]
    monkeypatch.undo()
    registry.refresh()
