"""Groups as a rank sees them, and the error of a collective that failed: it says which ranks are missing."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from poplin.errors import ArgumentTypeError, ArgumentValueError, CollectiveError
from poplin.strategies.process_group import SharedGroup, parse_spec
from poplin.strategies.recorder import INTERVAL, Record

#: How long stragglers may take to show up, in seconds, once a collective has failed because a peer is gone.
STRAGGLER_SECONDS = 2.0
#: How many ranks a message names at most.
NAMED = 16
#: The name under which calls of engines are counted: they are no collectives of a strategy's.
ENGINE = "engine"
#: Words in torch's messages that say that a peer didn't answer, as opposed to arguments that can't be used.
_PEER_WORDS = ("timed out", "timeout", "connection", "peer", "socket", "closed", "broken pipe", "reset", "aborted")


class GroupView(NamedTuple):
    """A process group as one of its ranks sees it."""

    #: torch's handle.
    group: dist.ProcessGroup
    #: Its name, the same on all its ranks.
    key: str
    #: The global ranks in it, in order.
    ranks: tuple[int, ...]
    #: Position of this process among them.
    position: int
    #: Device types whose tensors it takes; ``"*"`` means any.
    device_types: frozenset[str]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def serves(self, device_type: str) -> bool:
        """Whether tensors on such devices can be sent as they are."""
        return device_type in self.device_types or "*" in self.device_types


class Intent:
    """What a collective is, for people and for comparing: ``"all_reduce sum (10,) float32"``; text only when read."""

    __slots__ = ("_device", "_dtype", "_name", "_shape")

    def __init__(self, name: str, tensor: torch.Tensor | None = None) -> None:
        self._name = name
        self._shape = None if tensor is None else tensor.shape
        self._dtype = None if tensor is None else tensor.dtype
        self._device = None if tensor is None else tensor.device

    def __str__(self) -> str:
        if self._shape is None or self._device is None:
            return self._name
        where = "" if self._device.type == "cpu" else f" on {self._device.type}"
        return f"{self._name} {tuple(self._shape)} {str(self._dtype).removeprefix('torch.')}{where}"


class Call(NamedTuple):
    """One collective of this rank."""

    view: GroupView
    #: How many collectives this rank has begun in this group, with this one.
    number: int
    intent: Intent

    @property
    def what(self) -> str:
        return str(self.intent)


class CollectiveLog:
    """Announces each collective of this rank, and reads what the others announced when one fails.

    Args:
        shared: the process group of the run.
        rank: the global rank of this process.
    """

    def __init__(self, shared: SharedGroup, rank: int) -> None:
        self.shared = shared
        self.recorder = shared.recorder
        self.rank = rank

    def view(self, group: Any | None) -> GroupView:
        """``group`` (None: all processes) as this rank sees it.

        Raises:
            ArgumentTypeError: not a process group.
            ArgumentValueError: this rank isn't in it.
        """
        handle = self.shared.group if group is None else group
        known: GroupView | None = self.shared.views.get(id(handle))
        if known is None:  # the view holds the handle, so the id stays its own
            known = self.shared.views[id(handle)] = self._look(handle)
        return known

    def _look(self, group: Any) -> GroupView:
        if group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ArgumentValueError(
                f"Rank {self.rank} is not a member of this process group: only its members may call collectives on it."
            )
        if not isinstance(group, dist.ProcessGroup):
            raise ArgumentTypeError(
                f"group={group!r}: give a process group (torch.distributed.new_group(...)), or None for all processes."
            )
        ranks = tuple(dist.get_process_group_ranks(group))
        device_types = frozenset(parse_spec(str(dist.get_backend_config(group))))
        return GroupView(group, str(group.group_name), ranks, ranks.index(self.rank), device_types)

    def begin(self, view: GroupView, name: str, tensor: torch.Tensor | None = None) -> Call:
        """This rank begins a collective."""
        intent = Intent(name, tensor)
        return Call(view, self.recorder.begin(view.key, intent), intent)

    def begin_engine(self, name: str) -> Call:
        """An engine of this rank begins something in which it talks to all ranks by itself. Counted apart."""
        view = self.view(None)
        return self.begin(view._replace(key=ENGINE), name)

    def failure(self, call: Call, error: BaseException) -> CollectiveError:
        """The error to raise where torch raised ``error`` from ``call``: with the ranks that are missing."""
        text = str(error).strip() or type(error).__name__
        reason = _in_short(text)
        counted = "call" if call.view.key == ENGINE else "collective"
        head = f"{call.what} ({counted} {call.number} of this group) failed on rank {self.rank}"
        if not any(word in text.lower() for word in _PEER_WORDS):
            return CollectiveError(f"{head}: {reason}")
        timed_out = "timed out" in text.lower() or "timeout" in text.lower()
        timeout = self.shared.timeout
        waited = f" after the timeout of {timeout.total_seconds():g} s" if timed_out and timeout is not None else ""
        told = f"{head}{waited}: {self._culprits(call, timed_out)}"
        self.recorder.give_up(call.view.key, call.number, told)
        return CollectiveError(f"{told} torch says: {reason}")

    def _culprits(self, call: Call, timed_out: bool) -> str:
        """Who did not come, as a sentence."""
        others = [rank for rank in call.view.ranks if rank != self.rank]
        self.recorder.flush()
        # After a timeout all had their time, but their records may still be on their way. When a peer is gone at
        # once, the others may just be a little late.
        deadline = time.monotonic() + (2 * INTERVAL if timed_out else STRAGGLER_SECONDS)
        try:
            while True:
                records = {rank: self.recorder.read(call.view.key, rank) for rank in others}
                missing = [rank for rank in others if records[rank].number < call.number]
                if not missing or time.monotonic() > deadline:
                    return self._verdict(call, records, missing)
                time.sleep(INTERVAL / 2)
        except RuntimeError:
            return "the store with the records of all ranks is gone, and with it most likely its host, rank 0."

    def _verdict(self, call: Call, records: dict[int, Record], missing: list[int]) -> str:
        if self.recorder.store is None:
            return "who is missing is not known, as this process group's store can't be read."
        if missing:
            told = "; ".join(
                f"rank {rank} {self._last_seen(call.view.key, rank, records[rank])}" for rank in missing[:NAMED]
            )
            return f"missing {'is' if len(missing) == 1 else 'are'} {name_ranks(missing)} ({told})."
        differing = [
            rank for rank, record in records.items() if record.number == call.number and record.what != call.what
        ]
        if differing:
            told = "; ".join(f"rank {rank} called {records[rank].what}" for rank in differing[:NAMED])
            return f"the ranks are in different collectives: {told}, and rank {self.rank} {call.what}."
        for rank in records:
            last_words = self.recorder.gave_up(call.view.key, rank)
            if last_words.number == call.number:
                return f"rank {rank} has given up before: {last_words.what}"
        ahead = [rank for rank, record in records.items() if record.number > call.number]
        told = f"{name_ranks(ahead)} went on to a later one" if ahead else "all ranks came to it"
        return f"{told}, and then a connection was lost: a process has probably died."

    def _last_seen(self, key: str, rank: int, record: Record) -> str:
        seen = "has called no collective of this group"
        if record.number:
            seen = f"was last in collective {record.number}, {record.what}"
        # what it did of the other sort: a rank that is missing in a backward pass may sit in a barrier
        other = self.recorder.read(self.view(None).key if key == ENGINE else ENGINE, rank)
        if other.number:
            seen += f"; {'apart from the engine' if key == ENGINE else 'its engine'} it was last in {other.what}"
        return f"{seen}{', and has closed its Fabric since' if self.recorder.has_left(rank) else ''}"


def name_ranks(ranks: Sequence[int]) -> str:
    """``"rank 3"``, ``"ranks 3, 4"``; of many only the first."""
    more = len(ranks) - NAMED
    listed = ", ".join(map(str, ranks[:NAMED])) + (f" and {more} more" if more > 0 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def is_peer_failure(error: RuntimeError) -> bool:
    """Whether ``error`` surely comes of another rank's absence, and not of what this rank computes."""
    if isinstance(error, CollectiveError):  # it says so itself
        return False
    sure = ("timed out waiting", "connection closed by peer", "connection reset by peer", "broken pipe")
    return isinstance(error, dist.DistError) or any(words in str(error).lower() for words in sure)


def _in_short(text: str) -> str:
    """Torch's message without the place in its sources and without the advice that follows."""
    line = re.sub(r"^\[[^\s\]]+:\d+\]\s*", "", text.splitlines()[0])
    return line.partition(" This is typically")[0]


def describe(tensor: torch.Tensor) -> str:
    """Shape, dtype and type of device for people."""
    return str(Intent("", tensor)).strip()
