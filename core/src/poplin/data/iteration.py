"""What is known of one pass over a dataloader: where it began, what was delivered, where padding stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Iteration:
    """One pass over a dataloader.

    Attributes:
        epoch: its number.
        skip: how many batches of it were delivered before it was resumed; samplers leave them out.
        delivered: how many batches were delivered so far, those before a resume included.
        finished: whether the loader said that there is no more.
        started: whether the loader asked its sampler for anything.
        padded_batch: index of the batch in which something of this rank's is repeated, or None.
        padded_samples: how many samples at its end are; None means the whole batch.
        lonely_batch: index of a batch that some other ranks do not have, or None.
        short: whether some other ranks have one item more than this one.
        stamp: moment of the last delivery, over all loaders of this process.
        start: states of generators and samplers at its beginning, for a resume.
        rewind: what a sampler does before it is first read, or None.
    """

    __slots__ = (
        "delivered",
        "epoch",
        "finished",
        "lonely_batch",
        "padded_batch",
        "padded_samples",
        "rewind",
        "short",
        "skip",
        "stamp",
        "start",
        "started",
    )

    def __init__(self, epoch: int = 0, skip: int = 0) -> None:
        self.epoch = epoch
        self.skip = skip
        self.delivered = skip
        self.finished = False
        self.started = False
        self.padded_batch: int | None = None
        self.padded_samples: int | None = None
        self.lonely_batch: int | None = None
        self.short = False
        self.stamp = 0
        self.start: dict[str, Any] = {}
        self.rewind: Callable[[], None] | None = None
