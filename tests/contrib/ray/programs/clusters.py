"""A Ray cluster of two nodes on this machine, which the launcher finds and leaves; what came of each case, as JSON."""

import json
import os
import sys
import time

import ray
import torch
from ray.cluster_utils import Cluster

from poplin import Fabric
from poplin_ray import RayLauncher


class OfTheScript(LookupError):
    """Known to this script only."""


def work(fabric, fails=False):
    total = fabric.all_reduce(torch.tensor(float(fabric.global_rank + 1)), reduce_op="sum")
    if fails and fabric.global_rank == 1:
        raise OfTheScript("on purpose", {"of": "rank 1"})
    return {
        "rank": fabric.global_rank,
        "size": fabric.world_size,
        "node": fabric.node_rank,
        "total": float(total),
        "variable": os.environ.get("OF_THE_LAUNCHER"),
        "others": [int(one) for one in fabric.all_gather(torch.tensor(fabric.node_rank))],
    }


def error_of(function):
    try:
        function()
    except BaseException as error:
        return {
            "class": type(error).__name__,
            "text": str(error),
            "args": repr(error.args),
            "cause": str(error.__cause__),
        }
    return None


def launched(launcher, *args, devices=1, num_nodes=2):
    with Fabric(accelerator="cpu", devices=devices, num_nodes=num_nodes, strategy="ddp", plugins=launcher) as fabric:
        return fabric.launch(work, *args)


def main():
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    told = {}
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        free = ray.available_resources()["CPU"]
        told["two nodes"] = launched(RayLauncher(env_vars={"OF_THE_LAUNCHER": "yes"}))
        told["failing"] = error_of(lambda: launched(RayLauncher(), True))
        told["no room"] = error_of(lambda: launched(RayLauncher(timeout=3), devices=4))
        told["still connected"] = ray.is_initialized()
        actors = ray.util.list_named_actors(all_namespaces=True)
        told["actors"] = len(actors)
        for _ in range(100):
            if ray.available_resources().get("CPU") == free:
                break
            time.sleep(0.1)
        told["free again"] = ray.available_resources().get("CPU") == free
    finally:
        ray.shutdown()
        cluster.shutdown()
    with open(sys.argv[1], "w") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
