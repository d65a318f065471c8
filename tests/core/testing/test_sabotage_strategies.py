"""Strategies with one planted fault each: the check that names it fails, and no other.

Each is torch's data parallelism by `poplin-ddp` but for the fault.
"""

import contextlib
import copy
import pickle
import threading
import time

import pytest
import torch

from poplin.errors import CollectiveError
from poplin.strategies import SingleDeviceStrategy
from poplin.testing import StrategyCompliance, run_suite
from poplin_ddp.strategy import DDPStrategy

ALONE = {
    "test_a_rank_that_stays_away_is_an_error_on_the_others": "another fault",
    "test_a_rank_that_dies_in_training_is_an_error_on_the_others": "another fault",
}

pytestmark = pytest.mark.timeout(600)  # one test launches the ranks for all: on a busy machine it takes its time


class Suite(StrategyCompliance):
    slow = True  # those that are not are run with the ordinary tests
    exempt = ALONE  # they wait for timeouts
    timeout = 20
    made_of = DDPStrategy

    def create(self):
        return self.made_of()


class Sound(Suite):
    exempt = {}
    finds = None


class NotOfItsKind(Suite):
    finds = "it is made without arguments and is of its kind"

    def create(self):
        made = super().create()
        if made.__class__.__name__ == "DDPStrategy" and _in_check("test_it_is_made"):
            return object()
        return made


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class made_of(DDPStrategy):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class made_of(DDPStrategy):
        def module_sharded_context(self, module):
            return contextlib.nullcontext()


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class made_of(DDPStrategy):
        def teardown(self):
            self._communicator.log
            super().teardown()


class DataRankOfItsOwn(Suite):
    finds = "ranks and world size are those of the processes"

    class made_of(DDPStrategy):
        @property
        def node_rank(self):
            return super().node_rank

        @property
        def data_world_size(self):
            return self.world_size + (1 if _in_check("test_ranks_and_world_size") else 0)

        @property
        def data_rank(self):
            return self.global_rank + (self.world_size if _in_check("test_ranks_and_world_size") else 0)


class SumIsMean(Suite):
    slow = False
    finds = "all reduce sums"

    class made_of(DDPStrategy):
        def all_reduce(self, tensor, group=None, reduce_op="mean"):
            return super().all_reduce(tensor, group, "mean" if reduce_op == "sum" else reduce_op)


class IntegerMeanIsCut(Suite):
    finds = "all reduce means"

    class made_of(DDPStrategy):
        def all_reduce(self, tensor, group=None, reduce_op="mean"):
            return super().all_reduce(tensor, group, reduce_op).to(tensor.dtype)


class ProductIsMax(Suite):
    finds = "all reduce takes the greatest and the least"

    class made_of(DDPStrategy):
        def all_reduce(self, tensor, group=None, reduce_op="mean"):
            return super().all_reduce(tensor, group, "max" if reduce_op == "product" else reduce_op)


class GathersTruthAsFloats(Suite):
    finds = "all gather adds a dimension in rank order"

    class made_of(DDPStrategy):
        def all_gather(self, tensor, group=None, sync_grads=False):
            gathered = super().all_gather(tensor, group, sync_grads)
            return gathered.float() if tensor.dtype == torch.bool else gathered


class PadsUnequalShapes(Suite):
    finds = "all gather refuses unequal shapes on every rank"

    class made_of(DDPStrategy):
        def all_gather(self, tensor, group=None, sync_grads=False):
            if tensor.dim() == 1 and not tensor.requires_grad:
                longest = int(self.all_reduce(torch.tensor([tensor.numel()]), reduce_op="max"))
                tensor = torch.cat([tensor, tensor.new_zeros(longest - tensor.numel())])
            return super().all_gather(tensor, group, sync_grads)


class GatherCutsGradients(Suite):
    finds = "gradients flow through all gather if asked"

    class made_of(DDPStrategy):
        def all_gather(self, tensor, group=None, sync_grads=False):
            gathered = super().all_gather(tensor.detach(), group)
            return gathered.requires_grad_() if sync_grads else gathered


class SourceIsAlwaysZero(Suite):
    finds = "broadcast sends any object from any rank"

    class made_of(DDPStrategy):
        def broadcast(self, obj, src=0):
            return super().broadcast(obj, 0)


class UnsendableHurtsTheSenderOnly(Suite):
    finds = "broadcast of what cannot be sent is an error on every rank"

    class made_of(DDPStrategy):
        def broadcast(self, obj, src=0):
            if self.global_rank == src and not isinstance(obj, torch.Tensor):
                pickle.dumps(obj)
            return super().broadcast(obj, src)


class BarrierIsOpen(Suite):
    finds = "barrier waits for every rank"

    class made_of(DDPStrategy):
        def barrier(self, name=None, group=None):
            pass


class AnyIsAll(Suite):
    finds = "a decision is the same on every rank"

    class made_of(DDPStrategy):
        def reduce_boolean_decision(self, decision, all=True):
            return super().reduce_boolean_decision(decision, True)


class NobodyGoesFirst(Suite):
    finds = "rank zero goes first"

    class made_of(DDPStrategy):
        def rank_zero_first(self, local=False):
            return contextlib.nullcontext()


class TrainsAtHalfRate(Suite):
    finds = "one process trains as plain torch"

    class made_of(DDPStrategy):
        def optimizer_step(self, optimizer, model=None, **kwargs):
            scale = 0.5 if self.world_size == 1 else 1.0
            for group in optimizer.param_groups:
                group["lr"] *= scale
            result = super().optimizer_step(optimizer, model, **kwargs)
            for group in optimizer.param_groups:
                group["lr"] /= scale
            return result


class GradientsAreNotAveraged(Suite):
    """What else a strategy does with gradients can't be right then."""

    finds = (
        "several processes train as one",
        "every process ends with the same values",
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

    class made_of(DDPStrategy):
        def setup_module(self, module):
            return module


class EachRankStartsFromItsOwn(Suite):
    finds = "every process starts from the values of the first"

    class made_of(DDPStrategy):
        def __init__(self):
            super().__init__(init_sync=False)


class AccumulatesTooLittle(Suite):
    finds = "accumulated gradients are those of the whole batch"

    class made_of(DDPStrategy):
        @contextlib.contextmanager
        def no_backward_sync(self, module, enabled=True):
            with super().no_backward_sync(module, enabled):
                yield
            for parameter in module.parameters() if enabled else ():
                parameter.grad *= 0.9


class SynchronisesAllTheSame(Suite):
    finds = "gradients stay local without synchronisation"

    class made_of(DDPStrategy):
        def no_backward_sync(self, module, enabled=True):
            return contextlib.nullcontext()


class NormAfterClipping(Suite):
    finds = "clipping by norm is that of a single process"

    class made_of(DDPStrategy):
        def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
            norm = super().clip_gradients_norm(module, optimizer, max_norm, norm_type, error_if_nonfinite)
            return norm.clamp(max=max_norm) if norm_type == 2.0 else norm


class NormTypeIsIgnored(Suite):
    finds = "clipping by the greatest gradient is that of a single process"

    class made_of(DDPStrategy):
        def clip_gradients_norm(self, module, optimizer, max_norm, norm_type=2.0, error_if_nonfinite=True):
            return super().clip_gradients_norm(module, optimizer, max_norm, 2.0, error_if_nonfinite)


class ClipsNoValues(Suite):
    finds = "clipping by value is that of a single process"

    class made_of(DDPStrategy):
        def clip_gradients_value(self, module, optimizer, clip_val):
            pass


class NormStandsStill(Suite):
    """In float32 that is a wrong training, too."""

    finds = (
        "one process trains as plain torch",
        "several processes train as one",
        "every process starts from the values of the first",
        "accumulated gradients are those of the whole batch",
        "clipping by norm is that of a single process",
        "clipping by the greatest gradient is that of a single process",
        "clipping by value is that of a single process",
        "every parameter moves",
        "every parameter moves in bf16 true",
        "a marked method is a forward",
        "a training goes on from a checkpoint as if it had never stopped",
        "a single process reads what was saved",
    )

    class made_of(DDPStrategy):
        def optimizer_step(self, optimizer, model=None, **kwargs):
            return _without_norms(optimizer, lambda: super(type(self), self).optimizer_step(optimizer, model, **kwargs))


class NormStandsStillInHalf(Suite):
    finds = "every parameter moves in bf16 true"

    class made_of(DDPStrategy):
        def optimizer_step(self, optimizer, model=None, **kwargs):
            step = lambda: super(type(self), self).optimizer_step(optimizer, model, **kwargs)  # noqa: E731
            half = optimizer.param_groups[0]["params"][0].dtype == torch.bfloat16
            return _without_norms(optimizer, step) if half else step()


class MarkedMethodsGoAround(Suite):
    finds = "a marked method is a forward"

    class made_of(DDPStrategy):
        def forward_method(self, wrapped, name):
            return getattr(self.original_module(wrapped), name)


class ChangesTheUsersModule(Suite):
    finds = "the users module stays what it was"

    class made_of(DDPStrategy):
        def setup_module(self, module):
            wrapped = super().setup_module(module)
            if _in_check("test_the_users_module"):  # the optimizer would lose its parameters, and say so
                module.norm.weight = torch.nn.Parameter(module.norm.weight.detach().clone())
            return wrapped


class RefusesFrozenModules(Suite):
    finds = "a module without trainable parameters passes through"

    class made_of(DDPStrategy):
        def setup_module(self, module):
            if not any(parameter.requires_grad for parameter in module.parameters()):
                raise RuntimeError("DistributedDataParallel is not needed when a module doesn't require a gradient")
            return super().setup_module(module)


class CannotBeCopied(Suite):
    finds = "a module that is set up can be copied or says why not"

    class made_of(DDPStrategy):
        def setup_module(self, module):
            module.handle = threading.Lock()
            return super().setup_module(module)


class DropsABatch(Suite):
    finds = "ranks share the data and metrics count each sample once"

    class made_of(DDPStrategy):
        def process_dataloader(self, dataloader):
            return [*dataloader][1:]


class WorkersGetAClosure(Suite):
    finds = "what reaches dataloader workers can be sent"

    class made_of(DDPStrategy):
        def process_dataloader(self, dataloader):
            if dataloader.num_workers:
                dataloader.collate_fn = lambda batch: batch
            return dataloader


class LoadsInSilence(Suite):
    finds = "a module takes the values that it is given"

    class made_of(DDPStrategy):
        def load_module_state_dict(self, module, state, strict=True):
            super().load_module_state_dict(module, state, strict=False)


class SavesInTheBackground(Suite):
    finds = "what was saved is there when save returns"

    class made_of(DDPStrategy):
        def save_checkpoint(self, path, state, storage_options=None, filter=None):
            save = super().save_checkpoint
            if not _in_check("test_a_save_that_fails"):
                threading.Thread(target=lambda: [time.sleep(0.4), save(path, state, storage_options)]).start()
            else:
                save(path, state, storage_options)


class ForgetsMoments(Suite):
    finds = "a training goes on from a checkpoint as if it had never stopped"

    class made_of(DDPStrategy):
        def load_optimizer_state(self, optimizer, state, names):
            pass


class HalvesMomentsWhereItSaves(Suite):
    finds = "saving changes nothing of the training"

    class made_of(DDPStrategy):
        def get_optimizer_state(self, optimizer, names, sharded=False):
            state = copy.deepcopy(super().get_optimizer_state(optimizer, names, sharded))
            for moments in optimizer.state.values():
                moments["exp_avg"] *= 0.5
            return state


class WritesNamesOfItsOwn(Suite):
    finds = "a single process reads what was saved"

    class made_of(DDPStrategy):
        def save_checkpoint(self, path, state, storage_options=None, filter=None):
            own = {f"engine.{key}": value for key, value in state.items()}
            super().save_checkpoint(path, own, storage_options)

        def load_checkpoint(self, path, state=None, strict=True, weights_only=None):
            found = super().load_checkpoint(path, state, strict, weights_only)
            return {key.removeprefix("engine."): value for key, value in found.items()}


class EveryRankWrites(Suite):
    finds = "a file is written by rank zero alone"

    class made_of(DDPStrategy):
        def save_checkpoint(self, path, state, storage_options=None, filter=None):
            self.checkpoint_io.save_checkpoint(state, path, storage_options=storage_options)


class FailsInSilence(Suite):
    finds = "a save that fails on one rank fails on all"

    class made_of(DDPStrategy):
        def save_checkpoint(self, path, state, storage_options=None, filter=None):
            with contextlib.suppress(Exception):
                super().save_checkpoint(path, state, storage_options)


class MissingRanksAreMissed(Suite):
    exempt = {}
    finds = "a rank that stays away is an error on the others"

    class made_of(DDPStrategy):
        def all_reduce(self, tensor, group=None, reduce_op="mean"):
            try:
                return super().all_reduce(tensor, group, reduce_op)
            except CollectiveError:
                return tensor


class DeadRanksAreMissed(Suite):
    exempt = {}
    finds = "a rank that dies in training is an error on the others"

    class made_of(DDPStrategy):
        def run_engine(self, what, function, *args, **kwargs):
            try:
                return super().run_engine(what, function, *args, **kwargs)
            except CollectiveError:
                return torch.zeros(1, requires_grad=True)

        def barrier(self, name=None, group=None):
            with contextlib.suppress(CollectiveError):
                super().barrier(name, group)


class LeavesItsGroup(Suite):
    finds = "teardown destroys the process group that it made"

    class made_of(DDPStrategy):
        def teardown(self):
            if not _in_check("test_teardown_destroys"):  # later checks would find it
                super().teardown()


class ClaimsOneDeviceOnly(Suite):
    """Not a fault: it says so, and is asked for no more."""

    finds = None
    made_of = SingleDeviceStrategy


def _without_norms(optimizer, step):
    """A step after which the norm's weight is what it was."""
    params = [one for group in optimizer.param_groups for one in group["params"]]
    norms = [one for one in params if one.dim() == 1 and bool((one == 1).all())]
    before = [norm.detach().clone() for norm in norms]
    result = step()
    with torch.no_grad():
        for norm, value in zip(norms, before, strict=True):
            norm.copy_(value)
    return result


def _in_check(method):
    import os

    return method in os.getcwd()


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


def finds(suite):
    return {suite.finds} if isinstance(suite.finds, str) else set(suite.finds or ())


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == finds(suite), "\n".join(failed.values())


def test_every_check_of_strategies_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    inseparable = {  # whatever gets these wrong fails half of the others
        "the original module is the users",
        "a module is saved under the users names",
        "an optimizers state is saved by parameter name",
    }
    named = set().union(*map(finds, FAULTS))
    assert {one.title for one in requirements(StrategyCompliance)} == named | inseparable
