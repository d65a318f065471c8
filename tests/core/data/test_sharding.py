"""Every sample exactly once per epoch across ranks, whatever the sampler and whatever each rank's seed."""

import random
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from poplin.data.setup import setup_dataloader, setup_dataloaders
from poplin.errors import AlreadySetUpError, ArgumentTypeError, ArgumentValueError, PossibleUserWarning
from poplin.selection.trace import Trace
from poplin.testing.simulated import simulated_strategies


def set_up(make, world_size, **options):
    """The same dataloader set up on each simulated rank, each with a seed of its own."""
    loaders = []
    for strategy in simulated_strategies(world_size):
        seed_rank(strategy.global_rank)
        loaders.append(setup_dataloader(make(), strategy=strategy, **options))
    return loaders


def seed_rank(rank):
    torch.manual_seed(1000 + rank)
    random.seed(2000 + rank)
    np.random.seed(3000 + rank)


def read(loaders):
    """The batches of each rank, as lists; ranks are read one after the other, with seeds of their own."""
    result = []
    for rank, loader in enumerate(loaders):
        seed_rank(rank + 17)
        result.append([batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader])
    return result


def flat(nested):
    if isinstance(nested, list):
        return [item for inner in nested for item in flat(inner)]
    return [nested]


def counts(ranks):
    return Counter(flat(ranks))


class ShuffledByPython(Sampler):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        order = list(range(self.size))
        random.shuffle(order)
        return iter(order)

    def __len__(self):
        return self.size


class DrawsAllTheWay(Sampler):
    """A permutation that is drawn item by item, from three generators, and has no length."""

    def __init__(self, size):
        self.size = size

    def __iter__(self):
        left = list(range(self.size))
        while left:
            pick = int(torch.randint(len(left), ())) + random.randrange(len(left)) + np.random.randint(len(left))
            yield left.pop(pick % len(left))


class Buckets(Sampler):
    """Batches of different sizes, in a random order."""

    def __init__(self, size, generator=None):
        self.size = size
        self.generator = generator

    def __iter__(self):
        indices = list(range(self.size))
        batches = []
        while indices:
            width = 1 + len(batches) % 3
            batches.append(indices[:width])
            indices = indices[width:]
        for place in torch.randperm(len(batches), generator=self.generator).tolist():
            yield batches[place]


class OwnConstructor(DataLoader):
    """A subclass whose arguments nobody can guess."""

    def __init__(self, *, how_many, secret):
        super().__init__(range(how_many), batch_size=3, shuffle=True)
        self.secret = secret


def generator(seed=5):
    made = torch.Generator()
    made.manual_seed(seed)
    return made


SAMPLERS = {
    "sequential": lambda n: SequentialSampler(range(n)),
    "random": lambda n: RandomSampler(range(n)),
    "random with generator": lambda n: RandomSampler(range(n), generator=generator()),
    "subset": lambda n: SubsetRandomSampler(list(range(n))),
    "subset with generator": lambda n: SubsetRandomSampler(list(range(n)), generator=generator()),
    "weighted": lambda n: WeightedRandomSampler([1.0] * n, n, replacement=False),
    "python": ShuffledByPython,
    "draws all the way": DrawsAllTheWay,
    "a list": lambda n: list(range(n)),
}


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(sorted(SAMPLERS)),
    total=st.integers(1, 40),
    world_size=st.integers(2, 5),
    batch_size=st.integers(1, 5) | st.none(),
    uneven=st.sampled_from(["pad", "drop", "exact"]),
)
def test_every_sample_exactly_once(kind, total, world_size, batch_size, uneven):
    def make():
        return DataLoader(range(total), batch_size=batch_size, sampler=SAMPLERS[kind](total))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)  # some ranks get nothing
        loaders = set_up(make, world_size, uneven=uneven)
        epochs = [read(loaders) for _ in range(2)]
    for ranks in epochs:
        seen = counts(ranks)
        sizes = [len(flat(rank)) for rank in ranks]
        if uneven == "exact":
            assert seen == Counter(range(total))
            assert max(sizes) - min(sizes) <= 1
            if batch_size is not None and batch_size > 1 and total >= world_size:
                assert len({len(rank) for rank in ranks}) == 1, "as many batches on each rank"
        elif uneven == "pad":
            assert set(seen) == set(range(total))
            assert sum(seen.values()) == -(-total // world_size) * world_size
            assert len(set(sizes)) == 1
        else:
            assert set(seen.values()) <= {1}
            assert sum(seen.values()) == total // world_size * world_size
        if kind != "draws all the way":
            assert [len(rank) for rank in ranks] == [len(loader) for loader in loaders]


@settings(max_examples=30, deadline=None)
@given(total=st.integers(1, 30), world_size=st.integers(2, 4), uneven=st.sampled_from(["pad", "drop", "exact"]))
def test_whole_batches_of_a_batch_sampler_are_dealt(total, world_size, uneven):
    def make():
        return DataLoader(range(total), batch_sampler=Buckets(total))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PossibleUserWarning)
        loaders = set_up(make, world_size, uneven=uneven)
        ranks = read(loaders)
    batches = Counter(tuple(batch) for rank in ranks for batch in rank)
    whole = {tuple(batch) for batch in Buckets(total)}
    assert set(batches) <= whole
    if uneven != "drop":
        assert set(batches) == whole
    if uneven == "exact":
        assert counts(ranks) == Counter(range(total))
    else:
        assert len({len(rank) for rank in ranks}) == 1


def test_padding_is_that_of_torch():
    loaders = set_up(lambda: DataLoader(range(10), batch_size=2), 4)
    theirs = [list(DistributedSampler(range(10), num_replicas=4, rank=rank, shuffle=False)) for rank in range(4)]
    assert [flat(rank) for rank in read(loaders)] == theirs


def test_epochs_differ_and_can_be_chosen_again():
    loaders = set_up(lambda: DataLoader(range(30), batch_size=4, shuffle=True), 2)
    first, second = read(loaders), read(loaders)
    assert first != second
    for loader in loaders:
        loader.set_epoch(0)
    assert read(loaders) == first
    for loader in loaders:
        loader.sampler.set_epoch(1)  # as scripts do
    assert read(loaders) == second


def test_a_run_repeats():
    def run():
        return read(set_up(lambda: DataLoader(range(30), batch_size=4, shuffle=True), 2))

    assert run() == run()


def test_a_generator_gives_the_order_that_one_process_has_epoch_after_epoch():
    def make():
        return DataLoader(range(24), batch_size=2, sampler=RandomSampler(range(24), generator=generator(11)))

    loaders = set_up(make, 2)
    alone = make()
    for _ in range(3):
        ranks = read(loaders)
        steps = [sorted(a + b) for a, b in zip(*ranks, strict=True)]
        single = flat([batch.tolist() for batch in alone])
        assert steps == [sorted(single[place : place + 4]) for place in range(0, 24, 4)]


def test_generators_seeded_differently_agree():
    strategies = simulated_strategies(2)
    loaders = [
        setup_dataloader(
            DataLoader(range(12), batch_size=2, shuffle=True, generator=generator(strategy.global_rank)),
            strategy=strategy,
        )
        for strategy in strategies
    ]
    for _ in range(2):
        assert counts(read(loaders)) == Counter(range(12))


def test_ranks_that_stop_at_different_places_agree_in_the_next_epoch():
    loaders = set_up(lambda: DataLoader(range(12), batch_size=2, shuffle=True, generator=generator()), 2)
    next(iter(loaders[0]))
    list(loaders[1])
    assert counts(read(loaders)) == Counter(range(12))


def test_a_generator_in_a_batch_sampler_agrees_too():
    strategies = simulated_strategies(2)
    loaders = [
        setup_dataloader(
            DataLoader(range(12), batch_sampler=Buckets(12, generator(strategy.global_rank))),
            strategy=strategy,
            uneven="exact",
        )
        for strategy in strategies
    ]
    assert counts(read(loaders)) == Counter(range(12))


def test_the_global_generators_of_the_program_are_not_touched():
    loader = set_up(lambda: DataLoader(range(12), batch_size=2, sampler=ShuffledByPython(12)), 2)[0]
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.rand()
    random.seed(1)
    np.random.seed(1)
    list(loader)
    assert (random.random(), np.random.rand()) == expected


def test_a_sampler_that_raises_gives_the_generators_back():
    class Raises(Sampler):
        def __iter__(self):
            random.random()
            raise KeyError("broken")

        def __len__(self):
            return 4

    loader = set_up(lambda: DataLoader(range(4), sampler=Raises()), 2)[0]
    state = random.getstate()
    with pytest.raises(KeyError, match="broken"):
        list(loader)
    assert random.getstate() == state


def test_an_infinite_sampler_is_read_lazily():
    class Forever(Sampler):
        def __iter__(self):
            place = 0
            while True:
                yield place
                place += 1

    loaders = set_up(lambda: DataLoader(range(10**9), batch_size=3, sampler=Forever()), 2)
    iterators = [iter(loader) for loader in loaders]
    seen = [next(iterator).tolist() for _ in range(4) for iterator in iterators]
    assert sorted(flat(seen)) == list(range(24))


def test_a_replacement_sampler_draws_the_same_on_all_ranks():
    def make():
        return DataLoader(range(5), batch_size=4, sampler=RandomSampler(range(5), replacement=True, num_samples=100))

    loaders = set_up(make, 2)
    ranks = read(loaders)
    assert sum(len(flat(rank)) for rank in ranks) == 100
    for loader in loaders:
        loader.set_epoch(0)
    assert read(loaders[::-1]) == ranks[::-1]


def test_drop_last():
    loaders = set_up(lambda: DataLoader(range(23), batch_size=4, drop_last=True), 2)
    assert [[len(batch) for batch in rank] for rank in read(loaders)] == [[4, 4, 4], [4, 4, 4]]
    assert [len(loader) for loader in loaders] == [3, 3]


def test_a_batch_sampler_given_as_sampler_is_split_by_index():
    class ByList(Dataset):
        def __getitem__(self, indices):
            return list(indices)

        def __len__(self):
            return 10

    def with_lists():
        return DataLoader(ByList(), batch_size=None, sampler=BatchSampler(SequentialSampler(range(10)), 2, False))

    assert read(set_up(with_lists, 2)) == [[[0, 2], [4, 6], [8]], [[1, 3], [5, 7], [9]]]


def test_a_subclass_keeps_class_attributes_and_sampler():
    made = OwnConstructor(how_many=12, secret="s")
    sampler = made.sampler
    loader = setup_dataloader(made, strategy=simulated_strategies(2)[0])
    assert isinstance(loader, OwnConstructor)
    assert loader.secret == "s"
    assert made.sampler is sampler
    assert type(made.batch_sampler) is BatchSampler
    assert loader.sampler._source is sampler
    assert isinstance(loader.sampler, DistributedSampler)
    assert (loader.sampler.num_replicas, loader.sampler.rank) == (2, 0)
    assert loader.sampler.replacement is False, "attributes of the user's sampler are there"
    assert len(list(made)) == 4, "the user's own dataloader still gives everything"


def test_a_batch_sampler_stays_the_users_both_ways():
    batches = Buckets(12)
    batches.note = "mine"
    loader = setup_dataloader(DataLoader(range(12), batch_sampler=batches), strategy=simulated_strategies(2)[0])
    assert loader.batch_sampler.note == "mine"
    loader.batch_sampler.note = "changed"
    assert batches.note == "changed"
    with pytest.raises(TypeError):
        len(loader)


@pytest.mark.parametrize("inside", [False, True])
def test_a_distributed_sampler_is_left_as_it_is(inside):
    trace = Trace()
    sampler = DistributedSampler(range(10), num_replicas=2, rank=1)
    batches = {"batch_sampler": BatchSampler(sampler, 2, False)} if inside else {"sampler": sampler, "batch_size": 2}
    loader = setup_dataloader(DataLoader(range(10), **batches), strategy=simulated_strategies(2)[1], trace=trace)
    assert loader.batch_sampler.sampler is sampler
    assert "splits the data over ranks by itself" in trace.decisions[-1].reason
    first = flat([batch.tolist() for batch in loader])
    assert sampler.epoch == 0
    assert flat([batch.tolist() for batch in loader]) != first
    assert sampler.epoch == 1
    sampler.set_epoch(7)  # the user goes on from there
    list(loader)
    assert sampler.epoch == 7
    list(loader)
    assert sampler.epoch == 8


def test_a_sampler_that_says_its_rank_is_left_as_it_is():
    class TheirOwn(Sampler):
        def __init__(self):
            self.rank, self.num_replicas = 0, 2

        def __iter__(self):
            return iter([0, 2])

    loader = setup_dataloader(DataLoader(range(4), sampler=TheirOwn()), strategy=simulated_strategies(2)[0])
    assert flat([batch.tolist() for batch in loader]) == [0, 2]


def test_a_distributed_sampler_of_other_numbers_is_warned_about():
    sampler = DistributedSampler(range(10), num_replicas=4, rank=1)
    with pytest.warns(PossibleUserWarning, match="part 1 of 4, and the strategy splits the data into 2"):
        setup_dataloader(DataLoader(range(10), sampler=sampler), strategy=simulated_strategies(2)[1])


def test_not_splitting_and_one_process_leave_everything():
    made = DataLoader(range(6), batch_size=2, shuffle=True)
    for options in (
        {"strategy": simulated_strategies(2)[0], "use_distributed_sampler": False},
        {"strategy": simulated_strategies(1)[0]},
    ):
        loader = setup_dataloader(made, **options)
        assert loader.sampler is made.sampler
        assert loader.batch_sampler is made.batch_sampler
        assert sorted(flat([batch.tolist() for batch in loader])) == list(range(6))


def test_data_parallel_numbers_count_and_not_the_worlds():
    strategy = simulated_strategies(4)[3]

    class TensorParallel(type(strategy)):
        data_rank = 1
        data_world_size = 2

    strategy.__class__ = TensorParallel
    strategy.broadcast = lambda obj, src=0: obj
    loader = setup_dataloader(DataLoader(range(8), batch_size=2), strategy=strategy)
    assert [batch.tolist() for batch in loader] == [[1, 3], [5, 7]]


def test_a_rank_without_a_batch_is_warned_about_once():
    strategies = simulated_strategies(4)
    with pytest.warns(PossibleUserWarning, match="gives no batch to data rank") as caught:
        loaders = [setup_dataloader(DataLoader(range(2)), strategy=strategy, uneven="exact") for strategy in strategies]
    assert len(caught) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [list(loader) for loader in loaders[2:]] == [[], []]


def test_a_class_that_does_not_ask_its_sampler_is_warned_about():
    class OwnWay(DataLoader):
        def __iter__(self):
            return iter(list(self.dataset))

    loader = setup_dataloader(OwnWay(range(4)), strategy=simulated_strategies(2)[0])
    with pytest.warns(PossibleUserWarning, match="OwnWay over range.*without asking its sampler"):
        assert list(loader) == [0, 1, 2, 3]


class Fixed(DataLoader):
    @property
    def batch_sampler(self):
        return [[0], [1]]

    @batch_sampler.setter
    def batch_sampler(self, value):
        pass


def test_a_sampler_that_cannot_be_replaced_is_an_error():
    with pytest.raises(ArgumentValueError, match="`batch_sampler` of its own"):
        setup_dataloader(Fixed(range(4)), strategy=simulated_strategies(2)[0])


def test_wrong_arguments():
    strategy = simulated_strategies(1)[0]
    with pytest.raises(ArgumentTypeError, match="got a list"):
        setup_dataloader([1, 2], strategy=strategy)
    with pytest.raises(ArgumentValueError, match="uneven='no'"):
        setup_dataloader(DataLoader(range(2)), strategy=strategy, uneven="no")
    loader = setup_dataloader(DataLoader(range(2)), strategy=strategy)
    with pytest.raises(AlreadySetUpError, match="set up already"):
        setup_dataloader(loader, strategy=strategy)


@pytest.mark.parametrize("bad", ["no loader", Fixed(range(4))])
def test_of_several_loaders_none_is_set_up_unless_all_can_be(bad):
    class Strategy(type(simulated_strategies(2)[1])):
        def broadcast(self, obj, src=0):
            raise AssertionError("the ranks agree on nothing")

    strategy, trace, own = simulated_strategies(2)[1], Trace(), generator(3)
    strategy.__class__ = Strategy
    good = DataLoader(range(4), sampler=RandomSampler(range(4), generator=own))
    seed_rank(1)
    before = torch.get_rng_state(), own.get_state()
    with pytest.raises((ArgumentTypeError, ArgumentValueError)):
        setup_dataloaders([good, bad], strategy=strategy, trace=trace)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(own.get_state(), before[1])
    assert not trace.decisions


def test_the_decision_is_traced():
    trace = Trace()
    strategies = simulated_strategies(2)
    setup_dataloader(DataLoader(range(4), shuffle=True), strategy=strategies[0], trace=trace)
    decision = trace.decisions[-1]
    assert (decision.subject, decision.choice) == ("sampler", "RandomSampler split over 2 processes")
    assert decision.reason == "each gets one of every 2 indices"


def test_two_passes_at_once_are_two_epochs():
    loaders = set_up(lambda: DataLoader(range(12), batch_size=2, shuffle=True), 2)
    epochs = [read(loaders) for _ in range(2)]
    for loader in loaders:
        loader.set_epoch(0)
    for rank, loader in enumerate(loaders):
        pairs = [(a.tolist(), b.tolist()) for a, b in zip(loader, loader, strict=True)]
        assert [a for a, _ in pairs] == epochs[0][rank]
        assert [b for _, b in pairs] == epochs[1][rank]
    assert counts([list(loader.sampler) for loader in loaders]) == Counter(range(12)), "read by itself"


def test_a_loaders_own_generator_stays_each_ranks():
    """It gives workers their seeds; only what the order depends on is made the same."""
    strategies = simulated_strategies(2)
    generators = [generator(strategy.global_rank) for strategy in strategies]
    for strategy, own in zip(strategies, generators, strict=True):
        data = DataLoader(range(4), sampler=SequentialSampler(range(4)), generator=own)
        setup_dataloader(data, strategy=strategy)
    assert not torch.equal(generators[0].get_state(), generators[1].get_state())
