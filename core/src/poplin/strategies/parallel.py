"""The base of strategies that run in several processes: process group, ranks and collectives, for any device type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

import poplin.strategies.process_group as process_group
from poplin.errors import NotLaunchedError, SelectionError
from poplin.strategies.collective_log import is_peer_failure
from poplin.strategies.reductions import parse_reduce_op
from poplin.strategies.strategy import Strategy

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, ReduceOp, Store  # type: ignore[attr-defined]

    from poplin.accelerators.accelerator import Accelerator
    from poplin.checkpoint.checkpoint_io import CheckpointIO
    from poplin.environments.environment import ClusterEnvironment
    from poplin.precision.precision import Precision
    from poplin.selection import Selection
    from poplin.strategies.communicator import Communicator

R = TypeVar("R")
T = TypeVar("T")


class _Place(NamedTuple):
    """This process among all of the run."""

    global_rank: int
    local_rank: int
    node_rank: int
    world_size: int


class ParallelStrategy(Strategy):
    """Several processes, one for each device, that work together through a process group.

    The ranks come from the cluster environment. The process group is the one that exists, or else one of its own,
    which serves CPU tensors besides those of the devices; :meth:`teardown` destroys only the latter. The collectives
    take tensors of any device: where the group has no backend for it, they go over the CPU.

    Args:
        accelerator, parallel_devices, cluster_environment, checkpoint_io, precision: what the user fixed on the
            strategy object; None leaves the choice to the selection.
        process_group_backend: name of the backend for the devices' tensors; None asks the accelerator. A whole
            specification (``"cpu:a,xyz:b"``) is taken as it is.
        timeout: of collectives and of connecting, a timedelta or seconds; None takes torch's default.

    Raises:
        ArgumentTypeError, ArgumentValueError: the timeout is no time, or not above zero.
    """

    needs_launch = True

    def __init__(
        self,
        *,
        accelerator: Accelerator | None = None,
        parallel_devices: Sequence[torch.device] | None = None,
        cluster_environment: ClusterEnvironment | None = None,
        checkpoint_io: CheckpointIO | None = None,
        precision: Precision | None = None,
        process_group_backend: str | None = None,
        timeout: timedelta | float | None = None,
    ) -> None:
        super().__init__(
            accelerator=accelerator,
            parallel_devices=parallel_devices,
            checkpoint_io=checkpoint_io,
            precision=precision,
        )
        self.cluster_environment = cluster_environment
        self.process_group_backend = process_group_backend
        self.timeout = process_group.as_timeout(timeout)
        self.num_nodes = 1
        self._place: _Place | None = None
        self._shared: process_group.SharedGroup | None = None
        self._communicator: Communicator | None = None
        self._trace: Any = None

    # --- selection

    def bind(self, selection: Selection) -> None:
        """Take the chosen objects, and the number of nodes. Called by the selection."""
        super().bind(selection)
        self.num_nodes = selection.num_nodes
        self._trace = selection.trace

    # --- place in the run

    @property
    def root_device(self) -> torch.device:
        """The device of this process: that of its local rank.

        Raises:
            SelectionError: there are no devices, or fewer than processes on this node.
        """
        devices = self.parallel_devices
        if not devices:
            raise SelectionError(
                f"This {type(self).__name__} has no devices yet: give it some (parallel_devices=...), or hand it to "
                "Fabric."
            )
        if self.local_rank >= len(devices):
            raise SelectionError(
                f"This process has local rank {self.local_rank}, and only {len(devices)} device(s) were asked for on "
                "each node. Ask for as many devices as there are processes on a node."
            )
        return devices[self.local_rank]

    @property
    def global_rank(self) -> int:
        """Rank of this process among all, from the cluster environment."""
        if self._place is not None:
            return self._place.global_rank
        return self.cluster_environment.global_rank() if self.cluster_environment is not None else 0

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node, from the cluster environment."""
        if self._place is not None:
            return self._place.local_rank
        return self.cluster_environment.local_rank() if self.cluster_environment is not None else 0

    @property
    def node_rank(self) -> int:
        """Rank of this node, from the cluster environment."""
        if self._place is not None:
            return self._place.node_rank
        return self.cluster_environment.node_rank() if self.cluster_environment is not None else 0

    @property
    def world_size(self) -> int:
        """Number of processes: of the group; before there is one, as many as were asked for."""
        if self._place is not None:
            return self._place.world_size
        if self.cluster_environment is not None and self.cluster_environment.creates_processes_externally:
            return self.cluster_environment.world_size()
        return len(self.parallel_devices or (None,)) * self.num_nodes

    @property
    def store(self) -> Store | None:
        """A key-value store that all ranks share while the process group is up; None otherwise."""
        return self._shared.recorder.store if self._shared is not None else None

    # --- processes and devices

    def setup_environment(self) -> None:
        """Make the device current and bring up the process group. Called in each process once it is launched.

        Raises:
            NotLaunchedError: the processes do not exist.
            ContradictionError: a process group exists that doesn't fit.
            LaunchError: the processes could not meet.
        """
        super().setup_environment()
        self.init_process_group()

    def init_process_group(self, timeout: timedelta | float | None = None) -> None:
        """Adopt the process group that exists, or make one. Called by :meth:`setup_environment`; once is enough.

        Args:
            timeout: of collectives, a timedelta or seconds; None takes the strategy's own.

        Raises:
            NotLaunchedError, ContradictionError, LaunchError: as :meth:`setup_environment`.
        """
        from poplin.strategies.communicator import Communicator

        if self._shared is not None:
            return
        place = self._look_around()
        environment = self.cluster_environment
        assert environment is not None
        made_before = not process_group.exists()
        shared = process_group.acquire(
            self.backend_spec(),
            process_group.Rendezvous(
                place.global_rank, place.world_size, environment.main_address, environment.main_port
            ),
            explicit_backend=self.process_group_backend,
            timeout=process_group.as_timeout(timeout) or self.timeout,
            device=self.root_device,
        )
        self._shared, self._place = shared, place
        self._communicator = Communicator(shared, place.global_rank, self.root_device)
        self._note(shared, made_before)

    def backend_spec(self) -> str:
        """The backend for the devices, and one for CPU tensors beside it. Called by :meth:`init_process_group`."""
        from poplin.accelerators.cpu import CPUAccelerator

        accelerator = self.accelerator
        device_type = accelerator.device_type if accelerator is not None else self.root_device.type
        backend = self.process_group_backend or (accelerator.collective_backend if accelerator is not None else None)
        assert CPUAccelerator.collective_backend is not None
        return process_group.backend_spec(device_type, backend, CPUAccelerator.collective_backend)

    def teardown(self) -> None:
        """Let the process group go, and destroy it if it is ours and nobody else uses it. Called by ``close()``."""
        shared = self._shared
        self._shared = self._communicator = self._place = None
        if shared is not None:
            process_group.release(shared)

    def _look_around(self) -> _Place:
        """The ranks that the environment tells, checked."""
        environment = self.cluster_environment
        if environment is None:
            raise SelectionError(
                f"This {type(self).__name__} has no cluster environment to tell it its rank: give it one "
                "(cluster_environment=...), or hand it to Fabric."
            )
        place = _Place(
            environment.global_rank(), environment.local_rank(), environment.node_rank(), environment.world_size()
        )
        wanted = len(self.parallel_devices or ()) * self.num_nodes
        if place.world_size != wanted and not environment.creates_processes_externally:
            raise NotLaunchedError(
                f"{wanted} processes are needed, and there is {place.world_size}. Call fabric.launch() first, or start "
                "the script with `poplin run`."
            )
        if not 0 <= place.global_rank < place.world_size:
            raise SelectionError(
                f"{type(environment).__name__} says that this is rank {place.global_rank} of {place.world_size}, which "
                "can't be. Check the variables that it reads."
            )
        return place

    def _note(self, shared: process_group.SharedGroup, made: bool) -> None:
        if self._trace is None:
            return
        spec = ",".join(f"{device_type}:{name}" for device_type, name in shared.backends.items())
        if made:
            seconds = f"timeout {shared.timeout.total_seconds():g} s" if shared.timeout else "torch's own timeout"
            why = f"none existed; {seconds}; destroyed by the last Fabric that uses it"
        elif shared.owned:
            why = "another Fabric of this process has made it; destroyed by the last one that uses it"
        else:
            ignored = "; the timeout asked for does not reach it" if self.timeout is not None else ""
            why = f"one existed already, and is adopted; it is never destroyed{ignored}"
        self._trace.note("process group", f"{spec}, {self.world_size} process(es)", why)

    def __getstate__(self) -> dict[str, Any]:
        """What can travel to another process: everything but the process group of this one."""
        return {**self.__dict__, "_place": None, "_shared": None, "_communicator": None}

    # --- collectives

    def _collectives(self) -> Communicator:
        communicator = self._communicator
        if communicator is None:
            process_group.require(None, type(self).__name__)
        assert communicator is not None
        return communicator

    def all_gather(self, tensor: Tensor, group: ProcessGroup | None = None, sync_grads: bool = False) -> Tensor:
        """``tensor`` of every rank, in a new first dimension. Called by ``Fabric.all_gather`` for each tensor.

        Ranks compare shape and dtype before the data moves.

        Args:
            tensor: the same shape and dtype on every rank.
            group: a process group; None means all.
            sync_grads: whether gradients flow back: the sum over ranks of what each asks of this rank's part.

        Raises:
            CollectiveError: shapes or dtypes differ, on every rank; or a rank is missing.
        """
        return self._collectives().all_gather(tensor, group, sync_grads)

    def all_reduce(
        self, tensor: Tensor, group: ProcessGroup | None = None, reduce_op: ReduceOp | str | None = "mean"
    ) -> Tensor:
        """Reduce over ranks, in place, at the cost of torch's own. Called by ``Fabric.all_reduce`` for each tensor.

        Args:
            tensor: the same shape and dtype on every rank (compared only under ``POPLIN_DEBUG=1``), of any dtype: what
                backends don't know is computed in another one. The sum of truth values is their "or".
            group: a process group; None means :attr:`data_group` for a mean and all otherwise.
            reduce_op: "mean"/"avg", "sum", "min", "max", "product", ... or a ReduceOp.

        Returns:
            ``tensor``; for the mean of integers a new float tensor.

        Raises:
            CollectiveError: a rank is missing.
        """
        reduction = parse_reduce_op(reduce_op)
        if group is None and reduction.mean:
            group = self.data_group
        return self._collectives().all_reduce(tensor, group, reduction)

    def barrier(self, name: str | None = None, group: ProcessGroup | None = None) -> None:
        """Wait until every rank is here. Called by ``Fabric.barrier``.

        Args:
            name: the same on every rank.
            group: a process group; None means all.

        Raises:
            CollectiveError: the ranks are at barriers of different names, or elsewhere; or some never came.
        """
        self._collectives().barrier(name, group)

    def broadcast(self, obj: T, src: int = 0) -> T:
        """``obj`` of rank ``src`` on every rank. Called by ``Fabric.broadcast``.

        Args:
            obj: on ``src`` a tensor, which is sent as it is, or anything that pickles, of which large tensors are sent
                beside the pickle. On other ranks anything; it is left as it is.
            src: global rank of the sender, the same on every rank.

        Raises:
            CollectiveError: ``obj`` can't be pickled, on every rank; or a rank is missing.
        """
        return self._collectives().broadcast(obj, src)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Whether every rank (``all``), or any rank, says True. Called by ``Fabric.should_stop``, and by users."""
        return self._collectives().reduce_boolean_decision(decision, all)

    def run_engine(self, what: str, function: Callable[..., R], *args: Any, **kwargs: Any) -> R:
        """Run something in which an engine talks to the other ranks by itself. Called by strategies that have one.

        If it fails because a rank is missing, the error says which, and what it was last seen at.

        Args:
            what: it is, the same on every rank: "backward", for instance.
            function: what runs.
            *args: for ``function``.
            **kwargs: for ``function``.

        Returns:
            What ``function`` returned.

        Raises:
            CollectiveError: a rank is missing. Every other error is left as it is.
        """
        if self._communicator is None:  # closed: what it does now is its own business
            return function(*args, **kwargs)
        log = self._communicator.log
        call = log.begin_engine(what)
        try:
            return function(*args, **kwargs)
        except RuntimeError as error:
            if not is_peer_failure(error):
                raise
            raise log.failure(call, error) from error

    def rank_zero_first(self, local: bool = False) -> AbstractContextManager[None]:
        """Context that one rank leaves before the others enter. Called by ``Fabric.rank_zero_first``.

        They wait as long as it lives, and not in a collective: no timeout ends it, and signals are served.

        Args:
            local: the local rank 0 of each node goes first, instead of global rank 0.

        Raises:
            CollectiveError: on the others, if the first one raises or dies.
        """
        from poplin.strategies.first import first

        communicator = self._collectives()
        if self.world_size == 1:
            return nullcontext()
        shared = communicator.shared  # other Fabrics may use it too, so it counts
        shared.firsts += 1
        leads = self.local_rank == 0 if local else self.global_rank == 0
        leader = f"node {self.node_rank}'s local rank 0" if local else "rank 0"
        name = f"first/{shared.firsts}/{self.node_rank if local else 'all'}"
        return first(shared.recorder.store, name, leads, leader)
