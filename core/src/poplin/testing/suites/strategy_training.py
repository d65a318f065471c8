"""Checks of what a strategy trains: the values of a single process, and what is the user's."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from poplin.errors import PoplinError
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.strategy_base import StrategyBase
from poplin.testing.suites.training import fabric_training, optimizer_of, seeded, share
from poplin.wrappers import unwrap

STEPS = 4
#: Why a strategy is not compared with a single process.
OWN_STEPS = "averages_gradients = False: each rank steps with gradients of its own"


class Training(StrategyBase):
    """Checks of setup, forward, backward, gradient synchronisation, clipping and steps."""

    def _ends_as_expected(self, case: Case, *, averages: bool | None = None, **options: Any) -> None:
        fabric, module, norms = self.trained(case, self.steps(STEPS), **options)
        found = self.values(fabric, module)
        averages = fabric.strategy.averages_gradients if averages is None else averages
        fabric.close()
        values, expected = self.expected(case, averages, self.steps(STEPS), clip=options.get("clip"))
        whose = "a single process" if averages else "a run of its own"
        self.expect_values(case, found, values, f"after {self.steps(STEPS)} steps, as in {whose}")
        case.expect_equal(len(norms), len(expected), "the number of norms that clip_gradients returned")
        if norms:
            case.expect_close(torch.tensor(norms), torch.tensor(expected), "the norms before clipping", self.tolerance)

    @requirement("Strategy.setup_module", processes=1)
    def test_one_process_trains_as_plain_torch(self, case: Case) -> None:
        """In one process a training ends with the values of a plain torch loop."""
        self._ends_as_expected(case, averages=True)

    @requirement("Strategy.averages_gradients", processes=SEVERAL)
    def test_several_processes_train_as_one(self, case: Case) -> None:
        """``averages_gradients``: processes that share each batch end with the values of one that has all of it."""
        if not self.create().averages_gradients:
            case.not_claimed(OWN_STEPS)
        self._ends_as_expected(case)

    @requirement("Strategy.averages_gradients", processes=SEVERAL)
    def test_every_process_ends_with_the_same_values(self, case: Case) -> None:
        """After a training of whole periods the ranks hold the same parameters, to the last bit."""
        case.needs_several()
        fabric = self.fabric(case)
        if fabric.strategy.mutates_module or fabric.strategy.owns_parameters:
            case.not_claimed("parameters are sharded: mutates_module or owns_parameters is True")
        module, optimizer = self.set_up(fabric)
        fabric_training(fabric, module, optimizer, self.steps(STEPS))
        spread = self._spread(fabric, module.parameters())
        case.expect(spread == 0, "the same parameters on every rank", f"they differ by {spread:.3g}")

    @requirement("Strategy.setup_module", processes=SEVERAL)
    def test_every_process_starts_from_the_values_of_the_first(self, case: Case) -> None:
        """Ranks that were seeded differently train the model of rank 0."""
        self._ends_as_expected(case, seed=case.rank)

    @requirement("Strategy.no_backward_sync", processes=SEVERAL)
    def test_accumulated_gradients_are_those_of_the_whole_batch(self, case: Case) -> None:
        """Micro batches under ``no_backward_sync``, the last one without, step as the whole batch does."""
        self._ends_as_expected(case, micro_batches=2)

    @requirement("Strategy.no_backward_sync", processes=SEVERAL)
    def test_gradients_stay_local_without_synchronisation(self, case: Case) -> None:
        """Inside ``no_backward_sync`` a rank's gradients are its own; after a synchronised backward all have one."""
        case.needs_several()
        fabric = self.fabric(case)
        strategy = fabric.strategy
        if not strategy.supports_no_backward_sync:
            case.not_claimed("supports_no_backward_sync = False")
        if not strategy.averages_gradients:
            case.not_claimed(OWN_STEPS)
        if strategy.mutates_module or strategy.owns_parameters:
            case.not_claimed("gradients are sharded: mutates_module or owns_parameters is True")
        module, _ = self.set_up(fabric)
        inputs = share(fabric, torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
        with fabric.no_backward_sync(module):
            fabric.backward(module(inputs).square().sum(), model=module)
        case.expect(self._spread(fabric, _gradients(module)) > 1e-4, "gradients that differ across ranks", "equal ones")
        fabric.backward(module(inputs).square().sum(), model=module)
        spread = self._spread(fabric, _gradients(module))
        case.expect(spread < 1e-5, "equal gradients after a synchronised backward", f"they differ by {spread:.3g}")

    def _spread(self, fabric: Any, tensors: Iterable[torch.Tensor]) -> float:
        flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
        highest = fabric.strategy.all_reduce(flat.clone(), reduce_op="max")
        lowest = fabric.strategy.all_reduce(flat.clone(), reduce_op="min")
        return float((highest - lowest).abs().max())

    def _clipped(self, case: Case, **clip: float) -> None:
        error = error_or_none(lambda: self.trained(case, 1, clip=clip))
        if isinstance(error, (PoplinError, NotImplementedError)):
            case.not_claimed(f"it refuses to: {error}")
        strategy = self.create()
        if not strategy.averages_gradients and (strategy.mutates_module or strategy.owns_parameters):
            case.not_claimed("gradients are sharded, and no single process's: there is nothing to compare with")
        self._ends_as_expected(case, clip=clip)

    @requirement("Strategy.clip_gradients_norm", processes=SEVERAL)
    def test_clipping_by_norm_is_that_of_a_single_process(self, case: Case) -> None:
        """The total norm is that of the averaged gradients, it is returned, and the step is as in one process."""
        self._clipped(case, max_norm=0.05)

    @requirement("Strategy.clip_gradients_norm", processes=SEVERAL)
    def test_clipping_by_the_greatest_gradient_is_that_of_a_single_process(self, case: Case) -> None:
        """``norm_type=inf`` is clipped as in one process, or refused with an error; never ignored."""
        self._clipped(case, max_norm=0.01, norm_type=float("inf"))

    @requirement("Strategy.clip_gradients_value", processes=SEVERAL)
    def test_clipping_by_value_is_that_of_a_single_process(self, case: Case) -> None:
        """Gradients are clipped to ``[-clip_val, clip_val]`` after averaging, or it is refused with an error."""
        self._clipped(case, clip_val=0.002)

    @requirement("Strategy.optimizer_step", processes=SEVERAL)
    def test_every_parameter_moves(self, case: Case) -> None:
        """After one step each trainable parameter has other values, the norm's weight included."""
        self._all_move(case, {})

    @requirement("Strategy.accepts_precision", processes=SEVERAL)
    def test_every_parameter_moves_in_bf16_true(self, case: Case) -> None:
        """Under ``bf16-true`` too each parameter has other values after a step, the norm's weight included."""
        self._all_move(case, {"precision": "bf16-true"})

    def _all_move(self, case: Case, options: dict[str, Any]) -> None:
        fabric = self.fabric(case, **options)
        module, optimizer = self.set_up(fabric)
        before = {name: value.clone() for name, value in self.values(fabric, module).items()}
        fabric_training(fabric, module, optimizer, 1) if not options else self._step_in_its_dtype(
            fabric, module, optimizer
        )
        after = self.values(fabric, module)
        still = [name for name, value in after.items() if torch.equal(value, before[name])]
        case.expect(not still, "every parameter has moved after a step", f"the same values as before: {still}")

    def _step_in_its_dtype(self, fabric: Any, module: Any, optimizer: Any) -> None:
        inputs = share(fabric, torch.randn(8, 8, generator=torch.Generator().manual_seed(1)))
        fabric.backward(module(inputs).float().square().mean(), model=module)
        optimizer.step()

    @requirement("Strategy.forward_method", processes=SEVERAL)
    def test_a_marked_method_is_a_forward(self, case: Case) -> None:
        """A method marked by ``mark_forward_method`` trains as the same loss through ``forward`` does."""
        if type(self).model is not StrategyBase.model:
            case.not_claimed("the suite has a model of its own")
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric)
        module.mark_forward_method("scaled_loss")
        generator = torch.Generator().manual_seed(1)
        x, y = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
        fabric.backward(module.scaled_loss(share(fabric, x), share(fabric, y), 2.0), model=module)
        optimizer.step()
        found = self.values(fabric, module)
        averages = fabric.strategy.averages_gradients
        fabric.close()
        expected = self._through_forward(case, averages, x, y)
        self.expect_values(case, found, expected, "after a step through the marked method")

    def _through_forward(self, case: Case, averages: bool, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Values after the step of the marked method, taken through forward: by plain torch, or by the strategy."""
        if averages:
            reference = seeded(self.model)
            plain = optimizer_of(reference)
            (2.0 * nn.functional.mse_loss(reference(x), y)).backward()
            plain.step()
            return self.values_of(reference)
        fabric = self.fabric(case)
        module, optimizer = self.set_up(fabric)
        fabric.backward(2.0 * nn.functional.mse_loss(module(share(fabric, x)), share(fabric, y)), model=module)
        optimizer.step()
        return self.values(fabric, module)

    @requirement("Strategy.mutates_module", processes=SEVERAL)
    def test_the_users_module_stays_what_it_was(self, case: Case) -> None:
        """Unless ``mutates_module`` says so, setup changes neither the class nor the parameters of the module."""
        fabric = self.fabric(case)
        if fabric.strategy.mutates_module:
            case.not_claimed("mutates_module = True")
        module = fabric.to_device(seeded(self.model))  # for some devices torch itself makes new parameters
        kind, parameters = type(module), dict(module.named_parameters())
        fabric.setup(module)
        case.expect(type(module) is kind, f"a {kind.__name__} still", type(module).__name__)
        now = dict(module.named_parameters())
        other = [name for name, parameter in parameters.items() if now.get(name) is not parameter]
        case.expect(not other and len(now) == len(parameters), "the same parameter objects", f"others: {other}")

    @requirement("Strategy.original_module", processes=SEVERAL)
    def test_the_original_module_is_the_users(self, case: Case) -> None:
        """``original_module`` gives back the very object that was set up."""
        fabric = self.fabric(case)
        module = seeded(self.model)
        wrapped = fabric.setup(module)
        case.expect(unwrap(wrapped) is module, "the module that was handed to setup", type(unwrap(wrapped)).__name__)

    @requirement("Strategy.setup_module", processes=SEVERAL)
    def test_a_module_without_trainable_parameters_passes_through(self, case: Case) -> None:
        """A frozen module can be set up, and computes what it did."""
        fabric = self.fabric(case)
        frozen = seeded(self.model).requires_grad_(False)
        inputs = torch.ones(2, 8)
        expected = frozen(inputs)
        wrapped = fabric.setup(frozen)
        case.expect_close(wrapped(fabric.to_device(inputs)), expected, "the output of a frozen module", self.tolerance)

    @requirement("Strategy.picklable", processes=1)
    def test_a_module_that_is_set_up_can_be_copied_or_says_why_not(self, case: Case) -> None:
        """``picklable = True``: a set-up module pickles and deep-copies. False: both are a clear error."""
        fabric = self.fabric(case)
        module, _ = self.set_up(fabric)
        for name, action in (("deepcopy", copy.deepcopy), ("pickle", lambda one: pickle.loads(pickle.dumps(one)))):
            error = error_or_none(lambda action=action: action(module))  # type: ignore[misc]
            if fabric.strategy.picklable:
                case.expect(error is None, f"{name} of a set-up module (picklable = True)", repr(error))
            else:
                case.expect(isinstance(error, PoplinError), f"{name} is refused (picklable = False)", repr(error))

    @requirement("Strategy.process_dataloader", processes=SEVERAL)
    def test_ranks_share_the_data_and_metrics_count_each_sample_once(self, case: Case) -> None:
        """An uneven dataset: every rank gets as many batches, and ``gather_for_metrics`` sees each sample once."""
        fabric = self.fabric(case)
        data = torch.utils.data.TensorDataset(torch.arange(7))
        loader: Any = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, batch_size=2))
        counts, seen = 0, []
        for (batch,) in loader:
            counts += 1
            seen += fabric.gather_for_metrics(batch).tolist()
        most = fabric.strategy.all_reduce(torch.tensor([counts], device=fabric.device), reduce_op="max")
        case.expect_equal(int(most), counts, "the number of batches, as on the rank that has most")
        case.expect_equal(sorted(seen), list(range(7)), "the samples that metrics have seen")

    @requirement("Strategy.process_dataloader")
    def test_what_reaches_dataloader_workers_can_be_sent(self, case: Case) -> None:
        """Dataset, ``collate_fn`` and ``worker_init_fn`` of a set-up loader pickle: forkserver and spawn need that."""
        fabric = self.fabric(case)
        data = torch.utils.data.TensorDataset(torch.arange(4))
        loader: Any = fabric.setup_dataloaders(torch.utils.data.DataLoader(data, num_workers=1))
        for name in ("dataset", "collate_fn", "worker_init_fn"):
            error = error_or_none(lambda name=name: pickle.dumps(getattr(loader, name, None)))  # type: ignore[misc]
            case.expect(error is None, f"a {name} that pickles", repr(error))


def _gradients(module: Any) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
