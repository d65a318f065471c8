"""Methods that run as forwards, and those that go past the strategy."""

import threading

import pytest
import torch
from torch import nn
from wrapper_doubles import BF16Mixed, EngineStrategy, Parts, ReplicaStrategy

from poplin import errors
from poplin.wrappers.passage import running

X = torch.ones(2, 4)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = []

    def forward(self, x):
        self.calls.append("forward")
        return self.layer(x)

    def training_step(self, batch, batch_idx=0):
        return self(batch).mean()

    def features(self, x, *, scale=1.0):
        return self.layer(x) * scale

    def whole(self, x):
        return self(x)

    def through(self, model, x):
        return model(x)

    def fails(self, x):
        raise KeyError("x")

    def nothing(self):
        return 100

    @torch.no_grad()
    def decorated(self, x):
        return self.layer(x)

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def static(x):
        return x


def replica(precision=None):
    parts = Parts(ReplicaStrategy(), precision)
    return parts, parts.setup(Net())


def test_marked_methods_run_at_the_precision_on_one_device():
    model = Parts(precision=BF16Mixed()).setup(Net())
    assert model.training_step(X).dtype == torch.bfloat16
    with pytest.warns(errors.PossibleUserWarning, match="features.*outside of the autocast.*mark_forward_method"):
        assert model.features(X).dtype == torch.float32
    assert model.features(X).dtype == torch.float32  # told once
    model.mark_forward_method("features")
    assert model.features(X, scale=2.0).dtype == torch.bfloat16
    model.mark_forward_method(model.whole)
    assert model.whole(X).dtype == torch.bfloat16
    assert model.nothing() == 100


def test_nothing_is_told_of_unmarked_methods_that_run_at_the_precision_or_run_nothing():
    model = Parts(precision=BF16Mixed()).setup(Net())
    with torch.autocast("cpu", torch.bfloat16):
        assert model.features(X).dtype == torch.bfloat16
    assert model.whole(X).dtype == torch.bfloat16  # it calls the model itself, which is the wrapper
    assert model.through(model, X).dtype == torch.bfloat16
    assert model.nothing() == 100
    with pytest.raises(KeyError):
        model.fails(X)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_no_hook_gets_into_compiled_parts_of_unmarked_methods():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return x @ self.weight

    module = Net()
    module.layer = Part()
    module.layer.compile(backend=backend, fullgraph=True)
    model = Parts(precision=BF16Mixed()).setup(module)
    assert model.features(X).dtype == torch.float32
    assert len(graphs) == 1


def test_marking_is_allowed_where_nothing_is_to_be_done():
    model = Parts().setup(Net())
    model.mark_forward_method("features")
    assert model.features(X).shape == (2, 4)


@pytest.mark.parametrize(
    ("method", "error", "match"),
    [
        (1, TypeError, "got a int"),
        (None, TypeError, "NoneType"),
        ("forward", ValueError, "already"),
        ("missing", AttributeError, "no method of that name"),
        ("layers", AttributeError, "no method of that name"),
    ],
)
def test_what_can_not_be_marked(method, error, match):
    model = Parts().setup(Net())
    with pytest.raises(error, match=match) as caught:
        model.mark_forward_method(method)
    assert isinstance(caught.value, errors.PoplinError)


def test_marked_methods_go_through_the_strategys_forward(group):
    parts, model = replica()
    forwards = []
    model._forward_module.register_forward_pre_hook(lambda *args: forwards.append(1))
    assert model.training_step(X).shape == ()
    assert forwards == [1]
    model.mark_forward_method("features")
    assert torch.equal(model.features(X, scale=2.0), 2 * model.features(X))
    assert forwards == [1, 1, 1]
    parts.backward(model.features(X).sum())
    assert model.layer.weight.grad is not None


@pytest.mark.parametrize("name", ["features", "whole", "decorated"])
def test_an_unmarked_method_that_runs_the_module_is_an_error(group, name):
    _, model = replica()
    with pytest.raises(RuntimeError, match=rf"`Net.{name}\(\)`.*mark_forward_method\('{name}'\)"):
        getattr(model, name)(X)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert model(X).shape == (2, 4)  # nothing is left behind
    model.mark_forward_method(name)
    assert getattr(model, name)(X).shape == (2, 4)


def test_unmarked_methods_that_run_no_module_are_free_to_go(group):
    _, model = replica()
    assert model.nothing() == 100
    assert model.static(1) == 1
    assert isinstance(model.make(), Net)
    assert model.through(model, X).shape == (2, 4)  # it calls the wrapper, and so the strategy's forward
    assert model.through(nn.Linear(4, 1), X).shape == (2, 1)  # somebody else's module
    assert model.train().training
    assert not model.eval().training


def test_no_hook_stays_and_no_counter_is_wrong_after_an_error(group):
    _, model = replica()
    for name in ("fails", "features"):
        with pytest.raises((KeyError, RuntimeError)):
            getattr(model, name)(X)
    model.mark_forward_method("fails")
    with pytest.raises(KeyError):
        model.fails(X)
    with pytest.raises(RuntimeError):
        model(torch.ones(2, 5))
    assert running.stack == []
    assert not torch.nn.modules.module._global_forward_pre_hooks
    with pytest.raises(RuntimeError, match="mark_forward_method"):
        model.features(X)


def test_a_model_that_calls_its_own_wrapper_is_in_the_forward_already(group):
    class Selfish(Net):
        def training_step(self, batch):
            return self.wrapper[0](batch).mean()

    parts = Parts(ReplicaStrategy())
    module = Selfish()
    model = parts.setup(module)
    module.wrapper = [model]
    forwards = []
    model._forward_module.register_forward_pre_hook(lambda *args: forwards.append(1))
    parts.backward(model.training_step(X))
    assert forwards == [1]
    assert model.layer.weight.grad is not None


def test_other_threads_are_not_watched(group):
    class Slow(Net):
        def waits(self):
            inside.set()
            assert done.wait(10)

    module = Slow()
    model = Parts(ReplicaStrategy()).setup(module)
    inside, done = threading.Event(), threading.Event()
    thread = threading.Thread(target=model.waits)
    thread.start()
    assert inside.wait(10)
    try:
        assert module(X).shape == (2, 4)  # the raw module, in a thread of its own
        assert model(X).shape == (2, 4)
    finally:
        done.set()
        thread.join()


def test_an_engine_has_one_door_for_all_methods():
    parts = Parts(EngineStrategy())
    module = Net()
    model, optimizer = parts.setup(module, torch.optim.SGD(module.parameters(), lr=0.1))
    engine = model._forward_module
    model(X)
    loss = model.training_step(X)
    model.mark_forward_method("features")
    model.features(X, scale=3.0)
    assert engine.calls == ["forward"] * 3
    with pytest.raises(RuntimeError, match="mark_forward_method"):
        model.whole(X)
    parts.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    assert engine.calls[3:] == ["backward", "step", "zero_grad"]
    assert module.layer.weight.grad is None


def test_a_method_that_fails_in_the_engines_door_is_forgotten():
    class Picky(EngineStrategy):
        def setup_module(self, module):
            engine = super().setup_module(module)
            engine.register_forward_pre_hook(lambda module, args: 1 / 0 if args[0] is None else None)
            return engine

    model = Parts(Picky()).setup(Net())
    with pytest.raises(ZeroDivisionError):
        model.training_step(None)
    model(X)
    assert model.module.calls == ["forward"]


def test_a_frozen_module_needs_no_forward_of_the_strategy(group):
    parts = Parts(ReplicaStrategy())
    model = parts.setup(Net().requires_grad_(False))
    assert model(X).shape == (2, 4)
    assert model._forward_module is model.module
    model.mark_forward_method("features")
    assert model.features(X).shape == (2, 4)


def test_methods_of_mixins_and_instances(group):
    class Generates:
        def generate(self, x):
            return self.layer(x)

    class Generating(Net, Generates):
        pass

    module = Generating()
    module.training_step = lambda batch: module(batch).sum()
    model = Parts(ReplicaStrategy()).setup(module)
    assert model.training_step(X).shape == ()
    with pytest.raises(RuntimeError, match="generate"):
        model.generate(X)
    model.mark_forward_method(model.generate)
    assert model.generate(X).shape == (2, 4)


def test_a_generator_is_watched_while_it_runs(group):
    class Streaming(Net):
        def numbers(self, count):
            for number in range(count):
                got = yield number
                assert got is None or got == "sent"
            return "done"

        def stream(self, xs):
            for x in xs:
                yield self.layer(x)

    model = Parts(ReplicaStrategy()).setup(Streaming())
    numbers = model.numbers(3)
    assert [next(numbers), numbers.send("sent"), *numbers] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="stream"):
        list(model.stream([X]))
    assert not torch.nn.modules.module._global_forward_pre_hooks
