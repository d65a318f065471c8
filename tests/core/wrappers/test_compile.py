"""The user's own torch.compile, taken off before setup and put back after it."""

import copy
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from wrapper_doubles import BF16Mixed, BF16True, F16Mixed, Parts, ReplicaStrategy

from poplin.wrappers import FabricModule, is_wrapped, unwrap

X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.layer(x))

    def training_step(self, batch):
        return self(batch).mean()


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()


class Backend:
    """Notes the graphs that it gets, and its options."""

    def __init__(self):
        self.graphs = []
        self.options = []

    def __call__(self, graph, inputs, **options):
        self.graphs.append(graph)
        self.options.append(options)
        return graph.forward


@pytest.mark.parametrize("precision", [None, BF16Mixed, BF16True, F16Mixed])
def test_a_compiled_module_is_compiled_again_with_its_own_settings(precision):
    parts = Parts(precision=precision() if precision else None)
    backend, module = Backend(), Net()
    compiled = torch.compile(module, backend=backend, fullgraph=True, options={"mine": 1})
    optimizer = torch.optim.SGD(compiled.parameters(), lr=0.1)
    model, optimizer = parts.setup(compiled, optimizer)
    assert isinstance(model, FabricModule)
    assert isinstance(model, Net)
    assert list(model.state_dict()) == list(module.state_dict()) == ["layer.weight", "layer.bias"]
    assert [name for name, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
    assert is_wrapped(model)
    assert unwrap(model) is module
    assert model.module is module
    assert model.device == torch.device("cpu")
    same = parts.setup(Net())
    same.load_state_dict(model.state_dict())
    assert torch.equal(model(X).float(), same(X).float())
    assert len(backend.graphs) == 1  # the whole module, precision included, without a graph break
    assert backend.options == [{"options": {"mine": 1}}] or backend.options == [{"mine": 1}]
    parts.backward(model(X).float().mean())
    optimizer.step()
    assert module.layer.weight.grad is not None
    if precision is F16Mixed:
        with pytest.raises(RuntimeError, match="fabric.backward"):
            model(X).mean().backward()


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_dynamic_shapes_stay_as_asked_for(dynamic):
    backend = Backend()
    model = Parts().setup(torch.compile(Net(), backend=backend, dynamic=dynamic))
    for size in (2, 3, 5, 6):
        model(torch.ones(size, 4))
    assert len(backend.graphs) == {True: 1, False: 4, None: 2}[dynamic]


@pytest.mark.parametrize("precision", [None, BF16Mixed])
def test_compiled_after_setup(precision):
    backend = Backend()
    model = Parts(precision=precision() if precision else None).setup(Net())
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), model(X))
    assert len(backend.graphs) == 1
    assert is_wrapped(compiled)
    compiled.mark_forward_method("training_step")
    assert compiled.training_step(X).shape == ()


def test_compiled_in_place_before_and_after_setup(group):
    for make in (Parts, lambda: Parts(precision=BF16Mixed()), lambda: Parts(ReplicaStrategy())):
        for before in (True, False):
            torch._dynamo.reset()
            parts, backend, module = make(), Backend(), Net()
            if before:
                module.compile(backend=backend)
            model = parts.setup(module)
            if not before:
                model.compile(backend=backend)
            expected = Net()
            expected.load_state_dict(model.state_dict())
            assert torch.allclose(model(X).float(), expected(X), atol=0.02)
            assert len(backend.graphs) == 1
            parts.backward(model(X).float().mean())
            assert module.layer.weight.grad is not None


def test_the_compilation_may_stay_inside(group):
    backend, module = Backend(), Net()
    for parts in (Parts(), Parts(ReplicaStrategy())):
        compiled = torch.compile(module, backend=backend)
        model = parts.setup(compiled, reapply_compile=False)
        assert isinstance(model, FabricModule)
        assert isinstance(model, Net)
        assert model.module is module
        assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
        backend.graphs.clear()
        torch._dynamo.reset()
        model(X)
        assert len(backend.graphs) == 1


def test_compiled_with_replicas(group):
    backend = Backend()
    parts = Parts(ReplicaStrategy())
    model = parts.setup(torch.compile(Net(), backend=backend))
    parts.backward(model(X).mean())
    assert len(backend.graphs) >= 1
    assert model.layer.weight.grad is not None
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]


@pytest.mark.parametrize("precision", [None, BF16Mixed, F16Mixed])
def test_a_compiled_module_is_copied_and_pickled_with_its_compilation(precision):
    parts = Parts(precision=precision() if precision else None)
    model = parts.setup(torch.compile(Net(), backend="eager", dynamic=False))
    copied = copy.deepcopy(model)
    for twin in (copied, pickle.loads(pickle.dumps(model)), pickle.loads(pickle.dumps(copied))):
        assert type(twin) is type(model)
        assert isinstance(twin, FabricModule)
        assert list(twin.state_dict()) == ["layer.weight", "layer.bias"]
        assert twin.layer.weight is not model.layer.weight
        expected = model(X)
        torch._dynamo.reset()
        compiled = torch._dynamo.utils.counters["frames"]["ok"]
        assert torch.equal(twin(X), expected)
        assert torch._dynamo.utils.counters["frames"]["ok"] == compiled + 1
    if precision is F16Mixed:  # the guard goes along with a copy, as that of an uncompiled module does
        with pytest.raises(RuntimeError, match="fabric.backward"):
            copied(X).mean().backward()


def test_a_state_dict_goes_into_and_out_of_a_compiled_module_by_hand():
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = Parts().setup(torch.compile(module, backend="eager"))
    state = model.state_dict()
    assert list(state) == list(module.state_dict())
    assert state._metadata["1"] == module.state_dict()._metadata["1"]
    other = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model.load_state_dict(other.state_dict())
    assert torch.equal(module[0].weight, other[0].weight)
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({"0.weight": module[0].weight})
    inside = nn.ModuleDict({"net": model, "head": nn.Linear(4, 1)})
    assert set(inside.state_dict()) == {*(f"net.{name}" for name in state), "head.weight", "head.bias"}
    assert len(model) == 2
    assert model[0] is module[0]


class Talker(nn.Module):
    """Has a method beside forward, and an attribute by a name that the wrapper has, too."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x)

    def generate(self, x, steps):
        self.seen = []
        for _ in range(steps):
            y = self(x)
            self.seen.append(y.dtype)
            x = torch.cat([x, y.float()])
        return x

    @property
    def size(self):
        return self.layer.weight.numel()

    @size.setter
    def size(self, value):
        self.layer = nn.Linear(4, value)


@pytest.mark.parametrize("precision", [None, BF16Mixed])
def test_only_the_forward_of_a_compiled_module_is_compiled(precision):
    backend = Backend()
    parts = Parts(precision=precision() if precision else None)
    model = parts.setup(torch.compile(Talker(), backend=backend))
    assert model.generate(X, 3).shape == (16, 4)  # as with torch: no compilation for each new length
    assert not backend.graphs
    assert set(model.seen) == {torch.bfloat16 if precision else torch.float32}
    model.mark_forward_method("generate")
    assert model.generate(X, 1).shape == (4, 4)
    assert not backend.graphs
    model.forward(X)
    assert len(backend.graphs) == 1
    assert model.size == 16
    model.size = 8
    assert model.module.layer.out_features == model.layer.out_features == 8
    model.eval()
    assert not model.module.training
    model.device = "mine"  # a name of the wrapper's: what the user's code sets is for the user's code
    assert model.module.device == "mine"
    assert model(X).shape == (2, 8)


def test_hooks_on_a_compiled_module_run_whenever_they_come():
    model = Parts().setup(torch.compile(Net(), backend="eager"))
    model(X)
    seen = []
    handles = [
        model.register_forward_pre_hook(lambda module, args: seen.append("before")),
        model.register_forward_hook(lambda module, args, output: seen.append("after")),
    ]
    model(X)
    assert seen == ["before", "after"]
    for handle in handles:
        handle.remove()
    model(X)
    assert len(seen) == 2


def test_a_module_compiled_before_and_after_setup():
    inner, outer = Backend(), Backend()
    model = Parts(precision=BF16Mixed()).setup(torch.compile(Net(), backend=inner))
    again = torch.compile(model, backend=outer, fullgraph=True)
    assert torch.equal(again(X), model(X))
    assert len(outer.graphs) == 1


def test_a_disabled_compilation():
    module = torch.compile(Net(), disable=True)
    assert Parts().setup(module)(X).shape == (2, 4)


def test_a_compiled_part_stays_as_it_is():
    backend = Backend()
    module = nn.Sequential(torch.compile(nn.Linear(4, 4), backend=backend), nn.ReLU())
    model = Parts(precision=BF16Mixed()).setup(module)
    model(X)
    assert len(backend.graphs) == 1


def test_setup_does_not_import_the_compiler():
    script = """
import sys, torch
from poplin import Fabric
before = "torch._dynamo.eval_frame" in sys.modules
f = Fabric(accelerator="cpu", devices=1)
m = torch.nn.Linear(1, 1)
model, optimizer = f.setup(m, torch.optim.SGD(m.parameters(), lr=0.1))
print(before, torch.compile.__module__)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "torch"]
