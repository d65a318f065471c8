"""What is said without the library, and of arguments that can't be meant."""

import sys

import pytest

from poplin.errors import ArgumentTypeError, ArgumentValueError, MissingPackageError
from poplin_ray import RayLauncher


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="'ray'.*pip install ray"):
        RayLauncher()


def test_arguments_that_cannot_be_meant_are_named(monkeypatch):
    class Library:
        """Stands for ray, of which nothing is asked here."""

    monkeypatch.setitem(sys.modules, "ray", Library())
    with pytest.raises(ArgumentValueError, match="timeout=0"):
        RayLauncher(timeout=0)
    with pytest.raises(ArgumentTypeError, match="env_vars"):
        RayLauncher(env_vars={"A": 1})
