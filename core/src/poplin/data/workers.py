"""What happens first in each worker process of a set-up dataloader."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import get_worker_info

from poplin.rank_zero import rank_zero_only
from poplin.seed import workers_are_seeded
from poplin.utilities.signals import shield_loader_worker


class WorkerStart:
    """The ``worker_init_fn`` of a set-up dataloader: shield, seed, then the user's own function.

    Args:
        function: the user's ``worker_init_fn``, or None.
        rank: which part of the data this process gets; processes that share a part draw the same in their workers.
    """

    def __init__(self, function: Callable[[int], Any] | None, rank: int) -> None:
        self.function = function
        self.rank = rank
        #: Whether to seed even where that wasn't asked for, because all ranks have the same base seed.
        self.mix_rank = False

    def __call__(self, worker_id: int) -> None:
        if get_worker_info() is not None:  # not where a loader class calls it in the main process
            shield_loader_worker()
        if self.mix_rank or workers_are_seeded():
            seed_worker(worker_id, self.rank)
        if self.function is not None:
            self.function(worker_id)


def seed_worker(worker_id: int, rank: int) -> None:
    """Seed Python, NumPy and torch in a dataloader worker.

    torch gives the worker a base seed drawn from the main process's generator, new in each epoch, plus its id. Ranks
    seeded alike draw alike, so the rank is mixed in; NumPy's SeedSequence keeps the results apart.

    Args:
        worker_id: of the worker.
        rank: which part of the data its process gets.
    """
    info = get_worker_info()
    base = (info.seed if info is not None else torch.initial_seed()) - worker_id
    words = np.random.SeedSequence([base % 2**64, worker_id, rank]).generate_state(6, dtype=np.uint32).tolist()
    np.random.seed(words[:2])
    torch.manual_seed((words[2] << 31) ^ words[3])
    random.seed((words[4] << 32) | words[5])


def pl_worker_init_function(worker_id: int, rank: int | None = None) -> None:
    """A ``worker_init_fn`` for dataloaders that Fabric doesn't set up. (The name is Lightning's.)

    Args:
        worker_id: of the worker.
        rank: of the process; by default its global rank.
    """
    seed_worker(worker_id, int(getattr(rank_zero_only, "rank", None) or 0) if rank is None else rank)
