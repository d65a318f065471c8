"""The suite for precisions.

How to use it::

    from poplin.testing import PrecisionCompliance

    class TestAcme(PrecisionCompliance):
        name = "acme-mixed"           # or: def create(self): return AcmePrecision(...)
        accelerator = "acme"          # what it runs on in the checks; the CPU by default
        tolerance = 0.1               # how far a short training may end from that in float32

        def model(self): ...          # where it needs another model than two linear layers and a norm

The traits are read (``converts_module``, ``converts_data``, ``scales_loss``, ``autocasts``): each is held to what it
says, True or False. Everything runs on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from poplin import Fabric
from poplin.errors import SelectionError
from poplin.registry.names import fold, parse_reference
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import requirement
from poplin.testing.suites.extension import Common
from poplin.testing.suites.training import SmallNet, fabric_training, plain_optimizer_of, plain_training, seeded

STEPS = 4


class PrecisionBase(Common):
    """Settings and helpers of the suite for precisions."""

    kind = "precisions"
    #: How far values may be from those of a training in float32, relative and absolute.
    tolerance: float = 0.1

    def model(self) -> nn.Module:
        """The model that is trained: takes ``(batch, 8)``, gives ``(batch, 4)``. Override it for one of your own."""
        return SmallNet()

    def fabric(self, case: Case) -> Fabric:
        """A Fabric on one device with a new object of the precision; closed after the check.

        Raises:
            NotClaimed: it refuses the device.
        """
        precision = self.create()
        try:
            fabric = Fabric(accelerator=self.accelerator, strategy="single_device", devices=1, precision=precision)
        except SelectionError as error:
            case.not_claimed(f"it refuses accelerator={self.accelerator!r}: {error}")
        return case.use(fabric)

    def set_up(self, case: Case, fabric: Fabric) -> tuple[Any, Any]:
        """A model and its optimizer, set up.

        Raises:
            NotClaimed: it leaves nothing that can be trained.
        """
        module = seeded(self.model)
        if not fabric.precision.converts_module:
            return tuple(fabric.setup(module, plain_optimizer_of(module)))
        wrapped = fabric.setup_module(module)
        if not any(parameter.requires_grad for parameter in wrapped.parameters()):
            case.not_claimed("it leaves no parameter that can be trained")
        return wrapped, fabric.setup_optimizers(plain_optimizer_of(wrapped))

    def needs_all_trained(self, case: Case, module: nn.Module) -> None:
        """A comparison with plain training says nothing where a part of the model is frozen.

        Raises:
            NotClaimed: it has frozen something, as quantisation does.
        """
        trained = {name for name, value in module.named_parameters() if value.requires_grad}
        frozen = [
            name for name, value in self.model().named_parameters() if value.requires_grad and name not in trained
        ]
        if frozen:
            case.not_claimed(f"it freezes {', '.join(frozen)}")


class Declarations(PrecisionBase):
    """Checks of what a precision says of itself."""

    @requirement("Precision.precision")
    def test_it_is_called_what_it_is_looked_up_by(self, case: Case) -> None:
        """``precision`` is the canonical name, the one under which it is offered."""
        found = self.create().precision
        case.expect(isinstance(found, str) and found, "a name, a string", repr(found))
        if self.name is not None:
            case.expect_equal(fold(found), fold(parse_reference(self.name).name), "precision, but for case and -_.")

    @requirement("Precision.device_types")
    def test_it_names_the_device_types_that_it_serves(self, case: Case) -> None:
        """``device_types`` is None for all, or a tuple of torch's names."""
        found = self.create().device_types
        fits = found is None or (isinstance(found, tuple) and all(isinstance(one, str) for one in found))
        case.expect(fits, "None, or a tuple of strings", repr(found))

    @requirement("Precision.converts_module")
    def test_parameters_are_converted_as_it_says(self, case: Case) -> None:
        """``converts_module``: setup changes the dtype (or the class) of parameters. False: it changes neither."""
        fabric = self.fabric(case)
        before = {name: (value.dtype, type(value)) for name, value in seeded(self.model).named_parameters()}
        wrapped = fabric.setup(seeded(self.model))
        after = {name: (value.dtype, type(value)) for name, value in wrapped.named_parameters()}
        if fabric.precision.converts_module:
            case.expect(after != before, "other parameters (converts_module = True)", "the same dtypes and classes")
        else:
            case.expect(after == before, "the same parameters (converts_module = False)", _dtypes(after))

    @requirement("Precision.shardable")
    def test_what_is_shardable_has_ordinary_parameters(self, case: Case) -> None:
        """``shardable``: the converted module has the parameters that it had, dense and of the same shapes."""
        fabric = self.fabric(case)
        if not fabric.precision.shardable:
            case.not_claimed("shardable = False")
        before = {name: tuple(value.shape) for name, value in seeded(self.model).named_parameters()}
        parameters = dict(fabric.precision.convert_module(seeded(self.model)).named_parameters())
        case.expect_equal({name: tuple(value.shape) for name, value in parameters.items()}, before, "its parameters")
        odd = [name for name, value in parameters.items() if type(value) is not nn.Parameter]
        case.expect(not odd, "plain nn.Parameter objects", ", ".join(odd))

    @requirement("Precision.convert_module")
    def test_converting_keeps_integers(self, case: Case) -> None:
        """Buffers that count or index keep their integer dtype."""
        fabric = self.fabric(case)
        module = seeded(self.model)
        module.register_buffer("counter", torch.tensor([3]))
        wrapped: Any = fabric.setup(module)
        case.expect_equal(wrapped.counter.dtype, torch.int64, "dtype of an integer buffer")

    @requirement("Precision.converts_data")
    def test_data_is_converted_as_it_says(self, case: Case) -> None:
        """``converts_data``: floats are cast, in nested data too, integers not. False: data stays what it is."""
        precision = self.fabric(case).precision
        whole, floats = torch.tensor([1]), torch.ones(2, dtype=torch.float64)
        data = {"nested": [whole, floats], "word": "a"}
        found = precision.convert_input(data)
        if not precision.converts_data:
            case.expect(found is data, "the data as it is (converts_data = False)", found)
            return
        case.expect_equal(found["nested"][0].dtype, torch.int64, "dtype of integers")
        case.expect(found["nested"][1].is_floating_point(), "floats that stay floats", found["nested"][1].dtype)
        case.expect_equal(found["word"], "a", "what is no tensor")
        case.expect_equal(floats.dtype, torch.float64, "dtype of the data that was handed in, afterwards")

    @requirement("Precision.autocasts")
    def test_the_forward_context_autocasts_as_it_says(self, case: Case) -> None:
        """``autocasts``: torch's autocast is on in ``forward_context``, and only there, whatever is raised in it."""
        fabric = self.fabric(case)
        device_type = fabric.device.type
        inside = _seen_in(fabric.precision.forward_context, lambda: torch.is_autocast_enabled(device_type))
        case.expect_equal(inside, fabric.precision.autocasts, "whether torch autocasts in forward_context")
        case.expect(not torch.is_autocast_enabled(device_type), "no autocast after it", "it is on")

    @requirement("Precision.module_init_context")
    def test_contexts_for_new_tensors_leave_nothing_behind(self, case: Case) -> None:
        """After each context torch's default dtype is what it was, whatever is raised in it."""
        precision = self.fabric(case).precision
        for name in ("tensor_init_context", "module_init_context", "forward_context"):
            before = torch.get_default_dtype()
            _seen_in(getattr(precision, name), lambda: None)
            case.expect_equal(torch.get_default_dtype(), before, f"the default dtype after {name}")

    @requirement("Precision.module_init_context")
    def test_a_module_made_in_its_context_has_the_dtype_that_converting_gives(self, case: Case) -> None:
        """``init_module`` makes parameters of the dtype that setup would give them."""
        fabric = self.fabric(case)
        with fabric.init_module():
            made = seeded(self.model)
        first = {name: value.dtype for name, value in fabric.setup(made).named_parameters()}
        second = {name: value.dtype for name, value in fabric.setup(seeded(self.model)).named_parameters()}
        case.expect_equal(first, second, "the dtypes of a module made in init_module and set up")

    @requirement("Precision.state_dict")
    def test_its_state_survives_a_restart(self, case: Case) -> None:
        """``state_dict`` has tensors and plain values only, and a new object takes it."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        fabric_training(fabric, module, optimizer, 1)
        state = fabric.precision.state_dict()
        bad = [name for name, value in state.items() if not isinstance(value, (Tensor, int, float, str, type(None)))]
        case.expect(not bad, "tensors and plain values", {name: type(state[name]).__name__ for name in bad})
        other = self.fabric(case).precision
        other.load_state_dict(state)
        case.expect_equal(other.state_dict(), state, "the state of an object that has loaded it")


class PrecisionTraining(PrecisionBase):
    """Checks of what a precision trains."""

    @requirement("Precision.forward_context")
    def test_inputs_in_float32_are_fine_and_the_output_suits_a_loss(self, case: Case) -> None:
        """A set-up module takes float32 inputs, and its output goes into a loss with float32 targets."""
        fabric = self.fabric(case)
        module = fabric.setup(seeded(self.model))
        output = module(fabric.to_device(torch.ones(2, 8)))
        loss = nn.functional.mse_loss(output, fabric.to_device(torch.zeros(2, 4, dtype=output.dtype)))
        case.expect(bool(torch.isfinite(loss)), "a finite loss", loss)
        wide = torch.finfo(output.dtype).bits >= 32
        case.expect(wide, "an output of float32 or wider, as a loss needs it", output.dtype)

    @requirement("Precision.optimizer_step")
    def test_every_parameter_really_moves(self, case: Case) -> None:
        """After one step each trainable parameter has other values, the norm's weight included."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        before = {name: value.detach().clone() for name, value in module.named_parameters() if value.requires_grad}
        fabric_training(fabric, module, optimizer, 1)
        after = dict(module.named_parameters())
        still = [name for name, value in before.items() if torch.equal(value, after[name].detach())]
        case.expect(not still, "every parameter has moved after a step", f"the same values as before: {still}")

    @requirement("Precision.backward")
    def test_a_short_training_ends_near_that_in_float32(self, case: Case) -> None:
        """After a few steps the parameters are near those of plain float32 training."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        self.needs_all_trained(case, module)
        fabric_training(fabric, module, optimizer, STEPS)
        reference = seeded(self.model)
        plain_training(reference, STEPS, make_optimizer=plain_optimizer_of)
        found = dict(module.named_parameters())
        for name, value in reference.named_parameters():
            if name in found and found[name].requires_grad and found[name].shape == value.shape:
                case.expect_close(found[name].float(), value, f"{name!r} after {STEPS} steps", self.tolerance)

    @requirement("Precision.unscale_gradients")
    def test_gradients_are_clipped_at_their_own_size(self, case: Case) -> None:
        """The norm that ``clip_gradients`` returns is that of the unscaled gradients, near the one in float32."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        self.needs_all_trained(case, module)
        norms = fabric_training(fabric, module, optimizer, 1, clip={"max_norm": 1000.0})
        expected = plain_training(seeded(self.model), 1, clip={"max_norm": 1000.0})
        case.expect_close(torch.tensor(norms), torch.tensor(expected), "the total norm", self.tolerance)

    @requirement("Precision.optimizer_step")
    def test_a_step_returns_the_loss_of_its_closure(self, case: Case) -> None:
        """``optimizer.step(closure)`` runs the closure and returns its loss, and parameters move."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        inputs = fabric.to_device(torch.ones(2, 8))
        before = [value.detach().clone() for value in module.parameters() if value.requires_grad]

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = module(inputs).square().mean()
            fabric.backward(loss, model=module)
            return loss

        found = optimizer.step(closure)
        case.expect(isinstance(found, Tensor), "the closure's loss", found)
        after = [value.detach() for value in module.parameters() if value.requires_grad]
        moved = any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))
        case.expect(moved, "parameters that moved", "none has")

    @requirement("Precision.scales_loss")
    def test_a_step_with_gradients_that_are_not_finite_is_skipped_where_the_loss_is_scaled(self, case: Case) -> None:
        """``scales_loss``: such a step moves nothing, says so, and the next one trains. False: none is ever skipped."""
        fabric = self.fabric(case)
        module, optimizer = self.set_up(case, fabric)
        precision = fabric.precision
        fabric_training(fabric, module, optimizer, 1)
        case.expect(not _skipped(fabric, optimizer), "step_was_skipped is False after a good step", "True")
        if not precision.scales_loss:
            return
        before = [value.detach().clone() for value in module.parameters()]
        loss = module(fabric.to_device(torch.ones(2, 8))).square().mean() * float("inf")
        fabric.backward(loss, model=module)
        optimizer.step()
        optimizer.zero_grad()
        same = all(torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
        case.expect(same, "a step that moves nothing, its gradients not being finite", "parameters have moved")
        case.expect(_skipped(fabric, optimizer), "step_was_skipped is True after it", "False")
        fabric_training(fabric, module, optimizer, 1)
        moved = any(not torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True))
        case.expect(moved, "a next step that moves parameters", "none has moved")

    @requirement("Precision.main_params")
    def test_what_is_clipped_is_what_the_optimizer_steps(self, case: Case) -> None:
        """``main_params`` yields the parameters of the optimizer."""
        fabric = self.fabric(case)
        _, optimizer = self.set_up(case, fabric)
        stepped = list(fabric.precision.main_params(optimizer.optimizer))
        expected = [value for group in optimizer.param_groups for value in group["params"]]
        case.expect_equal(
            [value.shape for value in stepped], [value.shape for value in expected], "shapes of main_params"
        )


class PrecisionCompliance(PrecisionTraining, Declarations):
    """What every precision must do: keep to its traits, train, and leave nothing behind."""


def _seen_in(context: Callable[[], Any], look: Callable[[], Any]) -> Any:
    """What ``look`` sees in a context, which is left by an error."""
    seen = []

    def look_and_fail() -> None:
        with context():
            seen.append(look())
            raise KeyError

    error_or_none(look_and_fail)
    return seen[0] if seen else None


def _skipped(fabric: Fabric, optimizer: Any) -> bool:
    return fabric.precision.step_was_skipped(optimizer.optimizer)


def _dtypes(parameters: dict[str, tuple[Any, type[Any]]]) -> str:
    return ", ".join(f"{name}: {kind.__name__} of {dtype}" for name, (dtype, kind) in parameters.items())
