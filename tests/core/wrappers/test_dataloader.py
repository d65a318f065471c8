"""The set-up dataloader is the user's own to whoever looks."""

import copy
import gc
import pickle
import weakref
from collections import namedtuple

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from poplin.data.setup import setup_dataloader
from poplin.errors import ArgumentTypeError
from poplin.testing.simulated import SimulatedStrategy, simulated_strategies
from poplin.wrappers.dataloader import FabricDataLoader


def alone(loader, world_size=1, **options):
    return setup_dataloader(loader, strategy=simulated_strategies(world_size)[0], **options)


class Register(DataLoader):
    subclasses = []

    def __init_subclass__(cls, **kwargs):
        Register.subclasses.append(cls)


class Mine(Register):
    """With what subclasses have."""

    def __init__(self, size, *, note):
        super().__init__(range(size), batch_size=2)
        self.note = note
        self.calls = 0

    def __getitem__(self, index):
        return self.dataset[index]

    def __contains__(self, item):
        return item in self.dataset

    def count(self):
        self.calls += 1
        return self.calls

    def __iter__(self):
        self.calls += 1
        return super().__iter__()

    @property
    def doubled(self):
        return 2 * self.calls

    device = "their own"


class Slotted(DataLoader):
    __slots__ = ("extra",)


class FailsOnce(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 1:
            raise KeyError("bad sample")
        return index


class Custom:
    """A batch of another library."""

    def __init__(self, value, device=None):
        self.value, self.device = value, device

    def to(self, device):
        return Custom(self.value, device)


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize("world_size", [1, 2])
def test_attributes_go_both_ways(world_size):
    loader = Mine(8, note="n")
    wrapped = alone(loader, world_size)
    assert isinstance(wrapped, Mine)
    assert isinstance(wrapped, DataLoader)
    assert isinstance(wrapped, FabricDataLoader)
    assert (wrapped.note, wrapped.batch_size, wrapped.device, wrapped.doubled) == ("n", 2, "their own", 0)
    assert wrapped[3] == 3
    assert 7 in wrapped
    wrapped.note = "changed"
    wrapped.new = 1
    assert (loader.note, loader.new, wrapped.new) == ("changed", 1, 1)
    del wrapped.new
    assert not hasattr(loader, "new")
    assert not hasattr(wrapped, "new")
    loader.later = 5
    assert wrapped.later == 5
    assert wrapped.count() == 1
    assert loader.calls == 1
    list(wrapped)
    assert wrapped.calls == 2
    with pytest.raises(ValueError, match="should not be set after"):
        wrapped.batch_size = 3
    with pytest.raises(AttributeError, match="nothing"):
        _ = wrapped.nothing
    assert Register.subclasses == [Mine]
    assert wrapped._dataloader is loader


def test_the_lightning_names_where_the_class_has_none():
    loader = DataLoader(range(4))
    assert alone(loader).device == torch.device("cpu")
    assert alone(loader, move_to_device=False).device is None


def test_a_class_with_slots():
    loader = Slotted(range(4))
    loader.extra = 1
    wrapped = alone(loader, 2)
    assert wrapped.extra == 1
    assert len(list(wrapped)) == 2


def test_it_is_made_by_setup_only():
    with pytest.raises(ArgumentTypeError, match="setup_dataloaders"):
        FabricDataLoader(DataLoader(range(2)))


@pytest.mark.parametrize("world_size", [1, 2])
def test_copies(world_size):
    wrapped = alone(Mine(8, note=["n"]), world_size)
    expected = [batch.tolist() for batch in wrapped]
    for other in (pickle.loads(pickle.dumps(wrapped)), copy.deepcopy(wrapped), copy.copy(wrapped)):
        assert isinstance(other, Mine)
        assert isinstance(other, FabricDataLoader)
        assert other.note == ["n"]
        assert [batch.tolist() for batch in other] == expected
        assert len(other) == len(wrapped)
    deep = copy.deepcopy(wrapped)
    deep.note.append("m")
    deep.calls = 50
    assert wrapped.note == ["n"]
    assert wrapped.calls != 50


class Moving(SimulatedStrategy):
    def batch_to_device(self, batch, device=None):
        return "moved", batch


class MovesItself(SimulatedStrategy):
    owns_data_movement = True


class Wraps(SimulatedStrategy):
    def process_dataloader(self, dataloader):
        return [f"batch {place}" for place in range(3)]


def test_the_strategy_moves_and_wraps():
    world = simulated_strategies(1)[0]._world
    loader = DataLoader(range(2))
    assert [kind for kind, _ in setup_dataloader(loader, strategy=Moving(0, world))] == ["moved", "moved"]
    assert isinstance(
        next(iter(setup_dataloader(loader, strategy=Moving(0, world), move_to_device=False))), torch.Tensor
    )
    assert isinstance(next(iter(setup_dataloader(loader, strategy=MovesItself(0, world)))), torch.Tensor)
    wrapped = setup_dataloader(loader, strategy=Wraps(0, world))
    iterator = iter(wrapped)
    assert next(iterator) == "batch 0"
    state = wrapped.state_dict()
    assert list(iterator) == ["batch 1", "batch 2"]
    wrapped.load_state_dict(state)
    assert list(wrapped) == ["batch 1", "batch 2"]


def test_batches_of_any_kind_are_moved():
    strategy = simulated_strategies(1)[0]
    type(strategy).root_device  # a property of the class
    batches = [{"a": [torch.zeros(1)], "b": Point(Custom(1), "text")}]

    class OnMeta(SimulatedStrategy):
        root_device = torch.device("meta")

    loader = DataLoader(batches, batch_size=None, collate_fn=lambda item: item)
    batch = next(iter(setup_dataloader(loader, strategy=OnMeta(0, strategy._world))))
    assert batch["a"][0].device.type == "meta"
    assert batch["b"].x.device.type == "meta"
    assert batch["b"].y == "text"


def test_iterating_again_early_break_and_nesting():
    wrapped = alone(DataLoader(range(6), batch_size=2))
    for _ in wrapped:
        break
    assert len(list(wrapped)) == 3
    assert [(a.tolist(), b.tolist()) for a in wrapped for b in wrapped][:2] == [([0, 1], [0, 1]), ([0, 1], [2, 3])]
    assert len(list(zip(wrapped, wrapped, strict=True))) == 3
    iterator = iter(wrapped)
    assert iter(iterator) is iterator
    assert len(iterator) == 3


def test_one_process_without_workers_draws_what_the_plain_loader_draws():
    def run(loader):
        torch.manual_seed(3)
        return [(batch.tolist(), float(torch.rand(()))) for _ in range(2) for batch in loader], torch.rand(3).tolist()

    assert run(alone(DataLoader(range(9), batch_size=2, shuffle=True))) == run(
        DataLoader(range(9), batch_size=2, shuffle=True)
    )


def test_an_error_of_a_sample_ends_nothing():
    iterator = iter(alone(DataLoader(FailsOnce())))
    assert next(iterator).tolist() == [0]
    with pytest.raises(KeyError, match="bad sample"):
        next(iterator)
    assert next(iterator).tolist() == [2], "as with the plain loader"


def test_an_error_in_a_worker_is_torchs_own():
    wrapped = alone(DataLoader(FailsOnce(), num_workers=1))
    with pytest.raises(KeyError, match="bad sample"):
        list(wrapped)
    assert next(iter(wrapped)).tolist() == [0]


def test_an_iterator_that_is_dropped_takes_its_workers_along():
    wrapped = alone(DataLoader(range(100), num_workers=2))

    def batches():
        yield from wrapped

    generator = batches()
    next(generator)
    workers = [
        worker
        for obj in gc.get_objects()
        if type(obj).__name__ == "_MultiProcessingDataLoaderIter"
        for worker in obj._workers
    ]
    assert workers
    generator.close()
    del generator
    gc.collect()
    assert not any(worker.is_alive() for worker in workers)


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("resumed", [False, True])
def test_a_loader_that_is_dropped_is_freed_at_once(world_size, resumed):
    """Without circles, which would keep workers alive, and let a forked child find them as garbage."""
    gc.collect()
    gc.disable()
    try:
        wrapped = alone(DataLoader(range(8), shuffle=True, num_workers=1, persistent_workers=True), world_size)
        list(wrapped)
        iterator = iter(wrapped)
        next(iterator)
        if resumed:
            wrapped.load_state_dict(wrapped.state_dict())
            iterator = iter(wrapped)
            next(iterator)
        unread = iter(wrapped)
        gone = [weakref.ref(wrapped._fabric_loader), weakref.ref(iterator._iterator), weakref.ref(unread)]
        del wrapped, iterator, unread
        assert [reference() for reference in gone] == [None] * 3
    finally:
        gc.enable()


def test_iterating_before_setup_with_living_workers_leaves_them_to_the_original():
    loader = DataLoader(range(8), batch_size=2, num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 4
    wrapped = alone(loader, 2)
    assert [batch.tolist() for batch in wrapped] == [[0, 2], [4, 6]]
    assert [batch.tolist() for batch in wrapped] == [[0, 2], [4, 6]]
    assert len(list(loader)) == 4


def test_set_epoch_reaches_a_loader_class_that_has_it_and_the_dataset():
    class Data(Dataset):
        epoch = None

        def __len__(self):
            return 2

        def __getitem__(self, index):
            return self.epoch

        def set_epoch(self, epoch):
            self.epoch = epoch

    class WithEpoch(DataLoader):
        epoch = None

        def set_epoch(self, epoch):
            self.epoch = epoch

    loader = WithEpoch(Data(), batch_size=2, num_workers=1)
    wrapped = alone(loader)
    assert [batch.tolist() for _ in range(2) for batch in wrapped] == [[0, 0], [1, 1]]
    wrapped.set_epoch(9)
    assert wrapped.epoch == 9
    assert [batch.tolist() for batch in wrapped] == [[9, 9]]
