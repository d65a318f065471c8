"""The launcher ``ray``: the processes of a run on the nodes of a Ray cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from poplin.errors import ArgumentTypeError, ArgumentValueError, LaunchError, WorkerError
from poplin.launchers import Launcher
from poplin.utilities import import_library
from poplin_ray.node import CarriedError, Node, Orders

_NEEDED_BY = "The launcher 'ray'"
#: What Ray calls the devices that it counts by itself.
_RAY_RESOURCES = {"cuda": "GPU", "xpu": "GPU", "npu": "NPU", "hpu": "HPU", "tpu": "TPU"}
_STEP_SECONDS = 0.2


class RayLauncher(Launcher):
    """Runs a function in processes on a Ray cluster, one for each device, and returns rank 0's result.

    On each node one actor starts the node's processes. If this process is connected to Ray already, that connection
    is used and left as it is. Otherwise ``address`` or ``RAY_ADDRESS`` is joined, or a local Ray is started for the
    length of the launch. The function and its arguments are sent by value: closures and what a notebook defines too.

    Args:
        address: of a cluster: ``"auto"``, or as ``ray.init`` takes it. None asks ``RAY_ADDRESS``.
        resources_per_rank: what each process gets: ``{"CPU": 2, "GPU": 1}``. None takes one CPU, and one of the
            accelerator's devices where Ray counts them.
        env_vars: environment variables of the processes.
        grace: seconds between SIGTERM and SIGKILL for ranks that must end because another one failed; None takes
            ``POPLIN_GRACE``, or 10.
        timeout: seconds to wait until the cluster has room for all processes together.
        init_kwargs: handed on to ``ray.init``.

    Raises:
        ArgumentValueError, ArgumentTypeError: an argument that can't be meant.
        MissingPackageError: ray is not installed.
    """

    needs_function = True

    def __init__(
        self,
        address: str | None = None,
        resources_per_rank: Mapping[str, float] | None = None,
        env_vars: Mapping[str, str] | None = None,
        grace: float | None = None,
        timeout: float = 120.0,
        init_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        _ray()  # now, and not at the launch
        if timeout <= 0:
            raise ArgumentValueError(f"timeout={timeout}: give seconds, more than 0.")
        if env_vars is not None and not all(isinstance(part, str) for pair in env_vars.items() for part in pair):
            raise ArgumentTypeError("env_vars are names and values of environment variables, both strings.")
        self.address = address
        self.resources_per_rank = None if resources_per_rank is None else dict(resources_per_rank)
        self.env_vars = dict(env_vars or {})
        self.grace = grace
        self.timeout = timeout
        self.init_kwargs = dict(init_kwargs or {})

    @property
    def is_interactive_compatible(self) -> bool:
        """True: functions that were typed in are sent by value."""
        return True

    def launch(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run ``function(*args, **kwargs)`` in one new process for each device.

        Where the processes exist already (torchrun, a scheduler), it is called in this one.

        Returns:
            Rank 0's result, or this process's own where the processes existed.

        Raises:
            LaunchError: the cluster has no room, or what the processes need can't be sent there.
            WorkerError: a rank was killed, or ended without a word.
            BaseException: the first failing rank's own exception; its traceback is in the chain.
        """
        selection = self.selection
        assert selection is not None
        if selection.environment.creates_processes_externally:
            selection.trace.note("launch", "this process", "the processes exist already, so none is started")
            return function(*args, **kwargs)
        ray = _ray()
        content = _packed(ray, (function, args, kwargs))
        with self._connected(ray):
            return _Launch(self, ray, selection).run(content)

    def bundle(self) -> dict[str, float]:
        """What the processes of one node get from Ray, together."""
        assert self.selection is not None
        size = len(self.selection.devices)
        if self.resources_per_rank is not None:
            return {name: amount * size for name, amount in self.resources_per_rank.items() if amount}
        device = _RAY_RESOURCES.get(self.selection.accelerator.device_type)
        return {"CPU": float(size)} | ({device: float(size)} if device is not None else {})

    @contextmanager
    def _connected(self, ray: Any) -> Iterator[None]:
        if ray.is_initialized():
            yield
            return
        variables, handlers = dict(os.environ), _handlers()
        arguments: dict[str, Any] = {"log_to_driver": True}
        address = self.address or os.environ.get("RAY_ADDRESS")
        if address:
            arguments["address"] = address
        else:
            needed = int(self.bundle().get("CPU", 1))
            arguments |= {"include_dashboard": False, "num_cpus": max(os.cpu_count() or 1, needed)}
        try:
            try:
                ray.init(**{**arguments, **self.init_kwargs})
            except Exception as error:
                raise LaunchError(f"Ray can't be started, or joined: {type(error).__name__}: {error}") from error
            yield
        finally:
            ray.shutdown()
            for name in set(os.environ) - set(variables):
                del os.environ[name]
            os.environ.update(variables)
            for signum, handler in handlers.items():
                signal.signal(signum, handler)


class _Launch:
    """One launch, from the placement to the result."""

    def __init__(self, launcher: RayLauncher, ray: Any, selection: Any) -> None:
        self.launcher, self.ray, self.selection = launcher, ray, selection
        self.num_nodes = int(selection.num_nodes)
        self.grace = float(os.environ.get("POPLIN_GRACE") or 10) if launcher.grace is None else launcher.grace
        self.nodes: list[Any] = []
        self.waiting: list[Any] = []
        self.group: Any | None = None

    def run(self, content: bytes) -> Any:
        try:
            self._place()
            return self._watch(content)
        finally:
            self._end()

    def _place(self) -> None:
        """Room for all processes at once, or none: half of them would wait for the others for ever."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray, bundle = self.ray, self.launcher.bundle()
        self.group = placement_group([bundle] * self.num_nodes, strategy="STRICT_SPREAD")
        if not self.group.wait(timeout_seconds=self.launcher.timeout):
            raise LaunchError(
                f"The Ray cluster has no room for {self.num_nodes} node(s) with {bundle} each, within "
                f"{self.launcher.timeout:g} s. It has {ray.cluster_resources()}, of which {ray.available_resources()} "
                "are free. Ask for less, by resources_per_rank for instance, or add nodes."
            )
        self.selection.trace.note(
            "launch",
            f"ray: {self.num_nodes * len(self.selection.devices)} process(es)",
            f"{self.num_nodes} node(s) with {bundle} each",
        )
        resources = dict(bundle)
        options: dict[str, Any] = {"num_cpus": resources.pop("CPU", 0), "num_gpus": resources.pop("GPU", 0)}
        for index in range(self.num_nodes):
            scheduling = PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=index
            )
            self.nodes.append(
                ray.remote(Node)
                .options(
                    scheduling_strategy=scheduling,
                    max_restarts=0,
                    max_concurrency=2,  # to be told to end while the processes run
                    resources=resources or None,
                    runtime_env={"env_vars": {**_carried_variables(), **self.launcher.env_vars}},
                    **options,
                )
                .remote()
            )

    def _watch(self, content: bytes) -> Any:
        ray = self.ray
        point = ray.get(self.nodes[0].meeting_point.remote()) if self.num_nodes > 1 else None
        selection = _packed_selection(self.selection)
        tasks = {
            node.run.remote(Orders(index, point, selection, content, self.grace)): index
            for index, node in enumerate(self.nodes)
        }
        self.waiting = list(tasks)
        results: dict[int, bytes] = {}
        while self.waiting:
            ready, self.waiting = ray.wait(self.waiting, num_returns=1, timeout=_STEP_SECONDS)
            for task in ready:
                try:
                    went_well, answer = ray.get(task)
                except ray.exceptions.RayError as error:
                    raise WorkerError(
                        f"The processes of node {tasks[task]} ended without a word: {_first_line(error)}"
                    ) from error
                if not went_well:
                    raise _error(ray, answer)
                results[tasks[task]] = answer
        return ray.cloudpickle.loads(results[0])

    def _end(self) -> None:
        """Tell what still runs to end, wait for the grace, and leave no process and no room taken."""
        if self.waiting:
            with suppress(Exception):
                for node in self.nodes:
                    node.end.remote()
                self.ray.wait(self.waiting, num_returns=len(self.waiting), timeout=self.grace + 5)
        for node in self.nodes:
            with suppress(Exception):
                self.ray.kill(node, no_restart=True)
        if self.group is not None:
            from ray.util.placement_group import remove_placement_group

            with suppress(Exception):
                remove_placement_group(self.group)


def _packed(ray: Any, call: Any) -> bytes:
    """The call, and what was registered at run time, by value."""
    from poplin.registry import runtime_table

    pack = ray.cloudpickle.dumps
    try:
        return bytes(pack((pack(runtime_table(pack)), pack(call))))
    except Exception as error:
        raise LaunchError(
            "What was given to launch(), or was registered at run time, can't be sent to the processes of Ray: "
            f"{type(error).__name__}: {error}. Leave it out, or make it inside the function."
        ) from error


def _packed_selection(selection: Any) -> bytes:
    """What an actor needs of the run: how it is laid out, and no class of the script's."""
    return bytes(import_library("ray.cloudpickle", _NEEDED_BY).dumps(selection))


def _error(ray: Any, answer: bytes) -> BaseException:
    try:
        error, cause, notes = ray.cloudpickle.loads(answer)
    except Exception as broken:
        return WorkerError(f"A rank failed, and its error can't be rebuilt here: {broken}")
    if isinstance(error, CarriedError):
        error = ray.cloudpickle.loads(error.content)
    if not isinstance(error, BaseException):
        return WorkerError(f"A rank failed: {error!r}")
    error.__cause__ = cause
    for note in notes:
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return error


def _carried_variables() -> dict[str, str]:
    """Variables that say how torch and Poplin behave; a cluster's nodes have nothing of this environment."""
    prefixes = ("POPLIN_", "OMP_", "MKL_", "TORCH_", "NCCL_", "GLOO_", "PL_")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}


def _handlers() -> dict[int, Any]:
    if threading.current_thread() is not threading.main_thread():
        return {}
    found = {signum: signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGINT)}
    return {signum: handler for signum, handler in found.items() if handler is not None}


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _ray() -> Any:
    return import_library("ray", _NEEDED_BY)
