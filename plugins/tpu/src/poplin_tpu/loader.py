"""Batches by torch_xla's ``MpDeviceLoader``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from poplin_tpu import runtime


class DeviceLoader:
    """Uploads batches of a dataloader ahead of their use, and marks a step at each. Attributes are the loader's.

    Args:
        loader: the dataloader.
        device: where batches go.
        input_sharding: how they are sharded over a mesh, or None.
    """

    def __init__(self, loader: Any, device: torch.device, input_sharding: Any = None) -> None:
        self._loader = loader
        options = {} if input_sharding is None else {"input_sharding": input_sharding}
        self._device_loader = runtime.xla("distributed.parallel_loader").MpDeviceLoader(loader, device, **options)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._device_loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)
