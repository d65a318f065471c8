"""Collective objects: torch's collectives behind one small interface, for code that takes such an object.

A strategy has collectives of its own (:meth:`Strategy.all_gather` and so on); these here are for libraries that do
their own communication, and want it to work in one process too.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor
from torch.distributed import rendezvous as meet  # type: ignore[attr-defined]

from poplin.errors import ArgumentTypeError, ArgumentValueError, LaunchError, UsageError
from poplin.strategies.reductions import parse_reduce_op


class Collective(ABC):
    """Collectives over one group of processes. :meth:`create_group` gives it a group of its own."""

    def __init__(self) -> None:
        self._group: Any = None

    @property
    def group(self) -> Any:
        """The group that the collectives run over.

        Raises:
            UsageError: there is none yet.
        """
        if self._group is None:
            raise UsageError(f"This {type(self).__name__} has no group: call create_group() first.")
        return self._group

    @property
    @abstractmethod
    def rank(self) -> int:
        """Rank of this process in the group."""

    @property
    @abstractmethod
    def world_size(self) -> int:
        """Number of processes in the group."""

    @abstractmethod
    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        """``tensor`` of global rank ``src``, written into everyone's."""

    @abstractmethod
    def all_reduce(self, tensor: Tensor, op: Any = "sum") -> Tensor:
        """Reduce in place, on every rank."""

    @abstractmethod
    def reduce(self, tensor: Tensor, dst: int, op: Any = "sum") -> Tensor:
        """Reduce in place, on ``dst`` only."""

    @abstractmethod
    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        """Everyone's ``tensor``, written into ``tensor_list``."""

    @abstractmethod
    def gather(self, tensor: Tensor, gather_list: list[Tensor], dst: int = 0) -> list[Tensor]:
        """Everyone's ``tensor``, written into ``gather_list`` on ``dst``."""

    @abstractmethod
    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], src: int = 0) -> Tensor:
        """This rank's item of ``scatter_list`` on ``src``, written into ``tensor``."""

    @abstractmethod
    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any = "sum") -> Tensor:
        """The reduction of everyone's item for this rank, written into ``output``."""

    @abstractmethod
    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        """Item ``j`` of rank ``i`` becomes item ``i`` of rank ``j``."""

    @abstractmethod
    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        """Send to ``dst``."""

    @abstractmethod
    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        """Receive into ``tensor``, from ``src`` or from anybody."""

    @abstractmethod
    def barrier(self, device_ids: list[int] | None = None) -> None:
        """Wait for everyone."""

    @classmethod
    @abstractmethod
    def is_available(cls) -> bool:
        """Whether it can be used in this build of torch."""

    @classmethod
    @abstractmethod
    def is_initialized(cls) -> bool:
        """Whether the default group is up."""

    @classmethod
    @abstractmethod
    def init_group(cls, **kwargs: Any) -> None:
        """Bring up the default group."""

    @classmethod
    @abstractmethod
    def new_group(cls, **kwargs: Any) -> Any:
        """A new group."""

    @classmethod
    @abstractmethod
    def destroy_group(cls, group: Any) -> None:
        """Destroy a group."""

    def setup(self, **kwargs: Any) -> Self:
        """Bring up the default group, unless it is."""
        if not self.is_initialized():
            self.init_group(**kwargs)
        return self

    def create_group(self, **kwargs: Any) -> Self:
        """Give this object a group of its own.

        Raises:
            UsageError: it has one.
        """
        if self._group is not None:
            raise UsageError(f"This {type(self).__name__} has a group already. Make another object for another group.")
        self._group = self.new_group(**kwargs)
        return self

    def teardown(self) -> Self:
        """Destroy the group of this object.

        Raises:
            UsageError: it has none.
        """
        if self._group is None:
            raise UsageError(f"This {type(self).__name__} has no group to tear down.")
        self.destroy_group(self._group)
        self._group = None
        return self


class TorchCollective(Collective):
    """The collectives of ``torch.distributed``; over all processes until :meth:`create_group` is called.

    Raises:
        LaunchError: this build of torch has none.
    """

    #: Whether an object of this class brought up the default group, which the last teardown then destroys.
    manages_default_group = False

    def __init__(self) -> None:
        if not self.is_available():
            raise LaunchError("This build of torch has no torch.distributed. Install a build that has it.")
        super().__init__()

    @property
    def group(self) -> Any:
        """The group of this object, or the default one."""
        return self._group if self._group is not None else dist.group.WORLD

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    @property
    def world_size(self) -> int:
        return dist.get_world_size(self.group)

    def broadcast(self, tensor: Tensor, src: int) -> Tensor:
        dist.broadcast(tensor, src, group=self.group)
        return tensor

    def all_reduce(self, tensor: Tensor, op: Any = "sum") -> Tensor:
        dist.all_reduce(tensor, op=_native(op), group=self.group)
        return tensor

    def reduce(self, tensor: Tensor, dst: int, op: Any = "sum") -> Tensor:
        dist.reduce(tensor, dst, op=_native(op), group=self.group)
        return tensor

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        dist.all_gather(tensor_list, tensor, group=self.group)
        return tensor_list

    def gather(self, tensor: Tensor, gather_list: list[Tensor] | None, dst: int = 0) -> list[Tensor]:
        dist.gather(tensor, gather_list if dist.get_rank() == dst else None, dst, group=self.group)
        return gather_list or []

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor] | None, src: int = 0) -> Tensor:
        dist.scatter(tensor, scatter_list if dist.get_rank() == src else None, src, group=self.group)
        return tensor

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any = "sum") -> Tensor:
        dist.reduce_scatter(output, input_list, op=_native(op), group=self.group)
        return output

    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        dist.all_to_all(output_tensor_list, input_tensor_list, group=self.group)
        return output_tensor_list

    def send(self, tensor: Tensor, dst: int, tag: int = 0) -> None:
        dist.send(tensor, dst, tag=tag, group=self.group)

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        dist.recv(tensor, src, tag=tag, group=self.group)
        return tensor

    def all_gather_object(self, object_list: list[Any], obj: Any) -> list[Any]:
        """Everyone's ``obj``, written into ``object_list``."""
        dist.all_gather_object(object_list, obj, group=self.group)
        return object_list

    def broadcast_object_list(self, object_list: list[Any], src: int, device: Any | None = None) -> list[Any]:
        """The objects of ``src``, written into everyone's list."""
        dist.broadcast_object_list(object_list, src, group=self.group, device=device)
        return object_list

    def gather_object(self, obj: Any, object_gather_list: list[Any] | None, dst: int = 0) -> list[Any]:
        """Everyone's ``obj``, written into ``object_gather_list`` on ``dst``."""
        dist.gather_object(obj, object_gather_list if dist.get_rank() == dst else None, dst, group=self.group)
        return object_gather_list or []

    def scatter_object_list(
        self, scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None, src: int = 0
    ) -> list[Any]:
        """This rank's item of the list on ``src``, written into the first place of the output list."""
        dist.scatter_object_list(scatter_object_output_list, scatter_object_input_list, src, group=self.group)
        return scatter_object_output_list

    def barrier(self, device_ids: list[int] | None = None) -> None:
        if self.is_initialized():
            dist.barrier(group=self.group, device_ids=device_ids)

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that says which ranks did not come, where the backend can tell."""
        dist.monitored_barrier(group=self.group, timeout=timeout, wait_all_ranks=wait_all_ranks)

    @classmethod
    def is_available(cls) -> bool:
        return dist.is_available()

    @classmethod
    def is_initialized(cls) -> bool:
        return cls.is_available() and dist.is_initialized()

    @classmethod
    def init_group(cls, **kwargs: Any) -> None:
        dist.init_process_group(**kwargs)

    @classmethod
    def new_group(cls, **kwargs: Any) -> Any:
        return dist.new_group(**kwargs)

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)

    def setup(self, main_address: str | None = None, main_port: int | str | None = None, **kwargs: Any) -> Self:
        """Bring up the default group, unless it is; :meth:`teardown` of any such object then destroys it.

        Args:
            main_address: where to meet; None reads ``MASTER_ADDR``.
            main_port: None reads ``MASTER_PORT``.
            kwargs: for ``init_process_group``: ``backend``, ``rank``, ``world_size``, ``timeout``...
        """
        if self.is_initialized():
            return self
        address = main_address or os.environ.get("MASTER_ADDR")
        port = main_port or os.environ.get("MASTER_PORT")
        if address is not None and port is not None and not {"store", "init_method"} & kwargs.keys():
            rank = int(kwargs.setdefault("rank", os.environ.get("RANK", 0)))
            size = int(kwargs.setdefault("world_size", os.environ.get("WORLD_SIZE", 1)))
            kwargs |= {"rank": rank, "world_size": size}
            url = f"tcp://{address}:{port}?rank={rank}&world_size={size}"
            options = {} if kwargs.get("timeout") is None else {"timeout": kwargs["timeout"]}
            kwargs["store"], _, _ = next(iter(meet(url, **options)))
        self.init_group(**kwargs)
        TorchCollective.manages_default_group = True
        return self

    def teardown(self) -> Self:
        """Destroy the group of this object, and the default group if :meth:`setup` brought it up."""
        own, self._group = self._group, None
        if own is not None and self.is_initialized():
            self.destroy_group(own)
        if own is None and not TorchCollective.manages_default_group:
            raise UsageError("This TorchCollective has no group to tear down, and did not bring up the default one.")
        if TorchCollective.manages_default_group:
            TorchCollective.manages_default_group = False
            if self.is_initialized():
                dist.destroy_process_group()
        return self


class SingleDeviceCollective(Collective):
    """One process: every collective gives back what it was given."""

    @property
    def rank(self) -> int:
        return 0

    @property
    def world_size(self) -> int:
        return 1

    def broadcast(self, tensor: Tensor, src: int = 0) -> Tensor:
        return tensor

    def all_reduce(self, tensor: Tensor, op: Any = "sum") -> Tensor:
        return tensor

    def reduce(self, tensor: Tensor, dst: int = 0, op: Any = "sum") -> Tensor:
        return tensor

    def all_gather(self, tensor_list: list[Tensor], tensor: Tensor) -> list[Tensor]:
        return [tensor]

    def gather(self, tensor: Tensor, gather_list: list[Tensor] | None = None, dst: int = 0) -> list[Tensor]:
        return [tensor]

    def scatter(self, tensor: Tensor, scatter_list: list[Tensor], src: int = 0) -> Tensor:
        return _only(scatter_list)

    def reduce_scatter(self, output: Tensor, input_list: list[Tensor], op: Any = "sum") -> Tensor:
        return _only(input_list)

    def all_to_all(self, output_tensor_list: list[Tensor], input_tensor_list: list[Tensor]) -> list[Tensor]:
        return input_tensor_list

    def send(self, tensor: Tensor, dst: int = 0, tag: int = 0) -> None:
        """There is nobody to send to."""

    def recv(self, tensor: Tensor, src: int | None = None, tag: int = 0) -> Tensor:
        return tensor

    def barrier(self, device_ids: list[int] | None = None) -> None:
        """There is nobody to wait for."""

    @classmethod
    def is_available(cls) -> bool:
        return True

    @classmethod
    def is_initialized(cls) -> bool:
        return True

    @classmethod
    def init_group(cls, **kwargs: Any) -> None:
        """There is nothing to bring up."""

    @classmethod
    def new_group(cls, **kwargs: Any) -> Any:
        return object()

    @classmethod
    def destroy_group(cls, group: Any) -> None:
        """There is nothing to destroy."""


def _native(op: Any) -> Any:
    """Torch's operation for what a user wrote.

    Raises:
        ArgumentTypeError, ArgumentValueError: it names none.
    """
    if op is None:
        raise ArgumentTypeError("op=None: name the reduction ('sum', 'mean', ...), or give a ReduceOp.")
    reduction = parse_reduce_op(op)
    return dist.ReduceOp.AVG if reduction.mean else reduction.op


def _only(tensors: list[Tensor]) -> Tensor:
    if len(tensors) != 1:
        raise ArgumentValueError(f"One process takes a list of one tensor, and this has {len(tensors)}.")
    return tensors[0]
