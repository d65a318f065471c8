"""The compliance suite of the logger: its database is read back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from poplin.testing import LoggerCompliance


class MLflowCompliance(LoggerCompliance):
    """What MLflow's own client finds of the runs of the experiment."""

    name = "mlflow"
    limit = 120  # a new database is made, and brought through all of its versions

    def read(self, logger: Any) -> Sequence[Mapping[str, float]]:
        client = logger.experiment
        runs = client.search_runs([client.get_experiment_by_name(logger.name).experiment_id])
        rows: dict[int, dict[str, float]] = defaultdict(dict)
        for run in runs:
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    rows[metric.step][name] = metric.value
        return [rows[step] for step in sorted(rows)]
