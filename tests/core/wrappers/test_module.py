"""A wrapped module is the module: whatever one does to the one is done to the other."""

import abc
import copy
import gc
import inspect
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from wrapper_doubles import BF16Mixed, BF16True, EngineStrategy, F16Mixed, Parts, ReplacingStrategy, ReplicaStrategy

from poplin.precision import Precision
from poplin.wrappers import FabricModule, is_wrapped, unwrap


class Net(nn.Module):
    """A net."""

    built = 0

    def __init__(self, width=4):
        super().__init__()
        type(self).built += 1
        self.layer = nn.Linear(width, width)
        self.register_buffer("steps", torch.zeros(()))
        self.tag = "net"
        self._secret = 1

    def forward(self, x, scale=1.0):
        """Scaled."""
        return self.layer(x) * scale

    @property
    def doubled(self):
        return 2 * self._secret

    @doubled.setter
    def doubled(self, value):
        self._secret = value / 2

    def features(self, x):
        return self.layer(x)

    def whole(self, x):
        return self(x)

    def name(self):
        return self.tag

    def me(self):
        return self

    def training_step(self, batch, batch_idx=0):
        return self(batch).mean()


class Registered:
    registry: list = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        cls.registry.append(cls.__name__)


class Meta(type):
    made: list = []

    def __new__(mcs, name, bases, namespace):
        mcs.made.append(name)
        return super().__new__(mcs, name, bases, namespace)

    def __init__(cls, name, bases, namespace):
        mcs = type(cls)
        mcs.made.append(f"init {name}")
        super().__init__(name, bases, namespace)


class OnlyOne(type):
    instances: dict = {}

    def __call__(cls, *args, **kwargs):
        if cls not in cls.instances:
            cls.instances[cls] = super().__call__(*args, **kwargs)
        return cls.instances[cls]


class Slotted(Net):
    __slots__ = ("extra",)

    def __init__(self):
        super().__init__()
        self.extra = "slot"


class Abstract(nn.Module, abc.ABC):
    @abc.abstractmethod
    def forward(self, x): ...


class Concrete(Abstract):
    def forward(self, x):
        return x + 1


class Clashing(nn.Module):
    """Has attributes by every name of the wrapper's own."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(4, 2)
        self.device = "the user's"
        self.dtype = "mine"

    def forward(self, x):
        assert self.device == "the user's"
        assert self.dtype == "mine"
        assert isinstance(self.module, nn.Linear)
        return self.module(x)

    def mark_forward_method(self):
        return "the user's"

    def where(self):
        return self.device

    @property
    def where_property(self):
        return self.device

    def train(self, mode=True):
        return super().train(mode)


class Proxy(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.module, name)


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x).float()


class OwnCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def __call__(self, x):
        return "called", x * self.scale

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        self.__dict__["last_set"] = name


ALL = {
    "32-true": lambda: Parts(),
    "bf16-mixed": lambda: Parts(precision=BF16Mixed()),
    "bf16-true": lambda: Parts(precision=BF16True()),
    "16-mixed": lambda: Parts(precision=F16Mixed()),
    "replacing": lambda: Parts(ReplacingStrategy()),
    "replica": lambda: Parts(ReplicaStrategy()),
    "replica, bf16-mixed": lambda: Parts(ReplicaStrategy(), BF16Mixed()),
}


@pytest.fixture(params=list(ALL))
def parts(request, group):
    return ALL[request.param]()


X = torch.ones(2, 4)


def test_it_is_an_instance_of_the_users_class(parts):
    module = Net()
    model = parts.setup(module)
    assert isinstance(model, Net)
    assert isinstance(model, nn.Module)
    assert isinstance(model, FabricModule)
    assert type(model).__name__ == "Net"
    assert type(model).__qualname__ == Net.__qualname__
    assert type(model).__module__ == Net.__module__
    assert model.__class__ is Net
    assert model.__doc__ == "A net."
    assert repr(model) == repr(module)
    assert model.module is module
    assert is_wrapped(model)
    assert not is_wrapped(module)
    assert unwrap(model) is module
    assert unwrap(module) is module
    assert list(inspect.signature(model.forward).parameters) == ["x", "scale"]


def test_attributes_go_both_ways(parts):
    module = Net()
    model = parts.setup(module)
    model.tag = "changed"
    assert module.tag == "changed"
    module.later = 5
    assert model.later == 5
    model.doubled = 10
    assert module._secret == 5
    assert model.doubled == 10
    del model.later
    assert not hasattr(module, "later")
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing
    model.head = nn.Linear(4, 1)
    assert module.head is model.head
    module.register_buffer("late", torch.zeros(3))
    module.register_parameter("weight", nn.Parameter(torch.ones(2)))
    assert model.late is module.late
    assert model.weight is module.weight
    assert vars(model) is vars(module)
    assert model.layer is module.layer
    del model.head
    assert not hasattr(module, "head")


def test_state_dicts_have_the_users_keys(parts):
    module = Net()
    expected = list(module.state_dict())
    model = parts.setup(module)
    assert list(model.state_dict()) == expected
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in module.named_parameters()]
    state = {name: torch.full_like(value, 2.0) for name, value in model.state_dict().items()}
    assert not model.load_state_dict(state).missing_keys
    assert torch.equal(module.layer.weight.float(), torch.full((4, 4), 2.0))


def test_forward_runs_once_with_hooks_and_arguments(parts):
    module = Net()
    model = parts.setup(module)
    seen = []
    model.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    handle = module.register_forward_hook(lambda m, args, output: seen.append("post"))
    output = model(X, scale=2.0)
    assert output.shape == (2, 4)
    assert seen == ["pre", "post"]
    handle.remove()
    model(X)
    assert seen == ["pre", "post", "pre"]
    gradients = []
    model.register_full_backward_hook(lambda m, inputs, outputs: gradients.append(1))
    parts.backward(model(X.clone().requires_grad_()).sum())
    assert gradients == [1]
    assert module.layer.weight.grad is model.layer.weight.grad is not None


def test_methods_of_a_module_return_the_wrapper(parts):
    model = parts.setup(Net())
    for returned in (
        model.train(),
        model.eval(),
        model.requires_grad_(True),
        model.to("cpu"),
        model.float(),
        model.cpu(),
        model.apply(lambda part: None),
        model.me(),
    ):
        assert returned is model
    assert not model.module.training
    assert model.train().module.training


def test_copies_and_pickles_are_wrapped_independent_and_local(parts):
    module = Net()
    model = parts.setup(module)
    model.tag = "copied"
    model.mark_forward_method("features")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert isinstance(twin, FabricModule)
        assert isinstance(twin, Net)
        assert twin.tag == "copied"
        assert twin.module is not module
        assert twin.layer.weight is not module.layer.weight
        assert twin(X).dtype == model(X).dtype
        assert torch.equal(twin(X), model(X))
        assert twin.features(X).dtype == model.features(X).dtype
        with torch.no_grad():
            twin.layer.weight.zero_()
        assert module.layer.weight.abs().sum() > 0
    shallow = copy.copy(model)
    assert shallow.layer is module.layer
    assert shallow.module is not module


def test_a_class_that_copies_itself(parts):
    class Copied(Net):
        def __deepcopy__(self, memo):
            twin = self.__class__.__new__(self.__class__)
            twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
            twin.tag = "copied"
            return twin

    model = parts.setup(Copied())
    twin = copy.deepcopy(model)
    assert isinstance(twin, FabricModule)
    assert twin.tag == "copied"
    assert model.tag == "net"
    assert twin(X).dtype == model(X).dtype


def test_a_copy_of_a_copy_trains_without_the_strategy(group):
    parts = Parts(ReplicaStrategy())
    twin = copy.deepcopy(copy.deepcopy(parts.setup(Net())))
    twin(X).sum().backward()
    assert twin.features(X).shape == (2, 4)  # no strategy's forward is needed in a copy
    assert twin.layer.weight.grad is not None


def test_what_a_strategy_changed_in_place_can_not_be_copied():
    parts = Parts(EngineStrategy())
    module = Net()
    model, _ = parts.setup(module, torch.optim.SGD(module.parameters()))
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match="EngineStrategy has changed it in place"):
            attempt(model)


def test_device_and_dtype_are_those_of_the_parameters(parts):
    model = parts.setup(Net())
    expected = torch.bfloat16 if parts.precision.precision == "bf16-true" else torch.float32
    assert model.dtype == expected
    assert model.device == torch.device("cpu")
    assert model.double().dtype == torch.float64
    empty = parts.setup(nn.ReLU())
    assert empty.device == torch.device("cpu")
    assert empty.dtype == torch.get_default_dtype()


def test_a_plain_module_costs_nothing():
    model = Parts().setup(Net())
    assert not {"__call__", "forward", "__getattr__", "__setattr__", "training_step"} & set(vars(type(model)))
    made = vars(FabricModule).keys() | {"__call__"}
    assert "__call__" not in vars(FabricModule)
    assert made


def test_precision_applies_to_forward_and_nothing_else():
    model = Parts(precision=BF16Mixed()).setup(Net())
    assert model(X).dtype == torch.bfloat16
    assert model.forward(X).dtype == torch.bfloat16
    assert model.layer(X).dtype == torch.float32
    model = Parts(precision=BF16True()).setup(Net())
    assert model.layer.weight.dtype == torch.bfloat16
    assert model(X).dtype == torch.float32
    assert model(x=X, scale=torch.tensor(2.0)).dtype == torch.float32


def test_a_precision_with_a_forward_context_of_its_own_is_entered():
    class Counted(Precision):
        entered = 0

        def forward_context(self):
            Counted.entered += 1
            return torch.no_grad()

    model = Parts(precision=Counted()).setup(Net())
    assert not model(X).requires_grad
    assert Counted.entered == 1


# --- classes that take notice of their subclasses, and other peculiar ones


def test_the_users_registries_hear_nothing(parts):
    class Known(Registered, Net):
        pass

    before = list(Registered.registry)
    parts.setup(Known())
    assert Registered.registry == before


def test_the_users_metaclass_makes_no_class_and_no_instance(parts):
    class Odd(Net, metaclass=Meta):
        pass

    before = list(Meta.made)
    model = parts.setup(Odd())
    assert Meta.made == before
    assert isinstance(type(model), Meta)

    class Single(Net, metaclass=OnlyOne):
        pass

    single = Single()
    model = parts.setup(single)
    assert Single() is single
    assert model is not single
    assert model(X).shape == (2, 4)


def test_a_wrapper_is_made_by_setup_only():
    with pytest.raises(RuntimeError, match="made by Fabric's setup"):
        FabricModule(Net())


def test_code_that_clones_itself_by_its_type():
    class Cloning(Net):
        def clone(self):
            twin = type(self).__new__(type(self))
            twin.__dict__.update(self.__dict__)
            return twin

    assert type(Parts().setup(Cloning()).clone()) is Cloning


def test_class_attributes_are_the_users(parts):
    model = parts.setup(Net())
    before = Net.built
    another = type(model)(8)
    assert type(another) is Net
    assert type(model.__class__(4)) is Net
    assert Net.built == before + 2
    type(model).marker = "set on the class"
    assert Net.marker == "set on the class"
    del Net.marker


def test_slots_are_shared(parts):
    module = Slotted()
    model = parts.setup(module)
    assert model.extra == "slot"
    model.extra = "new"
    assert module.extra == "new"
    assert copy.copy(model.extra) == "new"


def test_abstract_base_classes(parts):
    module = Concrete()
    model = parts.setup(module)
    assert isinstance(model, Abstract)
    assert not isinstance(module, type(model))
    assert isinstance(Concrete(), Concrete)
    assert issubclass(type(model), Concrete)
    assert not issubclass(Net, type(model))


def test_names_of_the_wrapper_are_the_users_inside_and_the_wrappers_outside(parts):
    module = Clashing()
    model = parts.setup(module)
    model(X)
    assert model.module is module
    assert model.device == torch.device("cpu")
    assert model.where() == "the user's"
    assert model.where_property == "the user's"
    assert model.train(False) is model
    model.mark_forward_method("where")
    model.device = "new"
    assert module.device == "new"
    assert model.where() == "new"
    assert list(model.state_dict()) == ["module.weight", "module.bias"]
    assert copy.deepcopy(model).where() == "new"


def test_a_name_of_the_wrapper_set_later_is_seen_by_the_users_code():
    class Late(Net):
        def place(self):
            return self.device

    model = Parts().setup(Late())
    model.device = "somewhere"
    assert model.place() == "somewhere"
    assert model.module.device == "somewhere"
    assert model.device == torch.device("cpu")


def test_a_module_that_forwards_attributes(parts):
    module = Proxy(Net())
    model = parts.setup(module)
    assert model.tag == "net"
    assert model(X).shape == (2, 4)
    assert unwrap(model) is module


def test_a_module_with_call_and_setattr_of_its_own(parts):
    module = OwnCall()
    model = parts.setup(module)
    assert model(X)[0] == "called"
    model.other = 1
    assert module.last_set == "other"


def test_containers(parts):
    model = parts.setup(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
    assert len(model) == 3
    assert type(model[:2]) is nn.Sequential
    assert isinstance(model[0], nn.Linear)
    assert [type(layer) for layer in model] == [nn.Linear, nn.ReLU, nn.Linear]
    model.append(nn.Sigmoid())
    assert len(model.module) == 4
    layers = parts.setup(nn.ModuleList([nn.Linear(1, 1)]))
    layers.append(nn.Linear(1, 1))
    assert len(layers.module) == 2


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_script_module():
    module = torch.jit.script(nn.Sequential(nn.Linear(4, 2)))
    model = Parts().setup(module)
    assert model(X).shape == (2, 2)
    assert isinstance(model, torch.jit.ScriptModule)
    model = Parts(precision=BF16Mixed()).setup(module)
    assert model(X).dtype == torch.bfloat16
    assert "0.weight" in model.state_dict()


def test_a_lazy_module_becomes_what_it_is():
    model = Parts().setup(nn.Sequential(nn.LazyLinear(3)))
    assert model(X).shape == (2, 3)
    model = Parts().setup(nn.LazyLinear(3))
    assert model(X).shape == (2, 3)
    assert model.__class__ is nn.Linear
    assert type(model.module) is nn.Linear
    assert model(X).shape == (2, 3)


class Double(nn.Module):
    def forward(self, weight):
        return 2 * weight


def test_parametrized_modules(parts):
    module = nn.Linear(4, 4)
    parametrize.register_parametrization(module, "weight", Double())
    model = parts.setup(module)
    assert torch.equal(model.weight, 2 * model.parametrizations.weight.original)
    assert model(X).shape == (2, 4)


def test_a_wrapped_module_can_be_parametrized_and_back():
    module = nn.Linear(4, 4)
    model = Parts(precision=BF16Mixed()).setup(module)
    before = module.weight.detach().clone()
    parametrize.register_parametrization(model, "weight", Double())
    assert torch.equal(module.weight, 2 * before)
    assert torch.equal(model.weight, 2 * before)
    assert isinstance(model, FabricModule)
    assert model(X).dtype == torch.bfloat16
    parametrize.remove_parametrizations(model, "weight")
    assert type(module) is nn.Linear
    assert model.__class__ is nn.Linear
    assert torch.equal(model.weight, 2 * before)
    with parametrize.cached():
        model(X)


def test_a_class_of_another_layout_is_refused_and_nothing_changes():
    module = Net()
    model = Parts().setup(module)
    with pytest.raises(TypeError):
        model.__class__ = Slotted
    assert type(module) is Net
    assert model(X).shape == (2, 4)


def test_a_class_that_keeps_data_elsewhere_is_refused():
    class Listed(nn.Module, list):
        __hash__ = object.__hash__

    module = Listed()
    with pytest.raises(TypeError, match="outside of its __dict__"):
        Parts().setup(module)
    assert not is_wrapped(module)


def test_a_module_is_finalised_once():
    finalised = []

    class Finalised(Net):
        def __del__(self):
            finalised.append(1)

    module = Finalised()
    model = Parts().setup(module)
    del model
    gc.collect()
    assert finalised == []
    del module
    gc.collect()
    assert finalised == [1]


def test_made_classes_go_with_the_users_class():
    def use():
        class Temporary(Net):
            pass

        model = Parts(precision=BF16Mixed()).setup(Temporary())
        return weakref.ref(Temporary), weakref.ref(type(model)), weakref.ref(model)

    references = use()
    gc.collect()
    assert [reference() for reference in references] == [None, None, None]


def test_one_class_is_made_from_many_threads():
    class Shared(Net):
        pass

    classes = []
    barrier = threading.Barrier(8)

    def work():
        barrier.wait()
        classes.append(type(Parts().setup(Shared())))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(classes)) == 1


# --- in other modules' hands


def test_nested_in_another_module(parts):
    inner = Net()
    model = parts.setup(inner)
    outer = Outer(model)
    assert list(outer.state_dict()) == ["inner.steps", "inner.layer.weight", "inner.layer.bias"]
    assert {id(p) for p in outer.parameters()} == {id(p) for p in inner.parameters()}
    assert torch.equal(outer(X), model(X).float())
    assert isinstance(pickle.loads(pickle.dumps(outer)).inner, FabricModule)
    twin = copy.deepcopy(outer)
    assert twin.inner.module.layer.weight is not inner.layer.weight
    outer.eval()
    assert not inner.training
    outer.apply(lambda part: None)
    assert outer.double().inner.layer.weight.dtype == torch.float64


def test_functional_call_and_vmap():
    module = Net()
    model = Parts().setup(module)
    parameters = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    assert torch.equal(torch.func.functional_call(model, parameters, (X,)), torch.zeros(2, 4))
    assert model(X).abs().sum() > 0
    assert torch.func.vmap(model)(torch.ones(3, 2, 4)).shape == (3, 2, 4)


def test_functional_call_through_a_precision():
    model = Parts(precision=BF16Mixed()).setup(Net())
    parameters = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    assert torch.equal(torch.func.functional_call(model, parameters, (X,)), torch.zeros(2, 4, dtype=torch.bfloat16))


def test_averaged_model_and_weight_sharing(parts):
    model = parts.setup(Net())
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    assert average(X).shape == (2, 4)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    model = parts.setup(tied)
    assert model[0].weight is model[1].weight
    assert len(list(model.parameters())) == 3
    assert copy.deepcopy(model)[0].weight is not tied[0].weight
    assert len(list(copy.deepcopy(model).parameters())) == 3


def test_replicas_of_torchs_data_parallel():
    model = Parts(precision=BF16Mixed()).setup(Net())
    replica = model._replicate_for_data_parallel()
    assert isinstance(replica, Net)
    assert replica(X).dtype == torch.bfloat16
    assert nn.DataParallel(model)(X).shape == (2, 4)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_jit_trace_and_fx():
    model = Parts().setup(Net())
    assert torch.equal(torch.jit.trace(model, X)(X), model(X))
    assert torch.equal(torch.fx.symbolic_trace(model)(X), model(X))
    assert torch.jit.script(Parts().setup(nn.Sequential(nn.Linear(4, 4))))(X).shape == (2, 4)
