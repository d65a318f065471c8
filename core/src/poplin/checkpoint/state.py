"""Saving and loading a state: objects to state dicts and back, all ranks or none, whole or not at all.

Called by ``Fabric.save``, ``save_async``, ``load`` and ``load_raw``, on every rank.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.optim import Optimizer

from poplin.checkpoint import asynchronous
from poplin.checkpoint.agreement import on_all_ranks
from poplin.checkpoint.asynchronous import SaveHandle
from poplin.checkpoint.check import Findings
from poplin.checkpoint.checkpoint_io import CheckpointIO, StoragePath
from poplin.checkpoint.collect import check_mapping, collect, is_sharded
from poplin.checkpoint.filling import wants_parts
from poplin.checkpoint.filtering import Filter
from poplin.checkpoint.format import RESERVED_KEY
from poplin.checkpoint.items import Item
from poplin.checkpoint.module_item import ModuleItem
from poplin.checkpoint.objects import item_for, objects_in, run_of
from poplin.checkpoint.optimizer_item import OptimizerItem
from poplin.checkpoint.restore import restore
from poplin.checkpoint.storage import checked_path
from poplin.checkpoint.stored import StoredState
from poplin.checkpoint.tree import Path
from poplin.errors import ArgumentTypeError

if TYPE_CHECKING:
    from poplin.precision.precision import Precision
    from poplin.strategies.strategy import Strategy
    from poplin.wrappers.setups import Setups


def save(
    path: StoragePath,
    state: Mapping[str, Any],
    *,
    strategy: Strategy,
    precision: Precision | None = None,
    setups: Setups | None = None,
    filter: Filter | None = None,
    storage_options: Any | None = None,
) -> None:
    """Write ``state`` to ``path``; a collective.

    Args:
        path: a local path or an fsspec URL; rank 0's counts.
        state: a dictionary of modules, optimizers, anything with ``state_dict`` and ``load_state_dict``, plain values,
            and dicts, lists, tuples, namespaces and dataclasses of these.
        strategy: the bound strategy; what it keeps itself travels too.
        precision: its state travels too.
        setups: what the Fabric has set up; names an optimizer's parameters whose module is not in ``state``.
        filter: what is kept of the objects at these (dotted) keys.
        storage_options: for the checkpoint IO.

    Raises:
        ArgumentTypeError, ArgumentValueError: arguments that can't be meant; nothing was written.
        UnsafeCheckpointError: a safe load would refuse something; nothing was written.
        CheckpointError: it could not be written; what stood at ``path`` before still stands.
    """
    path, checkpoint = collect(path, state, strategy, precision, setups, filter)
    asynchronous.finish(strategy)
    on_all_ranks(
        strategy,
        f"saving {path}",
        lambda: strategy.save_checkpoint(
            path, checkpoint, storage_options=storage_options, filter=dict(filter) if filter else None
        ),
    )


def save_async(
    path: StoragePath,
    state: Mapping[str, Any],
    *,
    strategy: Strategy,
    precision: Precision | None = None,
    setups: Setups | None = None,
    filter: Filter | None = None,
    storage_options: Any | None = None,
) -> SaveHandle:
    """Write ``state`` to ``path`` in the background; a collective.

    The state is the one at this call: it is copied before the call returns. Arguments and errors as in :func:`save`;
    what goes wrong later is raised by the handle's ``wait()``, else by the next save or at the end.

    Returns:
        A handle. Its ``wait()`` is a collective too.
    """
    path, checkpoint = collect(path, state, strategy, precision, setups, filter)
    return asynchronous.start(
        strategy,
        path,
        checkpoint,
        lambda copied: strategy.save_checkpoint(
            path, copied, storage_options=storage_options, filter=dict(filter) if filter else None
        ),
        storage_options,
    )


def load(
    path: StoragePath,
    state: MutableMapping[str, Any] | None = None,
    strict: bool = True,
    weights_only: bool | None = None,
    *,
    strategy: Strategy,
    precision: Precision | None = None,
    setups: Setups | None = None,
    reader: CheckpointIO | None = None,
) -> dict[str, Any]:
    """Restore ``state`` from ``path``; a collective. Nothing is restored unless everything can be.

    Args:
        path: a local path or an fsspec URL.
        state: as in :func:`save`; objects are restored in place, plain values replaced in the very dictionaries passed.
        strict: whether what is missing or unexpected is an error; without it, one warning names what was not restored.
        weights_only: None and True read tensors and plain values only; False may execute what is in the file.
        strategy: as in :func:`save`.
        precision: as in :func:`save`.
        setups: as in :func:`save`.
        reader: reads ``path``, if it is another checkpoint IO than the strategy's.

    Returns:
        What ``state`` did not ask for; everything, without ``state``.

    Raises:
        CheckpointNotFoundError, DamagedCheckpointError, UnsafeCheckpointError: it can't be read.
        CheckpointMismatchError: it does not fit; every name is in the message.
    """

    def prepare() -> tuple[str, dict[Path, Item]]:
        check_mapping(state, "load", MutableMapping)
        return checked_path(path), objects_in(state or {}, strategy, setups, sharded)

    sharded = reader.sharded if reader is not None else is_sharded(strategy)
    where, items = on_all_ranks(strategy, "loading", prepare)
    asynchronous.finish(strategy)
    saved, stored = _read(where, strict, weights_only, strategy, reader, in_parts=wants_parts(items.values()))
    own = saved.pop(RESERVED_KEY, None)
    if not state:
        if stored is not None:
            whole = functools.partial(stored.complete if state is None else stored.on_demand_in, saved)
            saved = on_all_ranks(strategy, f"loading {where}", whole)
        return saved
    if not isinstance(own, Mapping) or not any(isinstance(item, OptimizerItem) for item in items.values()):
        own = {}  # it belongs to the training that is resumed, not to weights alone
    return restore(where, state, saved, items, strategy, strict, precision, own, stored=stored)


def load_raw(
    path: StoragePath,
    obj: nn.Module | Optimizer,
    strict: bool = True,
    weights_only: bool | None = None,
    *,
    strategy: Strategy,
    setups: Setups | None = None,
    reader: CheckpointIO | None = None,
) -> None:
    """Restore one module or optimizer from a file that holds nothing but its state dict; a collective.

    Args:
        path: as in :func:`load`.
        obj: set up or not.
        strict: as in :func:`load`.
        weights_only: as in :func:`load`.
        strategy: as in :func:`load`.
        setups: as in :func:`load`.
        reader: as in :func:`load`.

    Raises:
        As :func:`load`; CheckpointMismatchError also if the file is a checkpoint of several things.
    """

    def prepare() -> str:
        if not isinstance(obj, (nn.Module, Optimizer)):
            raise ArgumentTypeError(
                f"load_raw() restores a module or an optimizer, and this is a {type(obj).__name__}. For a dictionary "
                "of objects there is load()."
            )
        return checked_path(path)

    where = on_all_ranks(strategy, "loading", prepare)
    asynchronous.finish(strategy)
    run = run_of(strategy, setups, sharded=False)
    item = item_for((), obj, run)
    if isinstance(item, ModuleItem):
        run.named_modules[""] = item.module
    saved, stored = _read(where, strict, weights_only, strategy, reader, in_parts=wants_parts([item]))
    saved.pop(RESERVED_KEY, None)
    hint = ""
    fitting = [key for key, value in saved.items() if isinstance(value, Mapping) and _fits(item, value)]
    if fitting:
        hint = f"{where} is a checkpoint of several things: use load({where!r}, {{{fitting[0]!r}: ...}})"
    restore(where, obj, saved, {(): item}, strategy, strict, None, {}, hint=hint, stored=stored)


def _read(
    path: str,
    strict: bool,
    weights_only: bool | None,
    strategy: Strategy,
    reader: CheckpointIO | None,
    in_parts: bool,
) -> tuple[dict[str, Any], StoredState | None]:
    """What stands at ``path``; with empty tensors, and where these are read from, if it is read in parts."""

    def read() -> tuple[dict[str, Any], StoredState | None]:
        chosen = reader if reader is not None else strategy.checkpoint_io
        if chosen is not None and (chosen.sharded or in_parts):
            stored = chosen.open_checkpoint(path, weights_only)
            if stored is not None:
                return dict(stored.tree), stored
        if reader is None or reader is strategy.checkpoint_io:
            return strategy.load_checkpoint(path, state=None, strict=strict, weights_only=weights_only), None
        return reader.load_checkpoint(path, map_location="cpu", weights_only=weights_only), None

    return on_all_ranks(strategy, f"loading {path}", read)


def _fits(item: Item, saved: Any) -> bool:
    findings = Findings()
    item.compare(item.adapted(saved), True, findings)
    return not findings.fatal(strict=True)
