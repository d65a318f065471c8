"""Metrics over ranks count each sample once."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from poplin.data.metrics import gather_for_metrics
from poplin.data.setup import setup_dataloader
from poplin.errors import ArgumentTypeError, CollectiveError
from poplin.testing.simulated import run_simulated, simulated_strategies


class Count(IterableDataset):
    def __init__(self, size):
        self.size = size

    def __iter__(self):
        return iter(range(self.size))


def evaluate(make, world_size, uneven="pad", **options):
    """What each rank has gathered over its whole dataloader."""

    def run(strategy):
        loader = setup_dataloader(make(strategy), strategy=strategy, uneven=uneven, **options)
        seen = []
        for batch in loader:
            seen += gather_for_metrics(torch.as_tensor(batch), strategy=strategy, loaders=[loader]).reshape(-1).tolist()
        return seen

    return run_simulated(run, world_size)


@settings(max_examples=25, deadline=None)
@given(
    total=st.integers(1, 30),
    world_size=st.integers(2, 4),
    batch_size=st.integers(1, 4) | st.none(),
    kind=st.sampled_from(["indices", "batches", "their own sampler", "iterable"]),
)
def test_padded_samples_are_left_out(total, world_size, batch_size, kind):
    def make(strategy):
        if kind == "batches":
            return DataLoader(
                range(total), batch_sampler=[[i, i + 1] if i + 1 < total else [i] for i in range(0, total, 2)]
            )
        if kind == "iterable":
            return DataLoader(Count(total), batch_size=batch_size)
        sampler = None
        if kind == "their own sampler":
            sampler = DistributedSampler(range(total), num_replicas=world_size, rank=strategy.global_rank)
        return DataLoader(range(total), batch_size=batch_size, sampler=sampler)

    for seen in evaluate(make, world_size, shard_iterable=True):
        assert sorted(seen) == list(range(total))


def test_padded_samples_of_workers_are_left_out():
    assert [sorted(seen) for seen in evaluate(lambda _: DataLoader(range(13), batch_size=2, num_workers=2), 2)] == [
        list(range(13))
    ] * 2
    iterable = evaluate(lambda _: DataLoader(Count(13), batch_size=2, num_workers=2), 2, shard_iterable=True)
    assert [sorted(seen) for seen in iterable] == [list(range(13))] * 2


@settings(max_examples=15, deadline=None)
@given(total=st.integers(4, 30), world_size=st.integers(2, 4), batch_size=st.integers(2, 4))
def test_the_uneven_last_batch_of_an_exact_split(total, world_size, batch_size):
    for seen in evaluate(lambda _: DataLoader(range(total), batch_size=batch_size), world_size, uneven="exact"):
        assert sorted(seen) == list(range(total))


def test_a_batch_that_others_do_not_have_is_an_error_and_no_hang():
    def run(strategy):
        loader = setup_dataloader(DataLoader(range(3)), strategy=strategy, uneven="exact")
        seen = []
        try:
            for batch in loader:
                seen.append(gather_for_metrics(batch, strategy=strategy, loaders=[loader]).tolist())
        except CollectiveError as error:
            seen.append(str(error))
        return seen

    first, second = run_simulated(run, 2)
    assert second == [[0, 1]]
    assert first[0] == [0, 1]
    assert "some processes have one batch less" in first[1]


@dataclass
class Output:
    logits: torch.Tensor
    loss: float
    note: None = None


def test_collections_scalars_and_dtypes():
    def run(strategy):
        rank = strategy.global_rank
        data = {
            "output": Output(torch.full((2, 3), float(rank), requires_grad=True), 0.5 + rank),
            "pair": (torch.tensor([rank > 0]), [torch.tensor([rank], dtype=torch.bfloat16)]),
            "scalar": torch.tensor(rank),
        }
        return gather_for_metrics(data, strategy=strategy, loaders=[])

    for result in run_simulated(run, 2):
        assert result["output"].logits.tolist() == [[0.0] * 3] * 2 + [[1.0] * 3] * 2
        assert not result["output"].logits.requires_grad
        assert result["output"].loss.tolist() == [0.5, 1.5]
        assert result["output"].note is None
        assert result["pair"][0].tolist() == [False, True]
        assert result["pair"][1][0].dtype == torch.bfloat16
        assert result["scalar"].tolist() == [0, 1]


def test_one_process_gets_the_same_shapes():
    strategy = simulated_strategies(1)[0]
    result = gather_for_metrics([torch.ones(2, 3), torch.tensor(1), 2.5], strategy=strategy, loaders=[])
    assert [tuple(item.shape) for item in result] == [(2, 3), (1,), (1,)]


def test_objects_are_refused_by_type():
    with pytest.raises(ArgumentTypeError, match="found a str"):
        gather_for_metrics({"names": ["a"]}, strategy=simulated_strategies(1)[0], loaders=[])


def test_the_loader_that_delivered_last_counts():
    def run(strategy):
        train = setup_dataloader(DataLoader(range(4), batch_size=1), strategy=strategy)
        valid = setup_dataloader(DataLoader(range(3), batch_size=2), strategy=strategy)
        seen = []
        for _ in train:
            got = [gather_for_metrics(batch, strategy=strategy, loaders=[train, valid]).tolist() for batch in valid]
            seen.append(got)
        return seen

    assert run_simulated(run, 2) == [[[[0, 2, 1]]] * 2] * 2
