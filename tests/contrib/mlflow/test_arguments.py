"""What is said without the library, and of arguments that contradict each other."""

import sys

import pytest

from poplin.errors import ArgumentValueError, MissingPackageError
from poplin_mlflow import MLFlowLogger


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(MissingPackageError, match="'mlflow'.*pip install mlflow-skinny"):
        MLFlowLogger()


def test_a_run_name_and_a_tag_that_differ_are_an_error(monkeypatch):
    class Library:
        """Stands for mlflow, of which nothing is asked here."""

    monkeypatch.setitem(sys.modules, "mlflow", Library())
    with pytest.raises(ArgumentValueError, match="differ"):
        MLFlowLogger(run_name="a", tags={"mlflow.runName": "b"})
