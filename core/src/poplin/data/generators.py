"""Random-number generators around samplers: the global ones, borrowed for a moment, and those that samplers hold."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import numpy as np
import torch

from poplin.seed import GlobalStates, global_rng_states, set_global_rng_states


def mixed_seed(*parts: int) -> int:
    """A seed of 63 bits from several integers; a change in any of them changes it wholly."""
    text = ":".join(str(int(part)) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


class IsolatedRng:
    """A context with global random-number generators of its own; those of the program stay as they are.

    What runs inside goes on from one entry to the next. Re-entrant; an inner entry changes nothing.

    Args:
        states: where it begins; of these None leaves a generator as it is. None altogether: with a copy of the
            program's states at the first entry.
        seed: instead of ``states``.
    """

    __slots__ = ("_depth", "_outside", "_seed", "states")

    def __init__(self, states: GlobalStates | None = None, seed: int | None = None) -> None:
        self.states = states
        self._seed = seed
        self._outside: GlobalStates | None = None
        self._depth = 0

    def __enter__(self) -> IsolatedRng:
        if self._depth == 0:
            self._outside = global_rng_states()
            if self.states is not None:
                set_global_rng_states(self.states)
            elif self._seed is not None:
                torch.default_generator.manual_seed(self._seed)  # torch.manual_seed would reach the devices too
                random.seed(self._seed)
                np.random.seed(self._seed % 2**32)
        self._depth += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            assert self._outside is not None
            self.states = global_rng_states()
            set_global_rng_states(self._outside)
            self._outside = None


# --- generators that samplers hold


def _kinds() -> tuple[type[Any], ...]:
    # read late: `numpy.random` is loaded when it is first used, and takes its time
    return torch.Generator, random.Random, np.random.Generator, np.random.RandomState


def held_generators(objects: Iterable[Any]) -> list[Any]:
    """The generators among the attributes of ``objects``, each once, in a stable order."""
    found: list[Any] = []
    kinds = _kinds()
    for obj in objects:
        for _, value in sorted(getattr(obj, "__dict__", {}).items()):
            if isinstance(value, kinds) and not any(value is other for other in found):
                found.append(value)
    return found


def generator_state(generator: Any) -> Any:
    """The state of a generator as a tensor or plain values, which a safe load accepts."""
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, random.Random):
        version, words, gauss = generator.getstate()
        return {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss}
    if isinstance(generator, np.random.Generator):
        return _plain(generator.bit_generator.state)
    return _plain(generator.get_state(legacy=False))


def set_generator_state(generator: Any, state: Any) -> None:
    """Restore what :func:`generator_state` returned."""
    if isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, random.Random):
        generator.setstate((state["version"], tuple(state["words"].tolist()), state["gauss"]))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = _numpy(state)
    else:
        generator.set_state(_numpy(state))


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": [int(value) for value in state], "dtype": str(state.dtype)}
    return state.item() if isinstance(state, np.generic) else state


def _numpy(state: Any) -> Any:
    if isinstance(state, dict):
        if set(state) == {"array", "dtype"}:
            return np.array(state["array"], dtype=state["dtype"])
        return {key: _numpy(value) for key, value in state.items()}
    return state
