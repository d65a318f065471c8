"""The logger against the public compliance suite, with the real library; its database is read back."""

from collections import defaultdict

import pytest

from poplin.testing import LoggerCompliance, PackagingCompliance

pytestmark = [pytest.mark.extras, pytest.mark.timeout(300)]


class TestMLflow(LoggerCompliance):
    name = "mlflow"
    limit = 120

    def read(self, logger):
        client = logger.experiment
        runs = client.search_runs([client.get_experiment_by_name(logger.name).experiment_id])
        rows = defaultdict(dict)
        for run in runs:
            for name in run.data.metrics:
                for metric in client.get_metric_history(run.info.run_id, name):
                    rows[metric.step][name] = metric.value
        return [rows[step] for step in sorted(rows)]


class TestPackage(PackagingCompliance):
    distribution = "poplin-mlflow"
