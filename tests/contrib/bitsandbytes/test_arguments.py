"""What is said without the library, and of arguments that can't be meant."""

import sys

import pytest
import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError, MissingPackageError
from poplin_bitsandbytes.precision import BitsandbytesPrecision


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingPackageError, match="pip install bitsandbytes"):
        BitsandbytesPrecision("nf4")


def test_arguments_that_cannot_be_meant_are_named():
    with pytest.raises(ArgumentValueError, match="mode='int3'.*nf4-dq"):
        BitsandbytesPrecision("int3")
    with pytest.raises(ArgumentValueError, match="float64"):
        BitsandbytesPrecision("nf4", dtype=torch.float64)
    with pytest.raises(ArgumentTypeError, match="set of names"):
        BitsandbytesPrecision("nf4", ignore_modules="lm_head")
