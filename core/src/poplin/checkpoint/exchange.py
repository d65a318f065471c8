"""How the ranks that write one folder come together: over a process group of their own, on the CPU.

The group is not the training's, so that a save in the background never meets a collective of the training; and it is
gloo, because what is exchanged are small objects.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from poplin.checkpoint.agreement import theirs
from poplin.errors import CheckpointError, CollectiveError

T = TypeVar("T")
R = TypeVar("R")

#: How long a rank waits for another that is still writing its part. One that has died is noticed at once.
_PATIENCE = timedelta(hours=2)


class Ranks:
    """The ranks that write together.

    Args:
        world_size: their number; the whole of ``torch.distributed``'s world, or one.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.rank = 0
        self._group: Any = None
        if world_size == 1:
            return
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() == world_size):
            raise CheckpointError(
                f"{world_size} processes are to write one folder, and torch.distributed does not connect them. Launch "
                "first, or save one file: plugins='torch'."
            )
        self.rank = dist.get_rank()
        self._group = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def close(self) -> None:
        """Give the process group back."""
        group, self._group = self._group, None
        if group is not None and dist.is_initialized():
            dist.destroy_process_group(group)

    @property
    def is_alive(self) -> bool:
        """Whether the world that the group was made in is still there."""
        return self.world_size == 1 or (
            self._group is not None and dist.is_initialized() and self._group in dist.distributed_c10d._world.pg_map
        )

    def exchange(self, doing: str, step: Callable[[], T], conclude: Callable[[list[T]], list[R]]) -> R:
        """Run ``step`` on every rank, ``conclude`` on rank 0 with all results, and hand out what that returned.

        Args:
            doing: for messages.
            step: what each rank does.
            conclude: takes the results by rank, and returns what each rank gets.

        Raises:
            Exception: what was raised on this rank.
            CheckpointError: another rank failed, which is named.
            CollectiveError: another rank is gone.
        """
        if self.world_size == 1:
            return conclude([step()])[0]
        failure: Exception | None = None
        result: Any = None
        try:
            result = step()
        except Exception as error:  # whatever it is, the others must hear of it
            failure = error
        gathered = self._gathered(doing, (_report(failure), result))
        replies: list[tuple[list[Any], Any]] | None = None
        if self.rank == 0:
            reports = [report for report, _ in gathered]
            concluded: list[Any] = [None] * self.world_size
            if not any(reports):
                try:
                    concluded = list(conclude([value for _, value in gathered]))
                except Exception as error:
                    failure = error
                    reports = [_report(error), *reports[1:]]
            replies = [(reports, reply) for reply in concluded]
        reports, reply = self._scattered(doing, replies)
        if failure is not None:
            raise failure
        if any(reports):
            raise theirs(doing, reports)
        return reply  # type: ignore[no-any-return]

    def _gathered(self, doing: str, value: Any) -> list[Any]:
        gathered: list[Any] | None = [None] * self.world_size if self.rank == 0 else None
        self._collective(doing, lambda: dist.gather_object(value, gathered, dst=0, group=self._group))
        return gathered or []

    def _scattered(self, doing: str, values: list[Any] | None) -> Any:
        received: list[Any] = [None]
        self._collective(doing, lambda: dist.scatter_object_list(received, values, src=0, group=self._group))
        return received[0]

    @staticmethod
    def _collective(doing: str, run: Callable[[], Any]) -> None:
        try:
            run()
        except RuntimeError as error:  # what gloo raises when a peer is gone, or silent for too long
            raise CollectiveError(
                f"The ranks lost each other in {doing}: {str(error).splitlines()[0]}. Most likely a process has ended."
            ) from error


def _report(failure: Exception | None) -> tuple[str, str] | None:
    return None if failure is None else (type(failure).__name__, str(failure))
