"""ZeRO files, read without DeepSpeed and without executing anything that is in them.

The files hold a few objects of DeepSpeed's own. A safe load gets inert stand-ins for these, by name.
"""

from __future__ import annotations

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from poplin.errors import CheckpointError, DamagedCheckpointError, UnsafeCheckpointError
from poplin_deepspeed import scaling

_OPTIMIZER = "optimizer_state_dict"


class _Inert:
    """Stands for an object of DeepSpeed's: it has its attributes, and none of its methods."""

    def __new__(cls, *args: Any, **kwargs: Any) -> _Inert:
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args


class _Number(int):
    """Stands for DeepSpeed's number of a stage."""


_STAND_INS: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
    (_Number, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.LossScaleConfig"),
    (_Inert, "deepspeed.runtime.fp16.loss_scaler.LossScaleProfile"),
    (_Inert, "deepspeed.utils.tensor_fragment.fragment_address"),
]


class Files(NamedTuple):
    """The content of one engine's folder."""

    #: One for each rank at stage 3, else one.
    models: list[dict[str, Any]]
    #: One for each rank.
    optimizers: list[dict[str, Any]]
    stage: int

    @property
    def model(self) -> dict[str, Any]:
        """Rank 0's."""
        return self.models[0]


def load_file(path: Path, weights_only: bool = True) -> Any:
    """The content of one file.

    Raises:
        DamagedCheckpointError: it is missing, cut off or foreign.
        UnsafeCheckpointError: a safe load refuses it.
    """
    try:
        with torch.serialization.safe_globals(_STAND_INS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=weights_only, mmap=zipfile.is_zipfile(path))
    except FileNotFoundError as error:
        raise DamagedCheckpointError(f"{path} is missing. {_INCOMPLETE}") from error
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error):
            raise UnsafeCheckpointError(
                f"{path} holds what a safe load refuses ({_first_line(error)}). If you trust whoever wrote it, pass "
                "weights_only=False."
            ) from error
        raise DamagedCheckpointError(f"{path} is damaged: {_first_line(error)}. {_INCOMPLETE}") from error
    except (RuntimeError, EOFError, ValueError, KeyError, OSError) as error:
        raise DamagedCheckpointError(f"{path} is damaged: {_first_line(error)}. {_INCOMPLETE}") from error


_INCOMPLETE = "The folder is incomplete or was cut off: use an earlier checkpoint."


def read(folder: Path, weights_only: bool = True) -> Files:
    """The files of one engine.

    Raises:
        DamagedCheckpointError: some are missing or damaged.
        CheckpointError: of a kind that can't be read.
    """
    optimizer_files = _sorted(folder, "*_optim_states.pt")
    if not optimizer_files:
        raise DamagedCheckpointError(f"{folder} holds no whole ZeRO checkpoint. {_INCOMPLETE}")
    if any("mp_rank_00" not in path.name for path in (*optimizer_files, *folder.glob("*_model_states.pt"))):
        raise CheckpointError(f"{folder} was written with model parallelism, and is read by DeepSpeed only.")
    optimizers = [load_file(path, weights_only) for path in optimizer_files]
    for path, content in zip(optimizer_files, optimizers, strict=True):
        if not isinstance(content, Mapping) or "zero_stage" not in content.get(_OPTIMIZER, {}):
            raise DamagedCheckpointError(f"{path} is no ZeRO file.")
    inner = optimizers[0][_OPTIMIZER]
    stage, counts = int(inner["zero_stage"]), inner["partition_count"]
    world_size = int(max(counts)) if isinstance(counts, (list, tuple)) else int(counts)
    model_files = _sorted(folder, f"{'zero_pp_rank_*_' if stage == 3 else ''}mp_rank_00_model_states.pt")
    if len(optimizers) != world_size or len(model_files) != (world_size if stage == 3 else 1):
        raise DamagedCheckpointError(
            f"{folder} was written by {world_size} processes, and holds {len(optimizers)} files of optimizers and "
            f"{len(model_files)} of models. {_INCOMPLETE}"
        )
    return Files([load_file(path, weights_only) for path in model_files], optimizers, stage)


# --- weights


def module_state(files: Files) -> dict[str, Tensor]:
    """Every weight and buffer, whole; those that the optimizer stepped in float32, as it held them."""
    model = files.model
    weights = dict(_from_partitions(files, [_weights(files, rank) for rank in range(len(files.optimizers))]))
    frozen = _frozen(files)
    buffers = set(model.get("buffer_names") or ())
    shared: Mapping[str, str] = model.get("shared_params") or {}
    result: dict[str, Tensor] = {}
    for name, value in model["module"].items():
        if name in weights:
            result[name] = weights[name]
        elif shared.get(name) in weights:
            result[name] = weights[shared[name]]
        elif name in frozen:
            result[name] = frozen[name]
        elif shared.get(name) in frozen:
            result[name] = frozen[shared[name]]
        elif name in buffers or files.stage < 3 or not isinstance(value, Tensor) or value.numel():
            result[name] = value
    for name, value in {**weights, **frozen}.items():
        result.setdefault(name, value)
    return result


def _weights(files: Files, rank: int) -> list[Tensor]:
    key = "fp32_flat_groups" if files.stage == 3 else "single_partition_of_fp32_groups"
    groups: list[Tensor] = files.optimizers[rank][_OPTIMIZER][key]
    return groups


def _frozen(files: Files) -> dict[str, Tensor]:
    shapes = files.model.get("frozen_param_shapes") or {}
    fragments = [model.get("frozen_param_fragments") or {} for model in files.models]
    if files.stage < 3:
        return {name: fragments[0][name] for name in shapes if name in fragments[0]}
    return {
        name: torch.cat([one[name].reshape(-1) for one in fragments])[: shape.numel()].reshape(shape)
        for name, shape in shapes.items()
    }


def _from_partitions(files: Files, ranks: list[list[Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Each parameter's value, from what each rank holds of each flat group.

    Args:
        files: they tell names and shapes, in order.
        ranks: for each rank the flat tensors of its groups.
    """
    if files.stage == 3:
        yield from _from_equal_parts(files, ranks)
        return
    paddings = files.optimizers[0][_OPTIMIZER].get("param_alignment_paddings")
    for index, shapes in enumerate(files.model["param_shapes"]):
        flat = _Flat([groups[index] for groups in ranks])
        offset = 0
        for number, (name, shape) in enumerate(shapes.items()):
            size = shape.numel()
            yield name, flat.cut(offset, size, name).reshape(shape)
            offset += size + (paddings[index][number] if paddings else 0)


def _from_equal_parts(files: Files, ranks: list[list[Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """At stage 3 each rank holds an equal part of each parameter."""
    world_size = len(ranks)
    for index, shapes in enumerate(files.model["param_shapes"]):
        offset = 0
        for name, shape in shapes.items():
            part = -(-shape.numel() // world_size)
            parts = [groups[index][offset : offset + part] for groups in ranks]
            if sum(one.numel() for one in parts) < shape.numel():
                raise DamagedCheckpointError(f"The ZeRO files hold too little of {name}. {_INCOMPLETE}")
            yield name, torch.cat(parts)[: shape.numel()].reshape(shape)
            offset += part


class _Flat:
    """Several flat tensors, one after the other. What lies in one of them is not copied."""

    def __init__(self, parts: list[Tensor]) -> None:
        self.parts = parts

    def cut(self, start: int, size: int, name: str) -> Tensor:
        found, offset = [], 0
        for part in self.parts:
            low, high = max(start, offset), min(start + size, offset + part.numel())
            if low < high:
                found.append(part[low - offset : high - offset])
            offset += part.numel()
        if sum(one.numel() for one in found) != size:
            raise DamagedCheckpointError(f"The ZeRO files hold too little of {name}. {_INCOMPLETE}")
        if not found:
            return self.parts[0][:0]
        return found[0] if len(found) == 1 else torch.cat(found)


# --- the optimizer


def optimizer_state(files: Files, groups: list[list[str]] | None = None) -> dict[str, Any]:
    """The optimizer's state by parameter name.

    Args:
        files: as read.
        groups: the names in each group, frozen ones included; None takes those that the files know.
    """
    inner = [one[_OPTIMIZER] for one in files.optimizers]
    raw = [one["optimizer_state_dict" if files.stage == 3 else "base_optimizer_state"] for one in inner]
    if not isinstance(raw[0], Mapping) or "param_groups" not in raw[0]:
        raise CheckpointError(
            "The optimizer's state is in DeepSpeed's old elastic form, which is read by DeepSpeed only."
        )
    shapes = files.model["param_shapes"]
    owners = _owners(raw[0], files.stage)
    lengths = [[flat.numel() for flat in _weights(files, rank)] for rank in range(len(raw))]
    state: dict[str, Any] = {name: {} for one in shapes for name in one}
    first: Mapping[str, Any] = next(iter(raw[0]["state"].values()), {})
    for key, example in first.items():
        if isinstance(example, Tensor) and example.dim():
            flats = [_cut(one["state"], key, lengths[rank]) for rank, one in enumerate(raw)]
            for name, value in _from_partitions(files, flats):
                state[name][key] = value
        else:
            for index, one in enumerate(shapes):
                value = raw[0]["state"].get(index, first).get(key)
                for name in one:
                    state[name][key] = value.clone() if isinstance(value, Tensor) else value
    if not first:
        state = {}
    names = groups or _names(shapes, owners, len(raw[0]["param_groups"]))
    return {
        "state": state,
        "param_groups": [
            {**{key: value for key, value in group.items() if key != "params"}, "params": list(members)}
            for group, members in zip(raw[0]["param_groups"], names, strict=True)
        ],
        **scaling.state_of(inner[0].get("loss_scaler")),
    }


def _cut(state: Mapping[Any, Any], key: str, lengths: list[int]) -> list[Tensor]:
    """One rank's flat values of ``key``, without what pads them beyond the weights."""
    return [
        state[index][key].reshape(-1)[:length] if index in state else torch.zeros(length)
        for index, length in enumerate(lengths)
    ]


def _owners(raw: Mapping[str, Any], stage: int) -> list[int]:
    """The optimizer's group to which each flat group belongs."""
    if stage < 3:
        return list(range(len(raw["param_groups"])))
    pairs = [(number, index) for index, group in enumerate(raw["param_groups"]) for number in group["params"]]
    return [index for _, index in sorted(pairs)]


def _names(shapes: list[Mapping[str, Any]], owners: list[int], count: int) -> list[list[str]]:
    names: list[list[str]] = [[] for _ in range(count)]
    for owner, one in zip(owners, shapes, strict=True):
        names[owner] += list(one)
    return names


# --- small parts


def _sorted(folder: Path, pattern: str) -> list[Path]:
    """Files by rank: ``rank_10`` comes after ``rank_9``."""

    def numbers(path: Path) -> list[Any]:
        return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]

    return sorted(folder.glob(pattern), key=numbers)


def _first_line(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


@contextmanager
def as_checkpoint_error(where: Path) -> Iterator[None]:
    """Content that is not as it should be is told as damage."""
    try:
        yield
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(
            f"{where} is no ZeRO checkpoint that this version understands ({type(error).__name__}: {error})."
        ) from error
