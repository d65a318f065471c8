"""Helpers around dataloaders, and the dictionary with attributes."""

import copy
import os
import pickle

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from poplin.errors import ArgumentValueError
from poplin.utilities.data import (
    AttributeDict,
    DistributedSamplerWrapper,
    has_iterable_dataset,
    has_len,
    suggested_max_num_workers,
)


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


def test_iterable_datasets_and_lengths():
    assert has_iterable_dataset(DataLoader(Endless()))
    assert not has_iterable_dataset(DataLoader(range(2)))
    assert not has_iterable_dataset(object())
    assert has_len(DataLoader(range(2)))
    assert not has_len(DataLoader(Endless()))


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    assert [suggested_max_num_workers(size) for size in (1, 3, 8, 9)] == [8, 2, 1, 1]
    with pytest.raises(ArgumentValueError, match="at least one process"):
        suggested_max_num_workers(0)


def test_a_sampler_wrapped_by_hand_is_split_in_one_order():
    def read(epoch):
        items = []
        for rank in range(2):
            torch.manual_seed(rank)
            sampler = DistributedSamplerWrapper(RandomSampler(range(7)), num_replicas=2, rank=rank, shuffle=False)
            sampler.set_epoch(epoch)
            items += list(sampler)
            assert len(sampler) == 4
        return items

    assert set(read(0)) == set(range(7))
    assert read(0) == read(0) != read(1)


def test_a_dictionary_with_attributes():
    state = AttributeDict(step=1, model="m")
    state.step += 1
    state["new"] = 3
    assert (state.step, state["step"], state.new) == (2, 2, 3)
    del state.new
    with pytest.raises(AttributeError, match="'new'"):
        _ = state.new
    with pytest.raises(AttributeError, match="'new'"):
        del state.new
    for other in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state), copy.copy(state), state.copy()):
        assert other == state
        assert type(other) is AttributeDict
    assert repr(state) == '"model": m\n"step":  2'
    assert repr(AttributeDict()) == "AttributeDict()"
    assert "step" in dir(state)
