"""A dataloader that is cut off goes on at the very batch, over any number of resumes."""

import copy
import pickle
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, Sampler

from poplin.data.setup import setup_dataloader
from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.seed import collect_rng_states, restore_rng_states
from poplin.testing.simulated import simulated_strategies


def alone(loader, **options):
    return setup_dataloader(loader, strategy=simulated_strategies(1)[0], **options)


def lists(batches):
    return [batch.tolist() for batch in batches]


def flat(batches):
    return [item for batch in batches for item in batch]


class ByPython(Sampler):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        order = list(range(self.size))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return self.size


class WithState(Sampler):
    """A sampler whose order depends on a state of its own, which it saves."""

    def __init__(self, size):
        self.size = size
        self.rounds = 0

    def __iter__(self):
        self.rounds += 1
        order = list(range(self.size))
        random.Random(self.rounds).shuffle(order)
        yield from order

    def __len__(self):
        return self.size

    def state_dict(self):
        return {"rounds": self.rounds}

    def load_state_dict(self, state):
        self.rounds = state["rounds"]


class Twice(DataLoader):
    """Gives every batch twice: its batches are not its sampler's."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch
            yield -batch


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


class CountWithState(IterableDataset):
    def __init__(self, size):
        self.size = size
        self.place = 0
        self.read = 0

    def __iter__(self):
        while self.place < self.size:
            self.place += 1
            self.read += 1
            yield self.place - 1
        self.place = 0

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Counting:
    """A dataset that counts how often it is read."""

    def __init__(self, size):
        self.size = size
        self.read = 0

    def __getitem__(self, index):
        self.read += 1
        return index

    def __len__(self):
        return self.size


def generator(seed=5):
    made = torch.Generator()
    made.manual_seed(seed)
    return made


LOADERS = {
    "in order": lambda: DataLoader(range(23), batch_size=3),
    "shuffled": lambda: DataLoader(range(23), batch_size=3, shuffle=True),
    "shuffled by a generator": lambda: DataLoader(range(23), batch_size=3, shuffle=True, generator=generator()),
    "drawn with replacement": lambda: DataLoader(
        range(9), batch_size=3, sampler=RandomSampler(range(9), replacement=True, num_samples=70)
    ),
    "by Python's generator": lambda: DataLoader(range(23), batch_size=3, sampler=ByPython(23)),
    "a sampler with state": lambda: DataLoader(range(23), batch_size=3, sampler=WithState(23)),
    "a class of its own way": lambda: Twice(range(23), batch_size=3, shuffle=True),
    "an iterable": lambda: DataLoader(Count(23), batch_size=3),
    "an iterable with state": lambda: DataLoader(CountWithState(24), batch_size=3),
    "single items": lambda: DataLoader(range(23), batch_size=None, shuffle=True),
}


def run(make, saves, batches):
    """Deliver ``batches`` batches, drawing noise in between; at each of ``saves`` go on in a fresh dataloader."""
    torch.manual_seed(0)
    random.seed(0)
    loader = alone(make())
    out = []
    while len(out) < batches:
        for batch in loader:
            out.append((torch.as_tensor(batch).tolist(), float(torch.rand(()))))
            if len(out) == batches:
                break
            if len(out) in saves:
                saved = loader.state_dict(), collect_rng_states()
                torch.manual_seed(99)
                random.seed(99)
                loader = alone(make())
                loader.load_state_dict(saved[0])
                assert loader.state_dict()["position"] == saved[0]["position"], "read again before anything was given"
                restore_rng_states(saved[1])
                break
    return out


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(LOADERS)), saves=st.sets(st.integers(1, 39), max_size=4))
def test_a_resumed_run_is_the_uninterrupted_one(kind, saves):
    """Bitwise, with the generators of the program restored at each resume: batches, order, and what is drawn after."""
    assert run(LOADERS[kind], saves, 40) == run(LOADERS[kind], set(), 40)


@pytest.mark.parametrize("persistent", [False, True])
def test_what_workers_read_ahead_is_not_counted(persistent):
    def make():
        return DataLoader(range(40), batch_size=2, shuffle=True, num_workers=2, persistent_workers=persistent)

    torch.manual_seed(0)
    loader = alone(make())
    first = lists(loader)
    iterator = iter(loader)
    given_out = lists(next(iterator) for _ in range(5))
    state = loader.state_dict()
    rest = lists(iterator)
    assert state["position"] == 5
    assert sorted(flat(given_out + rest)) == list(range(40))
    assert given_out + rest != first

    torch.manual_seed(7)
    resumed = alone(make())
    resumed.load_state_dict(state)
    assert lists(resumed) == rest
    assert sorted(flat(lists(resumed))) == list(range(40)), "the next epoch is whole"
    loader.load_state_dict(state)  # in the same process, with workers alive
    assert lists(loader) == rest


def test_skipped_batches_are_not_loaded():
    data = Counting(20)
    loader = alone(DataLoader(data, batch_size=2, shuffle=True))
    iterator = iter(loader)
    for _ in range(4):
        next(iterator)
    state = loader.state_dict()
    data.read = 0
    loader.load_state_dict(state)
    assert len(lists(loader)) == 6
    assert data.read == 12


def test_at_the_end_of_an_epoch_the_next_one_is_whole():
    loader = alone(DataLoader(range(6), batch_size=2))
    lists(loader)
    state = loader.state_dict()
    resumed = alone(DataLoader(range(6), batch_size=2))
    resumed.load_state_dict(state)
    assert lists(resumed) == [[0, 1], [2, 3], [4, 5]]
    assert resumed.state_dict()["epoch"] == 1


def test_choosing_another_epoch_forgets_the_place_and_the_same_keeps_it():
    loader = alone(DataLoader(range(6), batch_size=2))
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    loader.set_epoch(0)
    assert lists(loader) == [[2, 3], [4, 5]]
    loader.load_state_dict(state)
    loader.set_epoch(3)
    assert lists(loader) == [[0, 1], [2, 3], [4, 5]]


@settings(max_examples=25, deadline=None)
@given(
    delivered=st.integers(0, 4),
    uneven=st.sampled_from(["pad", "drop", "exact"]),
    kind=st.sampled_from(["sampler", "batch sampler", "own way", "iterable"]),
)
def test_each_rank_goes_on_where_it_was(delivered, uneven, kind):
    def make():
        if kind == "sampler":
            return DataLoader(range(29), batch_size=3, shuffle=True)
        if kind == "batch sampler":
            return DataLoader(range(29), batch_sampler=[[index] for index in range(29)])
        return (
            Twice(range(29), batch_size=3, shuffle=True) if kind == "own way" else DataLoader(Count(29), batch_size=3)
        )

    torch.manual_seed(1)
    loaders = [
        setup_dataloader(make(), strategy=strategy, uneven=uneven, shard_iterable=True)
        for strategy in simulated_strategies(2)
    ]
    for loader in loaders:
        list(loader)
    iterators = [iter(loader) for loader in loaders]
    for _ in range(delivered):
        for iterator in iterators:
            next(iterator)
    state = loaders[0].state_dict()  # rank 0's goes into the checkpoint, and to every rank
    rest = [lists(iterator) for iterator in iterators]
    following = [lists(loader) for loader in loaders]
    torch.manual_seed(2)
    resumed = [
        setup_dataloader(make(), strategy=strategy, uneven=uneven, shard_iterable=True)
        for strategy in simulated_strategies(2)
    ]
    for loader in resumed:
        loader.load_state_dict(state)
    assert [lists(loader) for loader in resumed] == rest
    assert [lists(loader) for loader in resumed] == following


def test_another_number_of_processes_goes_on_at_the_same_sample():
    def set_up(world_size, batch_size):
        return [
            setup_dataloader(DataLoader(range(24), batch_size=batch_size), strategy=strategy)
            for strategy in simulated_strategies(world_size)
        ]

    loaders = set_up(2, 2)
    iterators = [iter(loader) for loader in loaders]
    for _ in range(3):
        for iterator in iterators:
            next(iterator)
    state = loaders[0].state_dict()
    more = set_up(4, 3)
    for loader in more:
        loader.load_state_dict(state)
    assert sorted(flat(batch for loader in more for batch in lists(loader))) == list(range(12, 24))
    for loader in set_up(4, 4):
        with pytest.raises(ArgumentValueError, match="4 processes with batches of 4 can't begin at that sample"):
            loader.load_state_dict(state)


def test_a_distributed_sampler_of_the_users_resumes():
    def make():
        return DataLoader(range(20), batch_size=2, sampler=DistributedSampler(range(20), num_replicas=2, rank=0))

    def set_up():
        return setup_dataloader(make(), strategy=simulated_strategies(2)[0])

    loader = set_up()
    list(loader)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = lists(iterator)
    resumed = set_up()
    resumed.load_state_dict(state)
    assert lists(resumed) == rest
    assert resumed.sampler.epoch == 1


def test_a_stateful_dataloader_keeps_its_own_state():
    class Stateful(DataLoader):
        place = 0

        def __iter__(self):
            batches = list(super().__iter__())
            while self.place < len(batches):
                self.place += 1
                yield batches[self.place - 1]
            self.place = 0

        def state_dict(self):
            return {"place": self.place}

        def load_state_dict(self, state):
            self.place = state["place"]

    loader = alone(Stateful(range(6), batch_size=2))
    next(iter(loader))
    assert loader.state_dict() == {"place": 1}
    resumed = alone(Stateful(range(6), batch_size=2))
    resumed.load_state_dict({"place": 1})
    assert lists(resumed) == [[2, 3], [4, 5]]

    split = [
        setup_dataloader(Stateful(range(12), batch_size=2, shuffle=True), strategy=s) for s in simulated_strategies(2)
    ]
    list(split[1])
    iterator = iter(split[1])
    next(iterator)
    state = split[1].state_dict()
    rest = lists(iterator)
    again = [
        setup_dataloader(Stateful(range(12), batch_size=2, shuffle=True), strategy=s) for s in simulated_strategies(2)
    ]
    again[1].load_state_dict(state)
    assert lists(again[1]) == rest


def test_a_dataset_that_is_read_in_place_of_its_loader_is_not_read_again():
    data = CountWithState(20)
    loader = alone(DataLoader(data, batch_size=4))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    fresh = CountWithState(20)
    resumed = alone(DataLoader(fresh, batch_size=4))
    resumed.load_state_dict(state)
    assert lists(resumed)[0] == [4, 5, 6, 7]
    assert fresh.read == 16


def test_the_state_is_loaded_safely(tmp_path):
    loader = alone(DataLoader(range(9), batch_size=2, sampler=ByPython(9), generator=generator()))
    next(iter(loader))
    path = tmp_path / "state.pt"
    torch.save(loader.state_dict(), path)
    loader.load_state_dict(torch.load(path, weights_only=True))
    assert len(lists(loader)) == 4


def test_pickle_and_deepcopy_keep_the_place():
    loader = alone(DataLoader(range(8), batch_size=2, shuffle=True))
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    rest = lists(iterator)
    for other in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader), copy.copy(loader)):
        other.load_state_dict(state)
        assert lists(other) == rest


def test_what_is_no_state_is_an_error():
    loader = alone(DataLoader(range(8)))
    with pytest.raises(ArgumentTypeError, match="is a dictionary"):
        loader.load_state_dict([1])
    with pytest.raises(ArgumentValueError, match="it has no 'version'"):
        loader.load_state_dict({"place": 3})
    with pytest.raises(ArgumentValueError, match="its version is 99"):
        loader.load_state_dict({**loader.state_dict(), "version": 99})
