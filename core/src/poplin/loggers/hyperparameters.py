"""Hyperparameters in a JSON file."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import os
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from poplin.errors import LoggerError
from poplin.utilities.atomic_files import atomic_file

_MAX_ELEMENTS = 100


def merge_hyperparameters(path: str, params: Mapping[str, Any]) -> None:
    """Write ``params`` to ``path``, added to what stands there.

    Raises:
        LoggerError: it can't be written, or what stands there is no such file.
    """
    try:
        before: dict[str, Any] = {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                before = json.load(file)
        text = json.dumps({**before, **plain_values(params)}, indent=2, ensure_ascii=False) + "\n"
        with atomic_file(path) as out:
            out.write(text.encode("utf-8", "backslashreplace"))
    except (OSError, ValueError, TypeError) as error:
        raise LoggerError(f"The hyperparameters can't be written to {path}: {error}") from error


def plain_values(value: Any) -> Any:
    """``value`` as JSON can hold it; what has no counterpart there becomes its text.

    NaN and the infinities have none: they become "nan", "inf" and "-inf", which ``float`` reads.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return plain_values(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(key): plain_values(item) for key, item in value.items()}
    if isinstance(value, Namespace):
        return plain_values(vars(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain_values(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [plain_values(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain_values(item) for item in value), key=str)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Tensor) and (value.is_meta or value.numel() > _MAX_ELEMENTS):
        return f"tensor of shape {tuple(value.shape)}"
    if hasattr(value, "tolist") and hasattr(value, "shape"):
        return plain_values(value.tolist())
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return str(value)
