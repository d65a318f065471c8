"""One save: each rank writes its files, and rank 0 makes them the checkpoint when all of them are there.

No collective is used, so that it can run in the background of a training: ranks tell rank 0 through the store.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poplin.checkpoint import PreparedSave
from poplin.errors import CheckpointError, UsageError
from poplin_deepspeed import folder
from poplin_deepspeed.capturing import ENGINE, OPTIMIZER, TENSORS, TOKEN, Captured

_POLL = 0.02
Keys = tuple[str | int, ...]


class Place(NamedTuple):
    """Where the parts of one engine stand in the state."""

    module: Keys
    optimizer: Keys | None
    captured: Captured
    #: As they are to be written: copies, if that happens later.
    tensors: list[Any]


class Ranks(NamedTuple):
    """How the ranks of a save reach each other."""

    rank: int
    world_size: int
    store: Any
    #: Seconds that rank 0 waits for the others.
    timeout: float


def write(path: Path, state: Mapping[str, Any], captured: dict[str, Captured], ranks: Ranks) -> None:
    """Write this rank's part of ``state``, and on rank 0 make the whole of it the checkpoint.

    Args:
        path: of the checkpoint.
        state: plain values, with markers for engines.
        captured: tag → what is to be written of an engine; what is used up here is taken out.
        ranks: of this run.

    Raises:
        CheckpointError: it could not be written here, or by another rank; what stood there before still stands.
    """
    rest, places = _sort(state, captured)
    tag = places[0].captured.tag if places else folder.new_tag(0)
    try:
        folder.check_place(path)
        files = _write_own(path, rest, places, tag, ranks.rank == 0)
    except Exception as error:
        _tell(ranks, tag, {"error": f"{type(error).__name__}: {error}"})
        if isinstance(error, OSError) and not isinstance(error, CheckpointError):
            raise CheckpointError(f"The checkpoint could not be written to {path}: {error}.") from error
        raise
    if ranks.rank > 0:
        _tell(ranks, tag, {"files": files})
        return
    try:
        for rank in range(1, ranks.world_size):
            files.update(_hear(ranks, rank, tag, path))
        client = f"{tag}/{folder.CLIENT}"
        _copy_script(path)
        folder.commit(path, folder.Manifest(_engines(places), client, files))
    except BaseException:
        for name in {tag, *(place.captured.tag for place in places)}:
            shutil.rmtree(path / name, ignore_errors=True)
        raise


class BackgroundSave(PreparedSave):
    """A save whose content is copied now and written later.

    Args:
        path: of the checkpoint.
        state: as for :func:`write`.
        captured: as for :func:`write`.
        ranks: of this run.
    """

    def __init__(self, path: Path, state: dict[str, Any], captured: dict[str, Captured], ranks: Ranks) -> None:
        self.path, self.state, self.ranks = path, state, ranks
        tags = set(_tags(state))
        self.captured = {tag: captured.pop(tag) for tag in tags}

    def stage(self, buffers: dict[tuple[Any, ...], Any]) -> None:
        """Copy every tensor, where possible into memory kept from the last time."""
        kept = dict(buffers)
        buffers.clear()

        def copied(value: Any, keys: Keys) -> Any:
            if isinstance(value, Tensor):
                key = (*keys, value.dtype, tuple(value.shape))
                buffer = kept.pop(key, None)
                buffers[key] = torch.empty(value.shape, dtype=value.dtype) if buffer is None else buffer
                return buffers[key].copy_(value.detach())
            if isinstance(value, Mapping):
                made: Any = type(value)()
                for key, item in value.items():
                    made[key] = copied(item, (*keys, key))
                return made
            if type(value) in (list, tuple):
                return type(value)(copied(item, (*keys, index)) for index, item in enumerate(value))
            return value

        self.state = copied(self.state, ())

    def write(self) -> None:
        write(self.path, self.state, self.captured, self.ranks)

    def abandon(self) -> None:
        self.captured.clear()


def _tags(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if TOKEN in value:
            yield value[TOKEN]
            return
        value = list(value.values())
    for item in value if isinstance(value, (list, tuple)) else ():
        yield from _tags(item)


def _write_own(
    path: Path, rest: Mapping[str, Any], places: list[Place], tag: str, first: bool
) -> dict[str, tuple[int, int]]:
    files: dict[str, tuple[int, int]] = {}
    if first:
        name = f"{tag}/{folder.CLIENT}"
        files[name] = folder.write_file(path / name, rest)
    for place in places:
        for own in place.captured.files:
            name = f"{place.captured.tag}/{own}"
            content = place.captured.content(own, place.tensors)
            if own.endswith("_model_states.pt"):
                content = {**_client_state(rest), **content}
            files[name] = folder.write_file(path / name, content)
    return files


def _client_state(rest: Mapping[str, Any]) -> dict[str, Any]:
    """What DeepSpeed's own ``load_checkpoint`` is to return on rank 0 beside the engine: the plain values."""
    return {key: value for key, value in rest.items() if isinstance(value, (bool, int, float, str))}


def _engines(places: list[Place]) -> list[folder.Engine]:
    return [folder.Engine(place.captured.tag, place.module, place.optimizer, place.captured.groups) for place in places]


def _copy_script(path: Path) -> None:
    """DeepSpeed puts its consolidating script beside what it writes; so do we, where it is to be had."""
    try:
        from deepspeed.utils import zero_to_fp32

        shutil.copyfile(zero_to_fp32.__file__, path / "zero_to_fp32.py")
    except (ImportError, OSError):
        pass  # a convenience


# --- the state


def _sort(state: Mapping[str, Any], captured: dict[str, Captured]) -> tuple[dict[str, Any], list[Place]]:
    """The rest of the state, and the engines in it."""
    modules: dict[str, tuple[Keys, Captured, list[Any]]] = {}
    optimizers: dict[str, Keys] = {}
    rest = _Markers(captured, modules, optimizers).taken_out(state, ())
    alone = set(optimizers) - set(modules)
    if alone:
        keys = [".".join(map(str, optimizers[engine])) for engine in alone]
        raise UsageError(
            f"The state has the optimizer {keys[0]!r} and not its module, and a ZeRO folder holds both together. Put "
            "the module into the state, or save through another checkpoint IO (plugins='torch'). Nothing was written."
        )
    places = [
        Place(keys, optimizers.get(engine), content, tensors) for engine, (keys, content, tensors) in modules.items()
    ]
    return rest, places


class _Markers(NamedTuple):
    """Takes what stands for engines out of a state."""

    captured: dict[str, Captured]
    modules: dict[str, tuple[Keys, Captured, list[Any]]]
    optimizers: dict[str, Keys]

    def taken_out(self, value: Any, keys: Keys) -> Any:
        if isinstance(value, Mapping):
            if TOKEN in value:
                self.modules[value[ENGINE]] = keys, self.captured.pop(value[TOKEN]), list(value[TENSORS])
                return None
            if OPTIMIZER in value:
                self.optimizers[value[OPTIMIZER]] = keys
                return None
            made: Any = type(value)()
            for key, item in value.items():
                made[key] = self.taken_out(item, (*keys, key))
            return made
        if isinstance(value, (list, tuple)) and _has_marker(value):  # a place to be filled must be writable
            return [self.taken_out(item, (*keys, index)) for index, item in enumerate(value)]
        return value


def _has_marker(value: Any) -> bool:
    if isinstance(value, Mapping):
        return TOKEN in value or OPTIMIZER in value or any(_has_marker(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(_has_marker(item) for item in value)


# --- ranks


def _key(tag: str, rank: int) -> str:
    return f"poplin-deepspeed/{tag}/{rank}"


def _tell(ranks: Ranks, tag: str, message: Any) -> None:
    if ranks.rank > 0 and ranks.store is not None:
        ranks.store.set(_key(tag, ranks.rank), json.dumps(message))


def _hear(ranks: Ranks, rank: int, tag: str, path: Path) -> dict[str, tuple[int, int]]:
    key = _key(tag, rank)
    for _ in _until(time.monotonic() + ranks.timeout):
        if ranks.store.check([key]):
            message = json.loads(ranks.store.get(key))
            ranks.store.delete_key(key)
            if "error" in message:
                raise CheckpointError(
                    f"The checkpoint {path} could not be written by rank {rank}: {message['error']}. What stood there "
                    "before, if anything, still stands."
                )
            return {name: (size, crc) for name, (size, crc) in message["files"].items()}
    raise CheckpointError(
        f"The checkpoint {path} could not be written: rank {rank} was not done within {ranks.timeout:g} s. What stood "
        "there before, if anything, still stands."
    )


def _until(deadline: float) -> Iterator[None]:
    while time.monotonic() < deadline:
        yield
        time.sleep(_POLL)
