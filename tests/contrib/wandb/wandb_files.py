"""What else of wandb's offline file the tests look at."""

import json

from poplin_wandb.offline import records


def config(path):
    """The hyperparameters: what was updated last counts."""
    found = {}
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind in ("config", "run"):
            updates = record.config.update if kind == "config" else record.run.config.update
            for item in updates:
                found[item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
    return found


def run_of(path):
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")
