"""The logger against the public compliance suite; its event files are read back."""

from collections import defaultdict

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from poplin.testing import LoggerCompliance, PackagingCompliance


class TestTensorBoard(LoggerCompliance):
    name = "tensorboard"

    def read(self, logger):
        events = EventAccumulator(logger.log_dir)
        events.Reload()
        rows = defaultdict(dict)
        for name in events.Tags()["scalars"]:
            for event in events.Scalars(name):
                rows[event.step][name] = event.value
        return [rows[step] for step in sorted(rows)]


class TestPackage(PackagingCompliance):
    distribution = "poplin-tensorboard"
