"""``poplin run``: the processes of a run, started and watched by torchrun."""

from __future__ import annotations

import math
import os
import sys
from typing import TYPE_CHECKING, Any

from poplin.cli.torch_import import require_torch
from poplin.errors import ArgumentValueError
from poplin.utilities.environ import environment_variables

if TYPE_CHECKING:
    from poplin.cli.options import RunOptions

#: The options that the processes read as variables; each one as ``LT_`` too, for scripts that moved.
_SELECTION = ("accelerator", "strategy", "devices", "precision", "num_nodes")
_PREFIXES = ("POPLIN_", "LT_")
#: The port of the first node where several are asked for and no port is.
_DEFAULT_PORT = 29400
_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"


def run_script(options: RunOptions) -> int:
    """Run a script in as many processes as there are devices, and wait for them.

    ``sys.argv`` and ``__main__`` in the processes are the script's own. Environment variables of this process are as
    before when it returns.

    Args:
        options: as they were written; what was not said is left to the script.

    Returns:
        The exit code: that of the first process that failed (128 and the signal's number if a signal killed it).

    Raises:
        SelectionError, ArgumentValueError: no run can be made of the options. Nothing was started.
        MissingPackageError: torch can't be imported.
    """
    _check_target(options)
    with environment_variables(_variables(options)):
        require_torch()
        count = process_count(options)
        shared = {**_threads(count), **_accelerator_variables(options, count)}
        with environment_variables({**shared, "POPLIN_LAUNCHER_PID": str(os.getpid())}):
            return _run(torchrun_arguments(options, count), count * options.num_nodes)


def process_count(options: RunOptions) -> int:
    """How many processes to start on this node.

    Raises:
        SelectionError, ArgumentValueError: the devices can't be had.
    """
    from poplin.selection import Request, Trace
    from poplin.selection.accelerator import resolve_accelerator
    from poplin.selection.carried import carried_by

    request = Request.read(accelerator=options.accelerator or "auto", devices=options.devices or "auto")
    if request.explicit("devices") is None and options.devices is None:
        return 1  # as the script would start by itself
    count = _plain_count(request.devices)
    if count is not None and request.explicit("accelerator") is None:
        return count
    accelerator = resolve_accelerator(request, carried_by("auto"), Trace())
    devices = request.devices if request.explicit("devices") is not None else accelerator.auto_device_count()
    return len(accelerator.get_parallel_devices(accelerator.parse_devices(devices)))


def _accelerator_variables(options: RunOptions, count: int) -> dict[str, str | None]:
    """What the accelerator, if one was named, wants in the environment of every process."""
    from poplin.selection import Request, Trace
    from poplin.selection.accelerator import resolve_accelerator
    from poplin.selection.carried import carried_by

    if options.accelerator is None or count * options.num_nodes == 1:
        return {}
    request = Request.read(accelerator=options.accelerator, devices=options.devices or "auto")
    accelerator = resolve_accelerator(request, carried_by("auto"), Trace())
    return {**accelerator.launch_variables(count, options.num_nodes)}


def torchrun_arguments(options: RunOptions, count: int) -> list[str]:
    """What torchrun is asked for."""
    arguments = [f"--nproc-per-node={count}", f"--nnodes={options.num_nodes}", f"--max-restarts={options.max_restarts}"]
    if options.num_nodes == 1 and options.main_port is None:
        arguments.append("--standalone")  # on a free port
    else:
        arguments += [
            f"--node-rank={options.node_rank}",
            f"--master-addr={options.main_address}",
            f"--master-port={options.main_port or _DEFAULT_PORT}",
        ]
    arguments += _supported({"--shutdown-timeout": str(math.ceil(options.grace)), "--signals-to-handle": _SIGNALS})
    return [*arguments, "--no-python", *_command(options)]


def _command(options: RunOptions) -> list[str]:
    """The command line of each process; it dies with this process."""
    from poplin.launchers.processes import exec_with_parent

    target = ["-m", options.target] if options.is_module else [options.target]
    if options.modules:
        target = ["-m", "poplin.cli.preload", ",".join(options.modules), *target]
    return exec_with_parent([sys.executable, "-u", *target, *options.arguments])


def _variables(options: RunOptions) -> dict[str, str | None]:
    values: dict[str, Any] = {name: getattr(options, name) for name in _SELECTION}
    variables: dict[str, str | None] = {
        prefix + name.upper(): str(value) for name, value in values.items() if value is not None for prefix in _PREFIXES
    }
    variables |= {prefix + "CLI_USED": "1" for prefix in _PREFIXES}
    variables["POPLIN_GRACE"] = f"{options.grace:g}"
    if not options.torch_autoload:
        variables["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    return variables


def _threads(count: int) -> dict[str, str | None]:
    """The cores, shared among the processes, unless somebody has set it. (torchrun would give each one thread.)"""
    if count == 1 or os.environ.get("OMP_NUM_THREADS"):
        return {}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {"OMP_NUM_THREADS": str(max(1, cores // count))}


def _supported(wanted: dict[str, str]) -> list[str]:
    """Those options that the installed torchrun knows."""
    from torch.distributed.run import get_args_parser

    known = get_args_parser().format_help()
    return [f"{name}={value}" for name, value in wanted.items() if name in known]


def _run(arguments: list[str], world_size: int) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        return _report(error, world_size)
    except SignalException as error:
        print(f"poplin: ended by {error.sigval.name}.", file=sys.stderr)
        return 128 + int(error.sigval)
    return 0


def _report(error: Any, world_size: int) -> int:
    """Say which rank failed first, and why; return its exit code."""
    rank, failure = error.get_first_failure()
    code = int(failure.exitcode)
    message = _message_of(failure)
    how = f"was killed by {failure.signal_name()}" if code < 0 else f"failed with exit code {code}"
    if message is not None and code < 0:
        # The exception was first. Threads of native code that outlive the interpreter, as those of a process group that
        # nobody destroyed, make a process abort at its very end.
        how, code = f"failed with an exception, and {how} on its way out", 1
    print(f"poplin: rank {rank} of {world_size} {how}.", file=sys.stderr)
    if message is not None:
        print(message, file=sys.stderr)
    others = [f"rank {other} ({item.exitcode})" for other, item in error.failures.items() if other != rank]
    if others:
        print(f"poplin: after it ended, with their exit codes: {', '.join(others)}.", file=sys.stderr)
    return code if code > 0 else 128 - code


def _message_of(failure: Any) -> str | None:
    """The traceback, where the process has left one."""
    data = failure.error_file_data
    message = data.get("message") if isinstance(data, dict) else None
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    text = extra.get("py_callstack") if isinstance(extra, dict) else None
    return str(text).rstrip() if text else str(message.get("message", "")) or None


def _plain_count(devices: Any) -> int | None:
    """``devices`` as a number of processes where it is a plain count."""
    try:
        count = int(devices)
    except (TypeError, ValueError):
        return None
    return count if count > 0 else None


def _check_target(options: RunOptions) -> None:
    if options.is_module:
        return
    if not os.path.exists(options.target):
        raise ArgumentValueError(
            f"There is no script {options.target!r} (looked for in {os.getcwd()}). To run a module, write -m in "
            "front of it."
        )
