"""Extensions registered at run time for these tests; what they stand for isn't here (devices, clusters, engines)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from poplin import registry
from poplin.selection import Request, Selection, select
from poplin.utilities import unwinding

sys.path.insert(0, str(Path(__file__).parent))  # for selection_fakes

RANKS = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No plugin but the built-ins and what a test registers; no variable of a launcher; none left behind."""
    before = dict(os.environ)
    prefixes = ("LT_", "POPLIN_", "SLURM_", "TORCHELASTIC_", "OMPI_", "LSB_")
    for name in list(os.environ):
        if name.startswith(prefixes) or name in RANKS:
            monkeypatch.delenv(name)
    monkeypatch.setenv("POPLIN_PLUGINS", "")
    on_terminate = signal.getsignal(signal.SIGTERM)
    yield
    for _ in range(1000):  # an environment whose processes exist lets SIGTERM unwind; most tests here tear nothing down
        if signal.getsignal(signal.SIGTERM) is on_terminate:
            break
        unwinding.restore()
    monkeypatch.undo()
    changed = {name for name in {*before, *os.environ} if os.environ.get(name) != before.get(name)}
    assert not changed - {"PYTEST_CURRENT_TEST"}


@pytest.fixture
def offer() -> Iterator[Callable[..., None]]:
    """``offer(kind, name, target)`` registers for the length of a test."""
    made: list[tuple[str, str]] = []

    def register(kind: str, name: str, target: Any, **presets: Any) -> None:
        registry.register(kind, name, target, **presets)
        made.append((kind, name))

    yield register
    for kind, name in reversed(made):
        registry.unregister(kind, name)


@pytest.fixture
def plugin() -> Iterator[Callable[[Any], Any]]:
    """``plugin(object)`` registers an object with hook implementations for the length of a test."""
    made: list[Any] = []

    def register(value: Any) -> Any:
        registry.register(value)
        made.append(value)
        return value

    yield register
    for value in reversed(made):
        registry.unregister(value)


@pytest.fixture
def choose() -> Callable[..., Selection]:
    """``choose(accelerator=..., ...)``: the selection for these arguments."""

    def make(**arguments: Any) -> Selection:
        return select(Request.read(**arguments))

    return make
