"""What becomes of a model, with the real library on the CPU, where float8 is emulated."""

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.errors import ArgumentValueError

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10))


def precisions():
    from poplin_torchao import Float8Precision, Int8Precision

    return {
        **{recipe: Float8Precision(recipe) for recipe in ("tensorwise", "rowwise", "rowwise_with_gw_hp")},
        "int8": Int8Precision(),
        "int8 without": Int8Precision(grad_weight=False, dtype=torch.float32),
    }


@pytest.mark.parametrize("name", ["tensorwise", "rowwise", "rowwise_with_gw_hp", "int8", "int8 without"])
def test_a_model_trains_and_its_checkpoint_continues_it(name, tmp_path):
    inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(32) % 10

    def steps(fabric, model, optimizer, count):
        losses = []
        for _ in range(count):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=10.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    with Fabric(accelerator="cpu", devices=1, plugins=precisions()[name]) as fabric:

        def start():
            model = fabric.setup_module(make())
            return model, fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9))

        exact = make()(inputs)
        model, optimizer = start()
        found = model(inputs)
        assert 0 < (found - exact).norm() / exact.norm() < 0.1
        losses = steps(fabric, model, optimizer, 6)
        assert losses[-1] < losses[0] - 0.2, losses
        fabric.save(tmp_path / "half.ckpt", {"model": model, "optimizer": optimizer})
        expected = steps(fabric, model, optimizer, 3)
        other, its_optimizer = start()
        fabric.load(tmp_path / "half.ckpt", {"model": other, "optimizer": its_optimizer})
        assert steps(fabric, other, its_optimizer, 3) == pytest.approx(expected, rel=0.02)


def test_which_layers_are_replaced_and_that_emulation_is_said():
    from torchao.float8.float8_linear import Float8Linear

    from poplin_torchao import Float8Precision

    with Fabric(accelerator="cpu", devices=1, plugins=Float8Precision(ignore_modules={"2"})) as fabric:
        model = fabric.setup(make())
        assert [isinstance(layer, Float8Linear) for layer in model] == [True, False, False, False, False]
        assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
        assert "emulated" in str(fabric.explain())


def test_a_model_without_a_layer_that_fits_is_refused_untouched():
    with Fabric(accelerator="cpu", devices=1, precision="torchao-float8") as fabric:
        small = nn.Sequential(nn.Linear(7, 16), nn.Linear(16, 10))
        with pytest.raises(ArgumentValueError, match=r"none.*multiples of 16.*0 \(7 -> 16\)"):
            fabric.setup(small)
        assert small[0].weight.dtype == torch.float32
        with pytest.raises(ArgumentValueError, match="single nn.Linear"):
            fabric.setup(nn.Linear(16, 16))
