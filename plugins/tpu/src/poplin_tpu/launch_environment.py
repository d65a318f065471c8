"""What processes of TorchTPU must find in their environment, decided once before any of them starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from poplin.errors import LaunchError

#: Where the ranks meet. TorchTPU keeps it where it is set already, as it does every other.
ADDRESSES = "TORCH_TPU_SLICEBUILDER_ADDRESSES"
#: How long TorchTPU may take, in seconds: on several hosts it asks the devices for their places.
LIMIT_SECONDS = 300.0

#: In a process of its own: the call changes the environment for good, and may claim the chips for a while.
_PROGRAM = """
import json, os, sys
import torch
before = dict(os.environ)
torch.tpu.distributed.set_tpu_launch_env(**json.loads(sys.argv[1]))
found = {name: value for name, value in os.environ.items() if before.get(name) != value}
print("VARIABLES", json.dumps(found))
"""


def is_prepared() -> bool:
    """Whether somebody has set them."""
    return bool(os.environ.get(ADDRESSES))


def variables(num_devices: int, num_nodes: int) -> dict[str, str]:
    """TorchTPU's own variables for a launch, those that are set already left out.

    Args:
        num_devices: processes of this node.
        num_nodes: nodes of the run.

    Raises:
        LaunchError: TorchTPU can't tell them, or does not within :data:`LIMIT_SECONDS`.
    """
    options = {"nproc_per_node": num_devices} | ({"nnodes": num_nodes} if num_nodes > 1 else {})
    command = [sys.executable, "-c", _PROGRAM, json.dumps(options)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LaunchError(
            f"TorchTPU's set_tpu_launch_env() did not end within {LIMIT_SECONDS:g} s. Set {ADDRESSES} and the "
            "variables beside it by hand, or look at what holds the chips."
        ) from None
    lines = [line for line in done.stdout.splitlines() if line.startswith("VARIABLES ")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise LaunchError(
            f"TorchTPU's set_tpu_launch_env(), which says how its processes find each other, failed: {last}. Set "
            f"{ADDRESSES} and the variables beside it by hand, or mend what it says."
        )
    found: dict[str, str] = json.loads(lines[-1].removeprefix("VARIABLES "))
    return {name: value for name, value in found.items() if name.startswith(("TORCH_TPU_", "TPU_"))}
