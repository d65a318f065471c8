"""What is done to tensors on the meta device, kept so that it can be done again for real.

A module that is made on the meta device takes no memory, and its initial values are lost. Here every operation of its
constructor is written down: played back, in the same order and from the same random state, they give the same values
as a constructor that runs for real, tensor by tensor, each of which can be given up as soon as it is final.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from poplin.errors import UsageError
from poplin_fsdp.operations import Given, Operation, View, described


class Tape:
    """The operations, in order.

    Args:
        rng_state: of the device's generator when the first one was recorded.
    """

    def __init__(self, rng_state: Tensor) -> None:
        self.rng_state = rng_state
        #: The generator's state when recording last ended: nobody has drawn since, if it still is.
        self.rng_state_after = rng_state
        self.operations: list[Operation] = []
        #: Whether weights were left out: they are going to be loaded.
        self.weightless = False
        self._storages: dict[int, tuple[int, Any]] = {}
        self._nbytes: list[int] = []

    # --- recording

    def knows(self, tensor: Tensor) -> bool:
        """Whether ``tensor``, on the meta device, was seen."""
        return tensor.is_meta and tensor.untyped_storage()._cdata in self._storages

    def view(self, tensor: Tensor) -> View:
        """``tensor``, on the meta device, as it is now."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            # the storage is kept, so that its address stays its own
            self._storages[storage._cdata] = (len(self._nbytes), storage)
            self._nbytes.append(storage.nbytes())
        number = self._storages[storage._cdata][0]
        self._nbytes[number] = max(self._nbytes[number], storage.nbytes())
        return View(number, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), tensor.dtype)

    def kept(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of an operation that is about to be done, with views and given tensors for tensors."""

        def kept(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            return self.view(leaf) if leaf.is_meta else Given(leaf, leaf._version)

        both: tuple[Any, Any] = tree_map(kept, (args, kwargs))
        return both

    def record(self, function: Callable[..., Any], kept: tuple[Any, Any], result: Any = None) -> None:
        """Append an operation that was just done on the meta device."""
        args, kwargs = kept
        leaves = tree_flatten(result)[0]
        outputs = [self.view(leaf) if isinstance(leaf, Tensor) and leaf.is_meta else None for leaf in leaves]
        self.operations.append(Operation(function, args, kwargs, outputs, torch.get_default_dtype()))

    def digest(self) -> str:
        """The same for tapes that do the same: on all ranks, if their constructors did."""
        told = hashlib.sha256()
        for operation in self.operations:
            leaves = tree_flatten((operation.args, operation.kwargs))[0]
            plain = [described(leaf) for leaf in leaves]
            told.update(repr((operation.name, plain, operation.outputs)).encode())
        return told.hexdigest()

    # --- playing

    def written(self) -> set[int]:
        """The storages that get values."""
        found: set[int] = set()
        for operation in self.operations:
            if operation.writes:
                found.update(view.storage for view in operation.views)
            elif not operation.makes_empty:
                inputs = {view.storage for view in operation.views}
                found.update(view.storage for view in operation.outputs if view and view.storage not in inputs)
        return found

    def play(
        self,
        device: torch.device,
        wanted: set[int],
        take: Callable[[int, Callable[[View], Tensor]], None],
        given: Callable[[Tensor], Tensor],
    ) -> None:
        """Do all of it for real, on ``device``, with its generator as it is.

        Args:
            device: of the tensors.
            wanted: storages.
            take: ``take(storage, real)`` is called for each of them when its values are final; ``real(view)`` is what
                they are. They are given up afterwards.
            given: what a real tensor that an operation takes becomes on ``device``.
        """
        player = _Player(self._nbytes, device, given)
        accesses = self._accesses()
        with torch.no_grad():
            for number, operation in enumerate(self.operations):
                player.do(operation)
                for storage in accesses.ends.get(number, ()):
                    if storage in wanted and accesses.last[storage] == number:
                        take(storage, player.real)
                    player.forget(storage)
            for storage in wanted - accesses.seen:
                take(storage, player.real)
                player.forget(storage)

    def value(self, view: View) -> Tensor:
        """The values of ``view`` as far as it was recorded, on the CPU.

        Raises:
            UsageError: they depend on random numbers, which are drawn later.
        """
        needed, chosen = {view.storage}, []
        for operation in reversed(self.operations):
            changed = [*operation.outputs, *(operation.views if operation.writes else ())]
            touched = {one.storage for one in changed if one is not None}
            if touched & needed:
                needed |= {one.storage for one in operation.views}
                chosen.append(operation)
        if any(operation.draws for operation in chosen):
            raise UsageError(
                "The module looks at random values while it is made, and under fabric.init_module() random numbers are "
                "drawn when it is set up. Pass init_module(empty_init=False): then it is made for real."
            )
        player = _Player(self._nbytes, torch.device("cpu"), lambda tensor: tensor.cpu())
        with torch.no_grad():
            for operation in reversed(chosen):
                player.do(operation)
            return player.real(view)

    def _accesses(self) -> _Accesses:
        """When each storage can be given up: after its last use, and before it is filled anew."""
        uses: dict[int, list[tuple[int, bool]]] = {}
        for number, operation in enumerate(self.operations):
            filled = operation.fills()
            sources = [view.storage for view in operation.views if view is not filled]
            for view in (*operation.views, *(one for one in operation.outputs if one)):
                whole = (
                    filled is not None
                    and view.storage == filled.storage
                    and filled.nbytes() == self._nbytes[view.storage]
                    and view.storage not in sources
                )
                entries = uses.setdefault(view.storage, [])
                if not entries or entries[-1][0] != number:
                    entries.append((number, whole))
        ends: dict[int, list[int]] = {}
        for storage, entries in uses.items():
            for (number, _), (_, whole) in zip(entries, [*entries[1:], (-1, True)], strict=True):
                if whole:
                    ends.setdefault(number, []).append(storage)
        return _Accesses(ends, {storage: entries[-1][0] for storage, entries in uses.items()}, set(uses))


@dataclass
class _Accesses:
    #: Number of an operation → the storages whose values nobody needs after it, or that are final.
    ends: dict[int, list[int]]
    #: Storage → the number of the last operation that has to do with it.
    last: dict[int, int]
    seen: set[int]


class _Player:
    """Does operations for real, on storages that come and go."""

    def __init__(self, nbytes: list[int], device: torch.device, given: Callable[[Tensor], Tensor]) -> None:
        self._nbytes, self._device, self._given = nbytes, device, given
        self._storages: dict[int, Any] = {}

    def real(self, view: View) -> Tensor:
        """What ``view`` is by now."""
        storage = self._storages.get(view.storage)
        if storage is None:
            storage = torch.empty(self._nbytes[view.storage], dtype=torch.uint8, device=self._device).untyped_storage()
            self._storages[view.storage] = storage
        empty = torch.empty(0, dtype=view.dtype, device=self._device)
        return empty.set_(storage, view.offset, view.size, view.stride)

    def forget(self, storage: int) -> None:
        self._storages.pop(storage, None)

    def do(self, operation: Operation) -> None:
        known = {view.storage for view in operation.views}
        makes = [view for view in operation.outputs if view and view.storage not in known]
        if operation.makes_empty or not (operation.writes or makes):
            return  # a window on what is there, or nothing yet
        args, kwargs = tree_map(self._real_leaf, (operation.args, operation.kwargs))
        with default_dtype(operation.dtype):
            result = operation.function(*args, **kwargs)
        for view, made in zip(operation.outputs, tree_flatten(result)[0], strict=False):
            if view is not None and view.storage not in known and view.storage not in self._storages:
                self._keep(view, made)

    def _keep(self, view: View, made: Tensor) -> None:
        if tuple(made.stride()) == view.stride and made.storage_offset() == view.offset:
            self._storages[view.storage] = made.untyped_storage()
        else:  # laid out in another way than on the meta device
            self.real(view).copy_(made)

    def _real_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, View):
            return self.real(leaf)
        if isinstance(leaf, Given):
            if leaf.tensor._version != leaf.version:
                raise UsageError(
                    "A tensor that the module took values from, while it was made under fabric.init_module(), has been "
                    "changed since: its values at that time are lost. Set the module up before, or pass "
                    "init_module(empty_init=False)."
                )
            return self._given(leaf.tensor)
        return self._device if isinstance(leaf, torch.device) and leaf.type == "meta" else leaf


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Torch's default dtype for a while."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
