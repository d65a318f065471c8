"""What is said without the library, and of arguments that can't be meant."""

import sys

import pytest
import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError, MissingPackageError
from poplin_torchao import Float8Precision, Int8Precision


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    for name in [name for name in sys.modules if name.startswith("torchao.")]:
        monkeypatch.delitem(sys.modules, name)
    for precision in (Float8Precision, Int8Precision):
        with pytest.raises(MissingPackageError, match="pip install torchao"):
            precision()


def test_arguments_that_cannot_be_meant_are_named():
    with pytest.raises(ArgumentValueError, match="recipe='columnwise'.*rowwise"):
        Float8Precision("columnwise")
    with pytest.raises(ArgumentValueError, match="float16"):
        Int8Precision(dtype=torch.float16)
    with pytest.raises(ArgumentTypeError, match="set of names"):
        Float8Precision(ignore_modules="lm_head")
