"""What is said without the library, and of arguments that contradict each other."""

import sys

import pytest

from poplin.errors import ArgumentValueError, MissingPackageError
from poplin_wandb import WandbLogger


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(MissingPackageError, match="'wandb'.*pip install wandb"):
        WandbLogger()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"id": "a", "version": "b"}, "mean the same"),
        ({"offline": True, "log_model": True}, "uploads nothing"),
        ({"offline": True, "mode": "online"}, "contradict"),
    ],
)
def test_contradictions_are_errors(monkeypatch, arguments, says):
    class Library:
        """Stands for wandb, of which nothing is asked here."""

    monkeypatch.setitem(sys.modules, "wandb", Library())
    with pytest.raises(ArgumentValueError, match=says):
        WandbLogger(**arguments)
