"""The logic of the precision. Transformer Engine needs an NVIDIA GPU: a stub stands for it here, and is called one.

The stub has the names that the precision uses, layers that compute as torch's, and an autocast that counts. What is
shown is what the precision does to a model and in which order; nothing is shown of float8.
"""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.errors import ArgumentTypeError, ArgumentValueError, MissingPackageError, SelectionError, UsageError


@pytest.fixture
def stub(monkeypatch):
    """A stub of transformer_engine, in the place of the library."""
    events = []

    class StubLinear(nn.Linear):
        def __init__(self, in_features, out_features, bias=True, params_dtype=None, device=None):
            super().__init__(in_features, out_features, bias, device=device, dtype=params_dtype)

        def forward(self, inputs):
            events.append("float8 linear" if "in" in events and events[-1] != "out" else "linear outside")
            return super().forward(inputs)

    class StubLayerNorm(nn.LayerNorm):
        def __init__(self, hidden, eps=1e-5, params_dtype=None, device=None):
            super().__init__(hidden, eps=eps, device=device, dtype=params_dtype)

    class StubAutocast:
        def __init__(self, enabled=False, fp8_recipe=None):
            self.recipe = fp8_recipe
            assert enabled

        def __enter__(self):
            events.append("in")

        def __exit__(self, *exception):
            events.append("out")

    class StubDelayedScaling(SimpleNamespace):
        pass

    library, pytorch = ModuleType("transformer_engine"), ModuleType("transformer_engine.pytorch")
    common, recipe = ModuleType("transformer_engine.common"), ModuleType("transformer_engine.common.recipe")
    pytorch.Linear, pytorch.LayerNorm, pytorch.fp8_autocast = StubLinear, StubLayerNorm, StubAutocast
    recipe.DelayedScaling, recipe.Format = StubDelayedScaling, SimpleNamespace(HYBRID="hybrid", E4M3="e4m3")
    for module in (library, pytorch, common, recipe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(events=events, pytorch=pytorch)


def make(name="transformer-engine"):
    from poplin_transformer_engine import TransformerEnginePrecision

    return TransformerEnginePrecision(torch.float16 if name.endswith("16") else torch.bfloat16)


class OnCPU:
    """What lets the stub run without a GPU: the precision with the CPU among its device types."""

    def __new__(cls, *args, **kwargs):
        from poplin_transformer_engine import TransformerEnginePrecision

        class Precision(TransformerEnginePrecision):
            device_types = ("cpu",)

        return Precision(*args, **kwargs)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 16)
        self.norm = nn.LayerNorm(16)
        self.odd = nn.Linear(16, 5)  # 5 is no multiple of 8
        self.plain = nn.LayerNorm(5, elementwise_affine=False)

    def forward(self, inputs):
        return self.plain(self.odd(self.norm(self.first(inputs))))


def test_layers_that_fit_are_replaced_with_their_values_and_run_in_the_float8_autocast(stub):
    torch.manual_seed(0)
    module = Net()
    module.first.bias.requires_grad_(False)
    kept = {name: value.detach().clone() for name, value in module.named_parameters()}
    with Fabric(accelerator="cpu", devices=1, plugins=OnCPU()) as fabric:
        model = fabric.setup_module(module)
        kinds = [type(layer).__name__ for layer in (model.first, model.norm, model.odd, model.plain)]
        assert kinds == ["StubLinear", "StubLayerNorm", "Linear", "LayerNorm"]
        for name, value in model.named_parameters():
            assert value.dtype == torch.bfloat16
            assert torch.equal(value, kept[name].bfloat16())
        assert not model.first.bias.requires_grad
        optimizer = fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
        output = model(torch.randn(8, 32))
        assert output.dtype == torch.float32
        assert stub.events == ["in", "float8 linear", "out"]
        fabric.backward(output.square().sum() + output.sum() * 2)
        optimizer.step()
        assert not torch.equal(model.odd.weight, kept["odd.weight"].bfloat16())


def test_an_error_in_a_forward_leaves_both_autocasts(stub):
    with Fabric(accelerator="cpu", devices=1, plugins=OnCPU()) as fabric:
        model = fabric.setup(Net())
        with pytest.raises(RuntimeError):
            model(torch.randn(8, 3))
        assert stub.events[-1] == "out"
        assert not torch.is_autocast_enabled("cpu")
        assert torch.get_default_dtype() == torch.float32


def test_a_model_with_layers_of_its_own_keeps_them(stub):
    own = nn.Sequential(stub.pytorch.Linear(32, 16), nn.Linear(16, 16))
    with Fabric(accelerator="cpu", devices=1, plugins=OnCPU(replace_layers=True)) as fabric:
        with pytest.warns(UserWarning, match="none is replaced"):
            model = fabric.setup(own)
        assert [type(layer).__name__ for layer in model] == ["StubLinear", "Linear"]
    with Fabric(accelerator="cpu", devices=1, plugins=OnCPU(replace_layers=False)) as fabric:
        assert type(fabric.setup(nn.Sequential(nn.Linear(32, 16)))[0]) is nn.Linear


def test_recipes(stub):
    assert vars(OnCPU(recipe={"amax_history_len": 16, "fp8_format": "E4M3"}).recipe) == {
        "amax_history_len": 16,
        "fp8_format": "e4m3",
    }
    mine = object()
    assert OnCPU(recipe=mine).recipe is mine
    with pytest.raises(ArgumentValueError, match="fp8_format='E5'"):
        OnCPU(recipe={"fp8_format": "E5"})
    with pytest.raises(ArgumentTypeError, match="DelayedScaling"):
        OnCPU(recipe="delayed")


def test_names_dtypes_and_devices(stub):
    assert make().precision == "transformer-engine"
    assert make("float16").precision == "transformer-engine-float16"
    assert make("float16").weights_dtype == torch.float16
    from poplin_transformer_engine import plugin

    offers = plugin.poplin_precisions()
    assert {name: offer().precision for name, offer in offers.items()} == {name: name for name in offers}
    with pytest.raises(ArgumentValueError, match="weights_dtype"):
        OnCPU(torch.float32)
    with pytest.raises(SelectionError, match=r"on 'cpu' devices, only on cuda"):
        Fabric(accelerator="cpu", devices=1, plugins=make())
    with Fabric(accelerator="cpu", devices=1, plugins=OnCPU()) as fabric:
        with pytest.raises(UsageError, match="single layer"):
            fabric.setup(nn.Linear(16, 16))
        with torch.device("meta"):
            empty = Net()
        with pytest.raises(UsageError, match="meta"):
            fabric.setup(empty)


def test_without_the_library_the_error_has_the_pip_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    monkeypatch.delitem(sys.modules, "transformer_engine.pytorch", raising=False)
    with pytest.raises(MissingPackageError, match="pip install --no-build-isolation 'transformer-engine"):
        make()
