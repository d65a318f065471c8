"""Precisions with one planted fault each: the check that names it fails, and no other."""

import threading

import pytest
import torch
from torch import nn

from poplin.precision import Precision
from poplin.testing import PrecisionCompliance, run_suite
from poplin_precision.half import HalfPrecision
from poplin_precision.mixed import MixedPrecision


class Suite(PrecisionCompliance):
    slow = True  # those that are not are run with the ordinary tests
    precision = Precision
    arguments = ()

    def create(self):
        return self.precision(*self.arguments)


class Sound(Suite):
    finds = None


class SoundMixed(Suite):
    slow = False
    precision = MixedPrecision
    finds = None


class Half(Suite):
    arguments = ("bf16-true",)
    precision = HalfPrecision
    finds = None


class NotOfItsKind(Suite):
    finds = "it is made without arguments and is of its kind"

    def create(self):
        self.made = type(self).__dict__.get("made") or Precision()
        type(self).made = self.made
        return self.made


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class precision(Precision):
        def __init__(self):
            self.lock = threading.Lock()


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class precision(Precision):
        def convert_output(self, outputs):
            return outputs


class WrongName(Suite):
    name = "acme-true"
    finds = "it is called what it is looked up by"


class TypesAsAList(Suite):
    finds = "it names the device types that it serves"

    class precision(Precision):
        device_types = ["cpu"]


class ConvertsNothing(Suite):
    finds = "parameters are converted as it says"

    class precision(Precision):
        converts_module = True


class _Packed(nn.Parameter):
    """As quantising libraries make them: only they know what is in it."""


class ShardsWhatIsPacked(Suite):
    finds = "what is shardable has ordinary parameters"
    arguments = ("bf16-true",)

    class precision(HalfPrecision):
        shardable = True

        def convert_module(self, module):
            for part in super().convert_module(module).modules():
                for name, parameter in list(part.named_parameters(recurse=False)):
                    setattr(part, name, _Packed(parameter.detach()))
            return module


class ConvertsCounters(Suite):
    finds = "converting keeps integers"
    arguments = ("bf16-true",)

    class precision(HalfPrecision):
        def convert_module(self, module):
            for name, buffer in list(module.named_buffers()):
                setattr(module, name, buffer.to(self.dtype))
            return super().convert_module(module)


class ConvertsIndices(Suite):
    finds = "data is converted as it says"

    class precision(MixedPrecision):
        def convert_input(self, data):
            if isinstance(data, dict):
                return {"nested": [value.float() for value in data["nested"]], "word": data["word"]}
            return super().convert_input(data)


class AutocastsInWordsOnly(Suite):
    finds = "the forward context autocasts as it says"

    class precision(Precision):
        autocasts = True


class LeavesTheDefaultDtype(Suite):
    finds = "contexts for new tensors leave nothing behind"

    class precision(Precision):
        def tensor_init_context(self):
            return _Leaking()


class _Leaking:
    """Restores the default dtype, unless something is raised."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, kind, error, trace):
        if kind is None:
            torch.set_default_dtype(torch.float32)


class WrongDtypeOfNewModules(Suite):
    slow = False
    finds = "a module made in its context has the dtype that converting gives"
    arguments = ("bf16-true",)

    class precision(HalfPrecision):
        def convert_module(self, module):
            for parameter in module.parameters():
                if parameter.dtype == torch.float32:  # leaves alone what is half already
                    parameter.data = parameter.data.to(self.dtype)
            return module

        def module_init_context(self):
            return type(super().module_init_context())(torch.float16)


class StateOfObjects(Suite):
    finds = "its state survives a restart"

    class precision(Precision):
        def state_dict(self):
            return {"scale": object}


class OutputInHalf(Suite):
    finds = "inputs in float32 are fine and the output suits a loss"
    tolerance = 0.2

    class precision(MixedPrecision):
        def __init__(self):
            super().__init__("bf16-mixed")

        def __new__(cls, *args, **kwargs):
            return object.__new__(cls)

        def convert_output(self, data):
            return data if data.shape[0] != 2 else data.bfloat16()


class NormStandsStill(Suite):
    slow = False
    finds = "every parameter really moves"

    class precision(Precision):
        def optimizer_step(self, optimizer, closure=None, **kwargs):
            norms = [p for group in optimizer.param_groups for p in group["params"] if p.dim() == 1 and p.min() == 1]
            before = [norm.detach().clone() for norm in norms]
            result = super().optimizer_step(optimizer, closure, **kwargs)
            with torch.no_grad():
                for norm, value in zip(norms, before, strict=True):
                    norm.copy_(value)
            return result


class StepsFiveTimes(Suite):
    finds = "a short training ends near that in float32"

    class precision(Precision):
        def optimizer_step(self, optimizer, closure=None, **kwargs):
            for _ in range(4 if closure is None else 0):
                super().optimizer_step(optimizer, **kwargs)
            return super().optimizer_step(optimizer, closure, **kwargs)


class ClipsScaledGradients(Suite):
    slow = False
    finds = "gradients are clipped at their own size"

    class precision(MixedPrecision):
        def unscale_gradients(self, optimizer):
            pass


class LosesTheLoss(Suite):
    finds = "a step returns the loss of its closure"

    class precision(Precision):
        def optimizer_step(self, optimizer, closure=None, **kwargs):
            super().optimizer_step(optimizer, closure, **kwargs)


class SkipsInSilence(Suite):
    finds = "a step with gradients that are not finite is skipped where the loss is scaled"

    class precision(MixedPrecision):
        def step_was_skipped(self, optimizer):
            return False


class ClipsOthers(Suite):
    finds = "what is clipped is what the optimizer steps"

    class precision(Precision):
        def main_params(self, optimizer):
            yield from super().main_params(optimizer)
            yield torch.nn.Parameter(torch.zeros(1))


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class precision(Precision):
        bound = False

        def bind(self, selection):
            super().bind(selection)
            self.bound = True

        def teardown(self):
            if not self.bound:
                raise RuntimeError("it was never bound")


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == ({suite.finds} if suite.finds else set()), "\n".join(failed.values())


def test_every_check_of_precisions_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    assert {one.title for one in requirements(PrecisionCompliance)} == {suite.finds for suite in FAULTS} - {None}
