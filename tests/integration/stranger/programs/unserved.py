"""The device is here and Acme's package for Poplin is not. The last line is a report."""

import json

import training

from poplin import Fabric

report = {}
for key, words in {"auto": {}, "name": {"accelerator": "acme"}, "strategy": {"strategy": "acme_staged"}}.items():
    try:
        fabric = Fabric(devices=1, **words)
    except Exception as error:
        report[key] = f"{type(error).__name__}: {error}"
        continue
    model, optimizer = fabric.setup(*training.make())
    report[key] = [
        fabric.accelerator.name(),
        str(fabric.device),
        training.train(fabric, model, optimizer, training.batches()),
    ]
    fabric.close()
print("REPORT", json.dumps(report))
