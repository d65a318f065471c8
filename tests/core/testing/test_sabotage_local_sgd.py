"""Strategies that average parameters now and then (``averages_gradients = False``), with one planted fault each."""

import contextlib

import pytest
import torch

from poplin.strategies import ParallelStrategy
from poplin.testing import StrategyCompliance, run_suite

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


class LocalSGD(ParallelStrategy):
    """Each rank steps by itself; every second step the parameters are averaged."""

    averages_gradients = False
    period = 2

    def __init__(self):
        super().__init__()
        self._modules = []
        self._steps = 0

    def setup_module(self, module):
        with torch.no_grad():
            for tensor in [*module.parameters(), *module.buffers()]:
                tensor.copy_(self.broadcast(tensor))
        self._modules.append(module)
        return module

    def optimizer_step(self, optimizer, model=None, **kwargs):
        result = super().optimizer_step(optimizer, model, **kwargs)
        self._steps += 1
        if self._steps % self.period == 0:
            self.average()
        return result

    def average(self):
        with torch.no_grad():
            for module in self._modules:
                for parameter in module.parameters():
                    self.all_reduce(parameter)

    def get_module_state_dict(self, module, sharded=False):
        """The mean of what the ranks hold; the module stays what it is."""
        state = {name: value.clone() for name, value in super().get_module_state_dict(module, sharded).items()}
        return {name: self.all_reduce(value) for name, value in state.items()}

    def get_optimizer_state(self, optimizer, names, sharded=False):
        state = super().get_optimizer_state(optimizer, names, sharded)
        for moments in state["state"].values():
            for name in moments:
                moments[name] = self.all_reduce(moments[name].clone())
        return state

    def teardown(self):
        self._modules.clear()
        super().teardown()


class Suite(StrategyCompliance):
    slow = True  # those that are not are run with the ordinary tests
    period = 2
    timeout = 20
    exempt = {
        "test_a_rank_that_dies_in_training_is_an_error_on_the_others": "its ranks meet every second step only",
    }
    made_of = LocalSGD
    finds = ()

    def create(self):
        return self.made_of()


class Sound(Suite):
    slow = False


class ClaimsToBeSynchronous(Suite):
    slow = False
    finds = (
        "several processes train as one",
        "every process starts from the values of the first",
        "accumulated gradients are those of the whole batch",
        "gradients stay local without synchronisation",
        "clipping by norm is that of a single process",
        "clipping by the greatest gradient is that of a single process",
        "clipping by value is that of a single process",
        "a marked method is a forward",
        "a training goes on from a checkpoint as if it had never stopped",
        "a single process reads what was saved",
    )

    class made_of(LocalSGD):
        averages_gradients = True


class NeverAverages(Suite):
    slow = False
    finds = (
        "every process ends with the same values",
        "a training goes on from a checkpoint as if it had never stopped",  # there is none that a file could hold
    )

    class made_of(LocalSGD):
        def average(self):
            pass


class EachStartsFromItsOwn(Suite):
    finds = ("every process starts from the values of the first",)

    class made_of(LocalSGD):
        def setup_module(self, module):
            self._modules.append(module)
            return module


class AveragesWhereItSaves(Suite):
    finds = ("saving changes nothing of the training",)

    class made_of(LocalSGD):
        def get_module_state_dict(self, module, sharded=False):
            self.average()
            return ParallelStrategy.get_module_state_dict(self, module, sharded)


class AccumulatesTooLittle(Suite):
    finds = ("accumulated gradients are those of the whole batch",)

    class made_of(LocalSGD):
        @contextlib.contextmanager
        def no_backward_sync(self, module, enabled=True):
            yield
            for parameter in module.parameters() if enabled else ():
                parameter.grad *= 0.9


class NormAfterClipping(Suite):
    finds = ("clipping by norm is that of a single process",)

    class made_of(LocalSGD):
        def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
            norm = super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)
            return norm.clamp(max=max_norm) if norm_type == 2.0 else norm


class ClipsNoValues(Suite):
    finds = ("clipping by value is that of a single process",)

    class made_of(LocalSGD):
        def clip_gradients_value(self, module, optimizer, clip_val):
            pass


class MarkedMethodsGoAround(Suite):
    finds = ("a marked method is a forward",)

    class made_of(LocalSGD):
        needs_forward = True

        def forward_method(self, wrapped, name):
            method = getattr(wrapped, name)
            return lambda *args: 0.0 * method(*args)


class ForgetsMoments(Suite):
    finds = ("a training goes on from a checkpoint as if it had never stopped",)

    class made_of(LocalSGD):
        def load_optimizer_state(self, optimizer, state, names):
            pass


class OuterMomentum(LocalSGD):
    """What the ranks have moved since they met is a gradient of an outer optimizer: DiLoCo."""

    def setup_module(self, module):
        super().setup_module(module)
        self._anchor = [parameter.detach().clone() for parameter in module.parameters()]
        self._outer = torch.optim.SGD(self._anchor, lr=0.7, momentum=0.9, nesterov=True)
        return module

    def average(self):
        for module in self._modules:
            parameters = list(module.parameters())
            with torch.no_grad():
                for anchor, parameter in zip(self._anchor, parameters, strict=True):
                    anchor.grad = self.all_reduce(anchor - parameter)
                self._outer.step()
                for anchor, parameter in zip(self._anchor, parameters, strict=True):
                    parameter.copy_(anchor)

    def state_dict(self):
        return {"anchor": self._anchor, "outer": self._outer.state_dict(), "steps": self._steps}

    def load_state_dict(self, state):
        for anchor, value in zip(self._anchor, state["anchor"], strict=True):
            anchor.copy_(value)
        self._outer.load_state_dict(state["outer"])
        self._steps = state["steps"]


class SoundWithState(Suite):
    exempt = Suite.exempt | {"test_one_process_trains_as_plain_torch": "the outer optimizer has a part in it"}
    made_of = OuterMomentum


class ForgetsItsState(SoundWithState):
    slow = False
    finds = ("a training goes on from a checkpoint as if it had never stopped",)

    class made_of(OuterMomentum):
        def state_dict(self):
            return {}


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == set(suite.finds), "\n".join(failed.values())


def test_a_strategy_that_averages_now_and_then_is_not_compared_with_a_single_process():
    told = {outcome.check: outcome for outcome in run_suite(Sound)}
    for check in ("several processes train as one", "gradients stay local without synchronisation"):
        assert told[check].status == "not claimed"
        assert "averages_gradients = False" in told[check].message
    assert told["every process ends with the same values"].status == "passed"
    assert told["one process trains as plain torch"].status == "passed"
