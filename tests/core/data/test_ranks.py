"""Two real processes: one launch, every case."""

import pytest

from poplin.testing.ranks import run_ranks

SCRIPT = """
import json
import os
import random
import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from poplin.data.metrics import gather_for_metrics
from poplin.data.setup import setup_dataloader
from poplin.errors import CollectiveError, PossibleUserWarning
from poplin.seed import seed_everything
from poplin.strategies import ParallelStrategy
from poplin.testing.ranks import report
from poplin.testing.strategies import start_strategy
from poplin.utilities.spike import SpikeDetection, TrainingSpikeException

RANK = int(os.environ["RANK"])
strategy = start_strategy(ParallelStrategy(timeout=30))
out = {}
seed_everything(100 + RANK, verbose=False)  # each rank another seed


class Draws(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return int(torch.randint(2**31, ()))


class Count(IterableDataset):
    def __iter__(self):
        return iter(range(11))


def flat(loader):
    return [item for batch in loader for item in torch.as_tensor(batch).reshape(-1).tolist()]


loader = setup_dataloader(DataLoader(range(11), batch_size=2, shuffle=True), strategy=strategy)
out["epochs"] = [flat(loader) for _ in range(2)]
for batch in loader:
    break
state = loader.state_dict()
loader.load_state_dict(state)
out["resumed"] = [batch.tolist(), flat(loader)]



def gathered(loader):
    return [i for b in loader for i in gather_for_metrics({"x": b}, strategy=strategy, loaders=[loader])["x"].tolist()]


loader = setup_dataloader(DataLoader(range(11), batch_size=2, num_workers=1), strategy=strategy)
out["metrics"] = gathered(loader)
out["after the loop"] = gather_for_metrics(torch.arange(3), strategy=strategy, loaders=[loader]).tolist()
out["exact"] = gathered(setup_dataloader(DataLoader(range(13), batch_size=3), strategy=strategy, uneven="exact"))
loader = setup_dataloader(DataLoader(Count(), num_workers=2), strategy=strategy, shard_iterable=True, uneven="exact")
out["iterable"] = flat(loader)

generator = torch.Generator()
generator.manual_seed(RANK)
loader = setup_dataloader(DataLoader(range(12), batch_size=2, shuffle=True, generator=generator), strategy=strategy)
out["generators"] = [flat(loader) for _ in range(2)]

seed_everything(5, workers=True, verbose=False)  # all ranks the same
loader = setup_dataloader(DataLoader(Draws(), num_workers=2), strategy=strategy)
out["workers"] = [flat(loader) for _ in range(2)]

try:
    detection = SpikeDetection(exclude_batches_path=os.environ["SPIKE_FOLDER"])
    fabric = type("Fabric", (), {"strategy": strategy, "is_global_zero": RANK == 0})
    for index, loss in enumerate([1.0, 1.0, 1.0 + 9 * RANK]):
        detection.on_train_batch_end(fabric, loss, None, index)
except TrainingSpikeException as spike:
    out["spike"] = spike.batch_idx
report(out)
strategy.teardown()
"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spike")
    environment = {"SPIKE_FOLDER": str(folder), "PL_GLOBAL_SEED": None, "PL_SEED_WORKERS": None}
    return run_ranks(SCRIPT, world_size=2, env=environment, timeout=120)


def test_every_sample_once_in_each_epoch_whatever_each_ranks_seed(ranks):
    for first, second in zip(*(rank["epochs"] for rank in ranks), strict=True):
        assert set(first + second) == set(range(11))
        assert len(first) == len(second) == 6
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]
    for first, second in zip(*(rank["generators"] for rank in ranks), strict=True):
        assert sorted(first + second) == list(range(12))
    assert sorted(ranks[0]["iterable"] + ranks[1]["iterable"]) == list(range(11))


def test_a_pass_goes_on(ranks):
    everything = [item for rank in ranks for part in rank["resumed"] for item in part]
    assert set(everything) == set(range(11))
    assert len(everything) == 12


def test_metrics_count_each_sample_once(ranks):
    for rank in ranks:
        assert sorted(rank["metrics"]) == list(range(11))
        assert sorted(rank["exact"]) == list(range(13))
        assert rank["after the loop"] == [0, 1, 2, 0, 1, 2], "nothing of it is padding"


def test_workers_draw_differently(ranks):
    drawn = [item for rank in ranks for epoch in rank["workers"] for item in epoch]
    assert len(set(drawn)) == len(drawn) == 16


def test_a_spike_of_one_rank_ends_both(ranks):
    assert [rank["spike"] for rank in ranks] == [2, 2]
