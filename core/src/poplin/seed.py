"""Seeds, and the states of random-number generators.

``PL_GLOBAL_SEED`` and ``PL_SEED_WORKERS`` in the environment hold what was asked for, as samplers and scripts out
there expect; child processes inherit them.
"""

from __future__ import annotations

import operator
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import torch

from poplin.errors import ArgumentTypeError, ArgumentValueError
from poplin.rank_zero import rank_zero_info, rank_zero_only

if TYPE_CHECKING:
    from poplin.accelerators.accelerator import Accelerator

#: The seed of the run, the same on all ranks.
SEED_VARIABLE = "PL_GLOBAL_SEED"
#: "1" where dataloader workers are to be seeded.
WORKERS_VARIABLE = "PL_SEED_WORKERS"
#: NumPy's legacy generator takes no more than 32 bits.
MAX_SEED = 2**32 - 1

#: Accelerators in use, whose own generators are seeded with everything else.
_accelerators: WeakSet[Accelerator] = WeakSet()
_per_rank = False


def seed_everything(
    seed: int | None = None, workers: bool = False, verbose: bool = True, per_rank: bool = False
) -> int:
    """Seed Python, NumPy, torch (with every device type that torch seeds itself) and the accelerators in use.

    Args:
        seed: an integer from 0 to 2³² - 1. None takes ``PL_GLOBAL_SEED`` from the environment, or 0.
        workers: whether the workers of set-up dataloaders are seeded too (``PL_SEED_WORKERS``): each worker of each
            rank and each epoch differently, and the same in every run.
        verbose: whether rank 0 logs the seed.
        per_rank: whether each rank gets a seed of its own: ``seed`` plus its global rank (modulo 2³²), so that
            dropout and the like differ. ``PL_GLOBAL_SEED`` remains the common one.

    Returns:
        The common seed.

    Raises:
        ArgumentTypeError: ``seed`` is no number.
        ArgumentValueError: it is out of range or no integer, or ``PL_GLOBAL_SEED`` is.
    """
    global _per_rank
    seed = _seed_from_environment() if seed is None else _checked(seed, "seed")
    own = (seed + _rank()) % (MAX_SEED + 1) if per_rank else seed
    if verbose:
        rank_zero_info(f"Seed set to {seed}" + (" plus each process's rank" if per_rank else ""))
    os.environ[SEED_VARIABLE] = str(seed)
    os.environ[WORKERS_VARIABLE] = str(int(workers))
    _per_rank = per_rank
    random.seed(own)
    np.random.seed(own)
    torch.manual_seed(own)
    for accelerator in list(_accelerators):
        accelerator.seed(own)
    return seed


#: The public ``poplin.seed_everything``; ``Fabric.seed_everything`` is the same with ``workers=True``.
seed_everything_without_workers = seed_everything


def reset_seed() -> None:
    """Seed again with the seed that :func:`seed_everything` set last; nothing where none was set."""
    if os.environ.get(SEED_VARIABLE) is None:
        return
    workers = os.environ.get(WORKERS_VARIABLE) == "1"
    seed_everything(None, workers=workers, verbose=False, per_rank=_per_rank)


def track_accelerator(accelerator: Accelerator) -> None:
    """Have :func:`seed_everything` seed this accelerator's own generators too, for as long as it lives.

    Called by Fabric. An accelerator that seeds in a way of its own is seeded at once if a seed was set before; the
    default way is torch's, which :func:`torch.manual_seed` has gone already.
    """
    from poplin.accelerators.accelerator import Accelerator

    _accelerators.add(accelerator)
    if type(accelerator).seed is not Accelerator.seed and os.environ.get(SEED_VARIABLE) is not None:
        seed = _seed_from_environment()
        accelerator.seed((seed + _rank()) % (MAX_SEED + 1) if _per_rank else seed)


def workers_are_seeded() -> bool:
    """Whether the last seed was asked for dataloader workers too."""
    return os.environ.get(WORKERS_VARIABLE) == "1"


def _rank() -> int:
    return int(getattr(rank_zero_only, "rank", None) or 0)


def _seed_from_environment() -> int:
    written = os.environ.get(SEED_VARIABLE)
    if written is None:
        return 0
    return _checked(written, f"the environment variable {SEED_VARIABLE}")


def _checked(seed: Any, source: str) -> int:
    if isinstance(seed, bool) or (not isinstance(seed, (int, float, str)) and not hasattr(seed, "__index__")):
        raise ArgumentTypeError(f"{source} is {seed!r}: a seed is an integer from 0 to {MAX_SEED}.")
    try:
        number = int(seed) if isinstance(seed, (str, float)) else operator.index(seed)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentValueError(f"{source} is {seed!r}: a seed is an integer from 0 to {MAX_SEED}.") from None
    if (isinstance(seed, float) and number != seed) or not 0 <= number <= MAX_SEED:
        raise ArgumentValueError(
            f"{source} is {seed!r}: a seed is an integer from 0 to {MAX_SEED}, the range that NumPy takes."
        )
    return number


# --- states of generators

#: The states of torch's CPU generator, Python's and NumPy's, as their own modules give them; None for one left out.
GlobalStates = tuple[torch.Tensor | None, Any, Any]


def global_rng_states() -> GlobalStates:
    """The states of the three global CPU generators, as they are (fast; not for files)."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_global_rng_states(states: GlobalStates) -> None:
    """Restore what :func:`global_rng_states` returned; a generator whose state is None is left as it is."""
    if states[0] is not None:
        torch.set_rng_state(states[0])
    if states[1] is not None:
        random.setstate(states[1])
    if states[2] is not None:
        np.random.set_state(states[2])


def portable(states: GlobalStates) -> dict[str, Any]:
    """The three states as tensors and plain values, which a safe load accepts; those that are None are left out."""
    result: dict[str, Any] = {}
    if states[0] is not None:
        result["torch"] = states[0].clone()
    if states[1] is not None:
        version, words, gauss = states[1]
        result["python"] = {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}
    if states[2] is not None:
        name, keys, position, has_gauss, cached = states[2]
        result["numpy"] = {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        }
    return result


def from_portable(states: Mapping[str, Any]) -> GlobalStates:
    """The reverse of :func:`portable`."""
    own, python, numpy = states.get("torch"), states.get("python"), states.get("numpy")
    return (
        None if own is None else own.cpu().to(torch.uint8),
        None if python is None else (python["version"], tuple(python["words"].tolist()), python["gauss"]),
        None
        if numpy is None
        else (
            numpy["name"],
            numpy["keys"].cpu().numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached"],
        ),
    )


def collect_rng_states(accelerator: Accelerator | None = None) -> dict[str, Any]:
    """The states of this process's generators: torch's, Python's, NumPy's and the accelerator's.

    Args:
        accelerator: whose ``rng_state()`` is taken too.

    Returns:
        Tensors and plain values only, which a safe load accepts.
    """
    states = portable(global_rng_states())
    states["accelerator"] = accelerator.rng_state() if accelerator is not None else None
    return states


def restore_rng_states(states: Mapping[str, Any], accelerator: Accelerator | None = None) -> None:
    """Restore what :func:`collect_rng_states` returned; states of generators that aren't here are left out."""
    set_global_rng_states(from_portable(states))
    if accelerator is not None and states.get("accelerator") is not None:
        accelerator.set_rng_state(states["accelerator"])


@contextmanager
def isolate_rng(accelerator: Accelerator | None = None) -> Iterator[None]:
    """Context that leaves the global generators as it found them.

    Args:
        accelerator: whose generator is restored too.
    """
    states = global_rng_states()
    own = accelerator.rng_state() if accelerator is not None else None
    try:
        yield
    finally:
        set_global_rng_states(states)
        if accelerator is not None and own is not None:
            accelerator.set_rng_state(own)
