"""What an accelerator wants in the environment of a launch, in its ranks."""

import json
import os
import sys

import poplin
from poplin import Fabric
from poplin.accelerators import CPUAccelerator


class Wanting(CPUAccelerator):
    asked = []

    @staticmethod
    def name():
        return "wanting"

    @classmethod
    def launch_variables(cls, num_devices, num_nodes):
        cls.asked.append((num_devices, num_nodes))
        return {"WANTING_MEETS": f"at {os.getpid()}"}


poplin.register("accelerators", "wanting", Wanting)


def meets(fabric):
    return fabric.all_gather(int(os.environ["WANTING_MEETS"].removeprefix("at "))).tolist()


if __name__ == "__main__":
    results = {"here": os.getpid()}
    with Fabric(accelerator="wanting", devices=1) as fabric:
        results["one"] = os.environ.get("WANTING_MEETS")
    with Fabric(accelerator="wanting", devices=2, strategy=sys.argv[1]) as fabric:
        results["two"] = fabric.launch(meets)
        results["explain"] = fabric.explain()
        rank = fabric.global_rank
    results |= {"asked": Wanting.asked, "after": os.environ.get("WANTING_MEETS")}
    if rank == 0:
        print("REPORT " + json.dumps(results))
