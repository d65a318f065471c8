"""DeepSpeed itself: found, compared with what this package needs, and imported when processes are there.

What DeepSpeed keeps for the whole process (its accelerator, its process groups, the level of its logger) is looked
after here, so that one Fabric after the other works in one process.
"""

from __future__ import annotations

import importlib
import logging
import os
import warnings
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import Any

import torch
from packaging.version import InvalidVersion, Version

from poplin.errors import ContradictionError
from poplin_deepspeed.errors import DeepSpeedMissingError

#: The oldest version that this package works with: 0.19.0 can't yet end an accumulation after its last backward pass.
OLDEST = "0.19.8"
_PACKAGE = "deepspeed"
_INSTALL = f"pip install 'deepspeed>={OLDEST}'"
#: Compiled for all collectives on the CPU, which takes minutes; torch's own do as well.
_SHARED_MEMORY_OP = "deepspeed_shm_comm"


def check_installed() -> None:
    """DeepSpeed is installed, and new enough. Reads its metadata only.

    Raises:
        DeepSpeedMissingError: it isn't.
    """
    try:
        version = metadata.version(_PACKAGE)
    except metadata.PackageNotFoundError:
        raise DeepSpeedMissingError(
            f"The strategy 'deepspeed' needs the package deepspeed, which is not installed: {_INSTALL}"
        ) from None
    try:
        old = Version(version) < Version(OLDEST)
    except InvalidVersion:
        return
    if old:
        raise DeepSpeedMissingError(
            f"The strategy 'deepspeed' needs DeepSpeed {OLDEST} or newer, and {version} is installed: {_INSTALL}"
        )


def load(device_type: str) -> Any:
    """The module ``deepspeed``, which takes ``device_type`` for its accelerator.

    Raises:
        DeepSpeedMissingError: it can't be imported; its own error is the cause.
        ContradictionError: it runs on another type of device in this process already.
    """
    check_installed()
    wanted = {"DS_ACCELERATOR": os.environ.get("DS_ACCELERATOR") or device_type}
    before = dict(os.environ)
    try:
        with variables(wanted), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # DeepSpeed's own business with torch
            module = importlib.import_module(_PACKAGE)
            accelerator = module.accelerator.get_accelerator()
    except (Exception, SystemExit) as error:
        raise DeepSpeedMissingError(
            f"DeepSpeed is installed and can't be imported: {type(error).__name__}: {error}. Its compiled parts may be "
            f"of another torch: pip install --force-reinstall --no-deps --no-cache-dir deepspeed."
        ) from error
    finally:
        for name in set(os.environ) - set(before):  # it sets some for its own import
            del os.environ[name]
    name = accelerator.device_name()
    if name != device_type:
        raise ContradictionError(
            f"DeepSpeed runs on {name!r} devices in this process (DS_ACCELERATOR, or what it found when it was "
            f"imported), and this Fabric on {device_type!r}. Unset DS_ACCELERATOR, or choose accelerator={name!r}."
        )
    return module


@contextmanager
def variables(values: Mapping[str, str]) -> Iterator[None]:
    """Context with environment variables set; afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Communication:
    """DeepSpeed's view of the process group, and the level of its logger, for one Fabric.

    Args:
        module: ``deepspeed``.
        level: of its logger.
    """

    _group: Any = None  # a weak reference to the process group that DeepSpeed's caches are of
    _open = 0  # Fabrics of this process that use DeepSpeed

    def __init__(self, module: Any, level: int) -> None:
        self.module = module
        self._logger = logging.getLogger("DeepSpeed")
        self._level_before = self._logger.level
        self._logger.setLevel(level)
        type(self)._open += 1

    def connect(self, backend: str | None) -> None:
        """Let DeepSpeed use the process group that is up, without building what it can do without."""
        cls = type(self)
        world = torch.distributed.group.WORLD
        if cls._group is None or cls._group() is not world:
            _forget_groups(self.module)
            cls._group = weakref.ref(world)
        available = self.module.ops.__compatible_ops__
        before = available.get(_SHARED_MEMORY_OP)
        if before is not None:
            available[_SHARED_MEMORY_OP] = False
        try:
            self.module.init_distributed(dist_backend=backend, auto_mpi_discovery=False, verbose=False)
        finally:
            if before is not None:
                available[_SHARED_MEMORY_OP] = before

    def close(self) -> None:
        """Put back the logger's level, and with the last one what DeepSpeed has put into torch."""
        cls = type(self)
        self._logger.setLevel(self._level_before)
        cls._open -= 1
        if cls._open == 0:
            _put_back_linear()


def _put_back_linear() -> None:
    """At stage 3 DeepSpeed replaces ``torch.nn.functional.linear``, and leaves it so."""
    partition = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    original = getattr(partition.InsertPostInitMethodToModuleSubClasses, "linear_bk", None)
    functional = torch.nn.functional
    if original is not None and functional.linear is partition.zero3_linear_wrap:
        functional.linear = original


def _forget_groups(module: Any) -> None:
    """Forget groups of a process group that is gone: DeepSpeed keeps them for the life of the process."""
    importlib.import_module("deepspeed.utils.groups")._release_process_group_references(group=None)
    module.comm.comm.cdb = None
