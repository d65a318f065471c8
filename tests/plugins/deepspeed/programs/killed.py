"""A checkpoint, training, and a second save in the middle of which one rank is killed."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import torch
from common import RANK, adamw, batches, model_of, train, weights, zero

from poplin.testing.ranks import report

FOLDER, VICTIM, MOMENT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
fabric = zero(3)
model = model_of()
optimizer = adamw(model)
model, optimizer = fabric.setup(model, optimizer)
train(fabric, model, optimizer, batches()[:2])
fabric.save(FOLDER / "last", {"model": model, "optimizer": optimizer, "step": 2})
saved = weights(fabric, model)
if RANK == 0:
    torch.save(saved, FOLDER / "saved.pt")
fabric.barrier()
train(fabric, model, optimizer, batches()[2:])
report("trained on")


def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)


if RANK == VICTIM:
    if MOMENT == "file":
        os.fsync = die  # the content of a file is written, and not yet sure to be on the disk
    else:
        os.replace = die  # all files are there, and the manifest is not
fabric.save(FOLDER / "last", {"model": model, "optimizer": optimizer, "step": 4})
report("saved")
