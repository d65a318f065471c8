"""What each rank was last doing, kept in the group's store, so that a collective that fails can say who is missing."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from poplin.errors import ArgumentTypeError, ArgumentValueError, CollectiveError
from poplin.strategies.process_group import SharedGroup, parse_spec

#: How long stragglers may take to show up, in seconds, once a collective has failed because a peer is gone.
STRAGGLER_SECONDS = 2.0
#: What a rank that has closed its Fabric leaves as its last words.
LEFT = "left"
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


class Call(NamedTuple):
    """One collective of this rank."""

    view: GroupView
    #: How many collectives this rank has begun in this group, with this one.
    number: int
    #: What it is, for people: ``"all_reduce (10,) float32"``.
    what: str


class CollectiveLog:
    """Writes down each collective of this rank, and reads what the others wrote when one fails.

    Args:
        shared: the process group of the run.
        rank: the global rank of this process.
    """

    def __init__(self, shared: SharedGroup, rank: int) -> None:
        self.shared = shared
        self.rank = rank
        self._views: dict[int, GroupView] = {}

    def view(self, group: Any | None) -> GroupView:
        """``group`` (None: all processes) as this rank sees it.

        Raises:
            ArgumentTypeError: not a process group.
            ArgumentValueError: this rank isn't in it.
        """
        handle = self.shared.group if group is None else group
        known = self._views.get(id(handle))
        if known is None:
            known = self._views[id(handle)] = self._look(handle)  # the view holds the handle, so the id stays its own
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

    def begin(self, view: GroupView, what: str) -> Call:
        """Write down that this rank begins a collective. Costs one message to the store, without an answer."""
        number = self.shared.sequence.get(view.key, 0) + 1
        self.shared.sequence[view.key] = number
        store = self.shared.store
        if store is not None:
            try:
                store.set(f"{view.key}/{self.rank}", f"{number} {what}")
            except RuntimeError:  # its host is gone: the collective itself will tell
                pass
        return Call(view, number, what)

    def leave(self) -> None:
        """Write down that this rank has closed its Fabric: it will come to no further collective."""
        if self.shared.store is not None:
            try:
                self.shared.store.set(f"{LEFT}/{self.rank}", LEFT)
            except RuntimeError:
                pass

    def failure(self, call: Call, error: BaseException) -> CollectiveError:
        """The error to raise where torch raised ``error`` from ``call``: with the ranks that are missing."""
        text = str(error).strip() or type(error).__name__
        reason = _in_short(text)
        head = f"{call.what} (collective {call.number} of this group) failed on rank {self.rank}"
        if not any(word in text.lower() for word in _PEER_WORDS):
            return CollectiveError(f"{head}: {reason}")
        timed_out = "timed out" in text.lower() or "timeout" in text.lower()
        timeout = self.shared.timeout
        waited = f" after the timeout of {timeout.total_seconds():g} s" if timed_out and timeout is not None else ""
        told = f"{head}{waited}: {self._culprits(call, timed_out)}"
        self._give_up(call, told)
        return CollectiveError(f"{told} torch says: {reason}")

    def _give_up(self, call: Call, told: str) -> None:
        """Leave word for a rank that comes late and finds nobody."""
        if self.shared.store is not None:
            try:
                self.shared.store.set(f"{call.view.key}/{self.rank}/gave_up", f"{call.number} {told}")
            except RuntimeError:
                pass

    def _culprits(self, call: Call, timed_out: bool) -> str:
        """Who did not come, as a sentence."""
        others = [rank for rank in call.view.ranks if rank != self.rank]
        # After a timeout all had their time. When a peer is gone at once, the others may just be a little late.
        deadline = time.monotonic() + (0.0 if timed_out else STRAGGLER_SECONDS)
        while True:
            try:
                records = {rank: self._read(call.view.key, rank) for rank in others}
            except RuntimeError:
                return "the store with the records of all ranks is gone, and with it most likely its host, rank 0."
            missing = [rank for rank in others if records[rank][0] < call.number]
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        if missing:
            told = "; ".join(f"rank {rank} {records[rank][1]}" for rank in missing)
            return f"missing {'is rank' if len(missing) == 1 else 'are ranks'} {', '.join(map(str, missing))} ({told})."
        differing = [rank for rank in others if records[rank][0] == call.number and records[rank][2] != call.what]
        if differing:
            told = "; ".join(f"rank {rank} called {records[rank][2]}" for rank in differing)
            return f"the ranks are in different collectives: {told}, and rank {self.rank} {call.what}."
        for rank in others:
            if (last_words := self._gave_up(call, rank)) is not None:
                return f"rank {rank} has given up before: {last_words}"
        ahead = [rank for rank in others if records[rank][0] > call.number]
        told = f"rank(s) {', '.join(map(str, ahead))} went on to a later one" if ahead else "all ranks came to it"
        return f"{told}, and then a connection was lost: a process has probably died."

    def _gave_up(self, call: Call, rank: int) -> str | None:
        """What ``rank`` said when it gave up this very collective; None if it didn't."""
        store, key = self.shared.store, f"{call.view.key}/{rank}/gave_up"
        if store is None or not store.check([key]):
            return None
        number, _, told = store.get(key).decode(errors="replace").partition(" ")
        return told if int(number) == call.number else None

    def _read(self, key: str, rank: int) -> tuple[int, str, str]:
        """``(number, for people, what)`` of the last collective that ``rank`` left."""
        store = self.shared.store
        if store is None:
            return 0, "left no word: this process group's store can't be read", ""
        left = " and has closed its Fabric since" if store.check([f"{LEFT}/{rank}"]) else ""
        if not store.check([f"{key}/{rank}"]):
            return 0, f"has called no collective of this group{left}", ""
        number, _, what = store.get(f"{key}/{rank}").decode(errors="replace").partition(" ")
        return int(number), f"was last in collective {number}, {what}{left}", what


def _in_short(text: str) -> str:
    """Torch's message without the place in its sources and without the advice that follows."""
    line = re.sub(r"^\[[^\s\]]+:\d+\]\s*", "", text.splitlines()[0])
    return line.partition(" This is typically")[0]


def describe(tensor: torch.Tensor) -> str:
    """Shape, dtype and type of device for people."""
    where = "" if tensor.device.type == "cpu" else f" on {tensor.device.type}"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}{where}"
