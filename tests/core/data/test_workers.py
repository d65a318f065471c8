"""Loader workers: seeded, each differently and the same in every run; the user's start function is kept."""

import os
import pickle
import random
import signal
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from poplin.data.setup import setup_dataloader
from poplin.data.workers import pl_worker_init_function
from poplin.seed import seed_everything
from poplin.testing.simulated import simulated_strategies

STARTED = []


class Draws(Dataset):
    """What the generators of its worker draw."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return int(torch.randint(2**31, ())), random.randrange(2**31), int(np.random.randint(2**31))


class TellsPid(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid()


def remember(worker_id):
    STARTED.append(worker_id)
    random.seed(worker_id)  # the user's own seeding wins


def as_they_are(batch):
    return batch


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")  # what seed_everything sets is given back
    monkeypatch.setenv("PL_SEED_WORKERS", "0")


def draw(rank, seed=1, workers=True, epochs=1, **options):
    seed_everything(seed, workers=workers, verbose=False)
    loader = setup_dataloader(
        DataLoader(Draws(), num_workers=2, collate_fn=as_they_are, **options),
        strategy=simulated_strategies(2)[rank],
        use_distributed_sampler=False,
    )
    return [[item for batch in loader for item in batch] for _ in range(epochs)]


def test_every_worker_of_every_rank_and_epoch_draws_something_else_and_the_same_in_every_run():
    ranks = [draw(0, epochs=2), draw(1, epochs=2)]
    for place in range(3):  # torch, Python, NumPy
        drawn = [item[place] for rank in ranks for epoch in rank for item in epoch]
        assert len(set(drawn)) == len(drawn) == 16
    assert draw(0, epochs=2) == ranks[0]
    assert draw(0, seed=2)[0] != ranks[0][0]


def test_the_users_start_function_runs_last():
    drawn = draw(0, worker_init_fn=remember)[0]
    expected = random.Random(0)
    assert [item[1] for item in drawn[::2]] == [expected.randrange(2**31) for _ in range(2)]


def test_without_seeding_workers_draw_what_torch_gives_them():
    assert draw(0, workers=False) == draw(1, workers=False)


def test_what_a_worker_starts_with_pickles():
    loader = setup_dataloader(
        DataLoader(Draws(), num_workers=1, worker_init_fn=remember), strategy=simulated_strategies(1)[0]
    )
    start = pickle.loads(pickle.dumps(loader.worker_init_fn))
    start(5)
    assert STARTED.pop() == 5


@pytest.mark.slow
def test_a_start_method_that_pickles():
    drawn = draw(0, multiprocessing_context="forkserver")[0]
    assert len({item[0] for item in drawn}) == 4


def test_the_function_that_lightnings_users_pass_by_hand():
    torch.manual_seed(3)
    pl_worker_init_function(1, rank=0)
    first = torch.rand(()), random.random(), np.random.rand()
    torch.manual_seed(3)
    pl_worker_init_function(1, rank=1)
    second = torch.rand(()), random.random(), np.random.rand()
    assert all(a != b for a, b in zip(first, second, strict=True))


def test_workers_survive_a_signal_to_their_group_and_end_with_the_loader():
    loader = setup_dataloader(DataLoader(TellsPid(), num_workers=2), strategy=simulated_strategies(1)[0])
    iterator = iter(loader)
    pids = {int(next(iterator)) for _ in range(4)}
    assert len(pids) == 2
    sender = os.fork()
    if sender == 0:  # a signal from elsewhere, as a scheduler sends it
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        os._exit(0)
    os.waitpid(sender, 0)
    time.sleep(0.3)
    assert len(list(iterator)) == 4
    del iterator
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_ranks_that_share_a_generator_for_their_order_draw_differently_in_workers():
    drawn = []
    for strategy in simulated_strategies(2):
        generator = torch.Generator()
        generator.manual_seed(strategy.global_rank)
        data = DataLoader(Draws(), num_workers=1, collate_fn=as_they_are, shuffle=True, generator=generator)
        drawn += [batch[0][0] for batch in setup_dataloader(data, strategy=strategy)]
    assert len(set(drawn)) == 4
