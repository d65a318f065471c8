"""One line of JSON for each call of ``fabric.log``."""

import json

from poplin.loggers import Logger


class LinesLogger(Logger):
    def __init__(self, path="metrics.jsonl"):
        self.path = path

    def log_metrics(self, metrics, step=None):
        with open(self.path, "a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")
