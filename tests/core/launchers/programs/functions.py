"""Launches functions in new processes, case after case, and prints what came of each as one line of JSON."""

import json
import multiprocessing
import os
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist
from stand_in import ranks, selection, total, up

import poplin
from poplin.launchers import MultiProcessingLauncher
from poplin.strategies import SingleDeviceStrategy

FOLDER = sys.argv[2]


class Awkward(Exception):
    """Pickles, and can't be rebuilt."""

    def __init__(self, one, two):
        super().__init__(one)


class Registered(SingleDeviceStrategy):
    pass


def ok(environment):
    up(environment)
    return {
        "ranks": ranks(),
        "total": total(),
        "threads": torch.get_num_threads(),
        "start_method": multiprocessing.get_start_method(),
        "size": environment.world_size(),
    }


def own_class(environment):
    return Awkward.__name__, poplin.registry.find("strategies", "of_the_script").target_class().__name__


def big(environment):
    return torch.ones(20_000_000) if environment.global_rank() == 0 else None


def shared(environment, tensor, queue):
    tensor += 1 + environment.global_rank()
    queue.put(environment.global_rank())
    return tensor.tolist()


def beside(environment, other, *args):
    """Rank 1 does ``other``; rank 0 waits for it, in a collective or not."""
    try:
        up(environment)
        total()
        if environment.global_rank() == 1:
            return other(*args)
        return total()
    finally:
        leave_word(environment, "finally")
        if environment.global_rank() == 0 and dist.is_initialized():
            dist.destroy_process_group()


def asleep(environment, other, *args):
    try:
        if environment.global_rank() == 1:
            time.sleep(0.5)
            return other(*args)
        time.sleep(60)
    finally:
        leave_word(environment, "finally")


def leave_word(environment, what):
    with open(f"{FOLDER}/{what}{environment.global_rank()}", "w"):
        pass


def boom():
    raise ValueError("boom")


def awkward():
    raise Awkward(1, 2)


def kill():
    os.kill(os.getpid(), 9)


def deaf(environment):
    """Rank 0 does not end when it is told to."""
    if environment.global_rank() == 1:
        time.sleep(0.5)
        raise ValueError("boom")
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            leave_word(environment, "told")


def in_collective(environment):
    up(environment)
    if environment.global_rank() == 1:
        time.sleep(0.5)
        try:
            raise ValueError("boom")
        finally:
            leave_word(environment, "finally")
    total()


def unpicklable_result(environment):
    return lambda: None


def lingering(environment):
    threading.Thread(target=time.sleep, args=(60,)).start()
    return "done"


def early(environment, code):
    sys.exit(code)


def nested(environment):
    inner = MultiProcessingLauncher("fork")
    chosen = selection(1)
    inner.bind(chosen)
    return inner.launch(alone, chosen.environment), ranks()["RANK"]


def alone(environment):
    return [environment.global_rank(), environment.world_size(), ranks()["WORLD_SIZE"]]


CASES = {
    "ok": (ok,),
    "own_class": (own_class,),
    "big": (big,),
    "raises": (beside, boom),
    "raises_asleep": (asleep, boom),
    "awkward": (beside, awkward),
    "kill": (beside, kill),
    "os_exit": (beside, os._exit, 3),
    "os_exit_0": (asleep, os._exit, 0),
    "exit_3": (asleep, sys.exit, 3),
    "exit_0": (early, None),
    "deaf": (deaf,),
    "in_collective": (in_collective,),
    "unpicklable_result": (unpicklable_result,),
    "lingering": (lingering,),
    "nested": (nested,),
}


def run(method, case):
    before = dict(os.environ)
    launcher = MultiProcessingLauncher(method, grace=2 if case in ("deaf", "lingering") else 30)
    chosen = selection()
    launcher.bind(chosen)
    function, *args = CASES.get(case, (None,))
    told = {"case": case}
    start = time.monotonic()
    try:
        if case == "shared":
            tensor, queue = torch.zeros(2), multiprocessing.get_context(method).SimpleQueue()
            result = launcher.launch(shared, chosen.environment, tensor, queue)
            told |= {"result": result, "ours": tensor.tolist(), "queue": sorted([queue.get(), queue.get()])}
        elif case == "unpicklable":
            launcher.launch(ok, chosen.environment, {"model": [threading.Lock()]})
        elif case == "in_thread":
            results = []
            thread = threading.Thread(target=lambda: results.append(launcher.launch(ok, chosen.environment)))
            thread.start()
            thread.join()
            told["result"] = results[0]["total"]
        else:
            result = launcher.launch(function, chosen.environment, *args)
            told["result"] = list(result.shape) if isinstance(result, torch.Tensor) else result
    except BaseException as error:
        told |= {
            "error": type(error).__name__,
            "text": str(error),
            "notes": getattr(error, "__notes__", []),
            "chain": "".join(traceback.format_exception(error)),
        }
    told |= {"seconds": time.monotonic() - start, "words": sorted(os.listdir(FOLDER))}
    told["environment_restored"] = dict(os.environ) == before
    told["trace"] = chosen.trace.render()
    for name in os.listdir(FOLDER):
        os.unlink(f"{FOLDER}/{name}")
    print("RESULT " + json.dumps(told), flush=True)


if __name__ == "__main__":
    poplin.register("strategies", "of_the_script", Registered)
    for case in sys.argv[3:]:
        run(sys.argv[1], case)
