"""Give values to a module that was made on the meta device: those that one process would have given to it."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from poplin.errors import UsageError
from poplin_fsdp.operations import View
from poplin_fsdp.recording import Recording
from poplin_fsdp.state import like_sharded, local_part
from poplin_fsdp.tape import Tape

#: Reads, and sets, the state of the device's random generator.
RngState = tuple[Callable[[], Tensor], Callable[[Tensor], None]]
_TAPES: weakref.WeakSet[Tape] = weakref.WeakSet()


class Deferral:
    """The modules that one strategy makes on the meta device, until they are set up.

    Args:
        device: where they will have their values.
        rng: of the device's generator.
    """

    def __init__(self, device: torch.device, rng: RngState) -> None:
        self._device = device
        self._rng_state, self._set_rng_state = rng
        self._tapes: list[Tape] = []

    def making(self, empty: bool) -> AbstractContextManager[Any]:
        """Context in which modules are made."""
        state = self._rng_state()
        tape = self._tapes[-1] if self._tapes else None
        if tape is None or not torch.equal(tape.rng_state_after, state):
            tape = Tape(state)  # somebody has drawn since: what is made now begins there
            self._tapes.append(tape)
            _TAPES.add(tape)
        tape.weightless |= empty
        return _Making(tape, Recording(tape, self._device, empty), self._rng_state)

    def start(self, module: nn.Module) -> Deferred | None:
        """What of ``module`` has no values, before it is sharded; None if it has all.

        Modules that somebody else has made on the meta device are initialised by their ``reset_parameters``.

        Raises:
            UsageError: initial values are lost; the modules are listed.
        """
        places = [place for place in _places(module) if place.tensor.is_meta]
        if not places:
            return None
        unknown = [place for place in places if _tape_of(place.tensor) is None]
        if unknown:
            self._reset(module, unknown)
        deferred = Deferred()
        lost: list[_Place] = []
        written: dict[Tape, set[int]] = {}
        for place in places:
            tape = _tape_of(place.tensor)
            assert tape is not None
            view = tape.view(place.tensor)
            if tape not in written:
                written[tape] = tape.written()
            if view.storage not in written[tape] and not tape.weightless:
                lost.append(place)
            deferred.places.setdefault(tape, {}).setdefault(view.storage, []).append((place, view))
        if lost:
            raise UsageError(_told(lost))
        return deferred

    def _reset(self, module: nn.Module, unknown: list[_Place]) -> None:
        owners = {id(place.owner) for place in unknown}
        without = [place for place in unknown if not callable(getattr(place.owner, "reset_parameters", None))]
        if without:
            raise UsageError(_told(without))
        tape = Tape(self._rng_state())
        _TAPES.add(tape)
        self._tapes.append(tape)
        for place in unknown:
            tape.view(place.tensor)
        with Recording(tape, self._device, making=False):
            for part in _inside_out(module):
                if id(part) in owners:
                    part.reset_parameters()  # type: ignore[operator]
        tape.rng_state_after = self._rng_state()

    def finish(self, deferred: Deferred, device_of: Callable[[Tensor], torch.device]) -> None:
        """Give the values, to each rank its parts; a collective.

        Args:
            deferred: what :meth:`start` returned.
            device_of: where the values of a tensor, sharded by now or not, go.
        """
        for tape, places in deferred.places.items():
            before = self._rng_state()
            start = _rank_zeros(tape.rng_state, self._device).cpu()
            _check_equal(tape)
            self._set_rng_state(start)
            filled: dict[int, Any] = {}

            def take(storage: int, real: Callable[[View], Tensor], places: Any = places, filled: Any = filled) -> None:
                for place, view in places[storage]:
                    place.fill(real(view), device_of, filled)

            try:
                tape.play(self._device, set(places), take, lambda tensor: _rank_zeros(tensor, self._device))
                after = self._rng_state()
            finally:
                self._set_rng_state(before)
            if torch.equal(before, tape.rng_state_after) and torch.equal(start, tape.rng_state):
                self._set_rng_state(after)  # nobody has drawn since: go on where one process would be
                tape.rng_state_after = before

    def forget(self) -> None:
        """Give up what was not set up."""
        self._tapes.clear()


@dataclass
class Deferred:
    """What of a module has no values yet."""

    #: tape → storage → where its values go.
    places: dict[Tape, dict[int, list[tuple[_Place, View]]]] = field(default_factory=dict)


class _Place:
    """A parameter or buffer of a part of the module."""

    def __init__(self, part_name: str, owner: nn.Module, registry: str, name: str) -> None:
        self.part_name, self.owner, self._registry, self.name = part_name, owner, registry, name
        self.tensor: Tensor = owner.__dict__[registry][name]

    def fill(self, full: Tensor, device_of: Callable[[Tensor], torch.device], filled: dict[int, Any]) -> None:
        """Put the values, this rank's part of ``full``, in the place of the tensor that is there by now."""
        registry = self.owner.__dict__[self._registry]
        empty = registry[self.name]
        if not empty.is_meta:
            return  # somebody, the user's own function for instance, has seen to it
        if id(empty) not in filled:  # tied ones stay one
            filled[id(empty)] = (empty, _with_values(empty, full, device_of(empty)))
        registry[self.name] = filled[id(empty)][1]


class _Making:
    """The context in which modules are made; it notes where the generator is at its end."""

    def __init__(self, tape: Tape, recording: Recording, rng_state: Callable[[], Tensor]) -> None:
        self._tape, self._recording, self._rng_state = tape, recording, rng_state

    def __enter__(self) -> None:
        self._recording.__enter__()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._recording.__exit__(kind, error, traceback)
        self._tape.rng_state_after = self._rng_state()


def recorded(module: nn.Module, device: torch.device) -> AbstractContextManager[Any]:
    """Context in which what is done to ``module``, on the meta device, is written down as its making was."""
    for place in _places(module):
        tape = _tape_of(place.tensor) if place.tensor.is_meta else None
        if tape is not None:
            return Recording(tape, device, making=False)
    return nullcontext()


def _with_values(empty: Tensor, full: Tensor, device: torch.device) -> Tensor:
    if isinstance(empty, DTensor):
        local = local_part(full, empty.device_mesh, empty.placements).to(device, copy=True)
        values: Tensor = like_sharded(local, empty)
    else:
        values = full.to(device, copy=True).contiguous()
    if isinstance(empty, nn.Parameter):
        parameter = nn.Parameter(values, requires_grad=empty.requires_grad)
        parameter.__dict__.update(empty.__dict__)
        return parameter
    return values


def _places(module: nn.Module) -> Iterator[_Place]:
    for part_name, part in module.named_modules():
        for registry in ("_parameters", "_buffers"):
            for name, tensor in part.__dict__[registry].items():
                if tensor is not None:
                    yield _Place(part_name, part, registry, name)


def _inside_out(module: nn.Module) -> Iterator[nn.Module]:
    """Every part once, what is inside first: as they are made."""
    seen: set[int] = set()

    def visit(part: nn.Module) -> Iterator[nn.Module]:
        seen.add(id(part))
        for child in part.children():
            if id(child) not in seen:
                yield from visit(child)
        yield part

    return visit(module)


def _tape_of(tensor: Tensor) -> Tape | None:
    return next((tape for tape in _TAPES if tape.knows(tensor)), None)


def _rank_zeros(tensor: Tensor, device: torch.device) -> Tensor:
    """Rank 0's values, on ``device``; a collective."""
    return _broadcast(tensor.detach().to(device, copy=True).contiguous())


def _broadcast(tensor: Tensor) -> Tensor:
    if dist.is_initialized() and dist.get_world_size() > 1 and tensor.numel():
        dist.broadcast(tensor, 0)
    return tensor


def _check_equal(tape: Tape) -> None:
    """Refuse constructors that did different things on different ranks: each rank takes its parts of its own values."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    digests: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(digests, tape.digest())
    other = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if other:
        raise UsageError(
            f"Under fabric.init_module() the module was made in another way on rank(s) {', '.join(map(str, other))} "
            "than on rank 0, so its parts would not make a whole. Its constructor must do the same on every rank (seed "
            "Python's and NumPy's generators alike, too), or pass init_module(empty_init=False)."
        )


def _told(places: list[_Place]) -> str:
    parts: dict[str, list[str]] = {}
    for place in places:
        name = f"{place.part_name or 'the module itself'} ({type(place.owner).__name__})"
        parts.setdefault(name, []).append(place.name)
    listed = "; ".join(f"{part}: {', '.join(names)}" for part, names in list(parts.items())[:10])
    more = f"; and {len(parts) - 10} more" if len(parts) > 10 else ""
    return (
        f"On the meta device, with initial values that are lost: {listed}{more}. Make the whole module, its custom "
        "initialisation included, under `with fabric.init_module():`, which remembers it; give these modules a "
        "reset_parameters(); or, if weights are loaded next, use fabric.init_module(empty_init=True)."
    )
