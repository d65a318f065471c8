"""The compliance suite of the logger: its event files are read back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from poplin.testing import LoggerCompliance
from poplin.utilities import import_library

_READER = "tensorboard.backend.event_processing.event_accumulator"


class TensorBoardCompliance(LoggerCompliance):
    """What tensorboard's own reader makes of the folder."""

    name = "tensorboard"

    def read(self, logger: Any) -> Sequence[Mapping[str, float]]:
        events = import_library(_READER, "Reading event files").EventAccumulator(logger.log_dir)
        events.Reload()
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                rows[event.step][name] = event.value
        return [rows[step] for step in sorted(rows)]
