"""Iterable datasets: split over ranks and workers, or warned about."""

import copy
import os
import pickle
import random
import warnings
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from poplin.data.setup import setup_dataloader
from poplin.errors import PossibleUserWarning
from poplin.testing.simulated import simulated_strategies


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size
        self.epoch = 0

    def __iter__(self):
        return iter(range(self.size))

    def __len__(self):
        return self.size


class Shuffled(Count):
    """Draws its order from the global generator."""

    def __iter__(self):
        order = list(range(self.size))
        random.shuffle(order)
        return iter(order)


class SplitsItself(Count):
    def __iter__(self):
        return iter(range(*self.part()))

    def part(self):
        info = get_worker_info()
        return (0, self.size) if info is None else (info.id, self.size, info.num_workers)


class WithEpoch(Count):
    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(range(100 * self.epoch, 100 * self.epoch + self.size))


def start_worker(worker_id):
    """The way of torch's documentation: each worker's copy of the dataset is told its part."""
    get_worker_info().dataset.size = 4 + worker_id


def split(make, world_size=2, **options):
    loaders = []
    for strategy in simulated_strategies(world_size):
        torch.manual_seed(strategy.global_rank)
        random.seed(strategy.global_rank)
        loaders.append(setup_dataloader(make(), strategy=strategy, shard_iterable=True, **options))
    return loaders


def samples(loaders):
    return [[item for batch in loader for item in batch.tolist()] for loader in loaders]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_every_sample_exactly_once_over_ranks_and_workers(num_workers):
    for uneven in ("exact", "pad", "drop") if num_workers == 0 else ("exact", "pad"):
        loaders = split(lambda: DataLoader(Shuffled(23), batch_size=3, num_workers=num_workers), uneven=uneven)
        for _ in range(1 if num_workers else 2):
            ranks = samples(loaders)
            seen = Counter(item for rank in ranks for item in rank)
            if uneven == "exact":
                assert seen == Counter(range(23))
            else:
                assert len({len(rank) for rank in ranks}) == 1
                assert set(seen) == set(range(23)) if uneven == "pad" else set(seen.values()) == {1}


def test_epochs_differ_and_persistent_workers_are_reached():
    loaders = split(
        lambda: DataLoader(WithEpoch(8), batch_size=4, num_workers=1, persistent_workers=True), world_size=2
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert samples(loaders) == [[0, 2, 4, 6], [1, 3, 5, 7]]
        assert samples(loaders) == [[100, 102, 104, 106], [101, 103, 105, 107]]


def test_a_dataset_that_splits_itself_over_workers_is_split_over_ranks_only():
    loaders = split(lambda: DataLoader(SplitsItself(12), batch_size=2, num_workers=2), uneven="exact")
    assert loaders[0].dataset.splits_itself
    assert Counter(item for rank in samples(loaders) for item in rank) == Counter(range(12))


def test_a_start_function_that_tells_workers_their_part_still_does():
    loaders = split(
        lambda: DataLoader(Count(0), batch_size=4, num_workers=2, worker_init_fn=start_worker), uneven="exact"
    )
    ranks = samples(loaders)
    assert Counter(item for rank in ranks for item in rank) == Counter([*range(4), *range(5)])


def test_the_dataset_stays_the_users():
    mine = Count(6)
    loader = split(lambda: DataLoader(mine, batch_size=2))[0]
    assert isinstance(loader.dataset, Count)
    loader.dataset.size = 4
    assert mine.size == 4
    assert len(loader) == 1
    assert samples([loader]) == [[0, 2]]
    for other in (pickle.loads(pickle.dumps(loader.dataset)), copy.deepcopy(loader.dataset)):
        assert list(other) == [0, 2]


def test_one_that_is_not_split_is_warned_about_and_one_process_is_not():
    with pytest.warns(PossibleUserWarning, match="Count is an IterableDataset: each of the 2 processes gets all"):
        setup_dataloader(DataLoader(Count(4)), strategy=simulated_strategies(2)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup_dataloader(DataLoader(Count(4)), strategy=simulated_strategies(2)[0], use_distributed_sampler=False)
        loader = setup_dataloader(DataLoader(Count(4)), strategy=simulated_strategies(1)[0], shard_iterable=True)
    assert type(loader.dataset) is Count


def test_one_that_looks_at_its_rank_is_not_warned_about():
    class ByRank(Count):
        def __iter__(self):
            return iter(range(torch.distributed.get_rank(), self.size, 2))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup_dataloader(DataLoader(ByRank(4)), strategy=simulated_strategies(2)[0])


def test_workers_of_a_map_dataset_that_live_on_are_warned_about_by_name():
    class Mine(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return os.getpid()

        def set_epoch(self, epoch):
            self.epoch = epoch

    data = Mine()
    with pytest.warns(PossibleUserWarning, match="Mine has `set_epoch`, and this DataLoader keeps its workers alive"):
        setup_dataloader(DataLoader(data, num_workers=1, persistent_workers=True), strategy=simulated_strategies(1)[0])
    loader = setup_dataloader(DataLoader(torch.utils.data.Subset(data, [0, 1])), strategy=simulated_strategies(1)[0])
    list(loader)
    list(loader)
    assert data.epoch == 1, "also inside a Subset"


def test_one_process_splits_over_its_workers():
    loader = split(lambda: DataLoader(Count(9), batch_size=2, num_workers=2), world_size=1)[0]
    assert sorted(samples([loader])[0]) == list(range(9))
