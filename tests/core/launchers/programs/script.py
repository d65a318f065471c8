"""A script that its launcher runs again for the second rank. The first argument says what happens in it."""

import json
import os
import signal
import sys
import time

import torch.distributed as dist
from stand_in import ranks, selection, total, up

from poplin.launchers import SubprocessLauncher


class Run:
    """What Fabric does around a launcher."""

    def __init__(self, devices=2):
        self.launcher = SubprocessLauncher(grace=3)
        self.selection = selection(devices)
        self.launcher.bind(self.selection)
        self.environment = self.selection.environment

    def launch(self, function=lambda run: None, *args):
        if self.selection.external:
            return self.work(function, *args)
        return self.launcher.launch(self.work, function, *args)

    def work(self, function, *args):
        up(self.environment)
        return function(self, *args)

    def close(self):
        if dist.is_initialized():
            dist.destroy_process_group()
        self.launcher.teardown()
        self.environment.teardown()


def say(*words):
    print(*words, flush=True)


def handlers():
    return [str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]


def misbehave(run, culprit, how):
    rank = run.environment.global_rank()
    try:
        total()
        if rank == culprit:
            if how == "raises":
                raise ValueError("boom")
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        say(f"up{rank}")
        time.sleep(60)
    finally:
        say(f"finally{rank}")


def one_after_the_other():
    """Two processes, then one in each, then the two again, then three."""
    before = dict(os.environ), handlers()
    told = {}

    def look(run):
        return {"ranks": ranks(), "total": total(), "size": run.environment.world_size()}

    for name, devices in (("two", 2), ("one", 1), ("two_again", 2)):
        run = Run(devices)
        told[name] = run.launch(look)
        run.close()
        told[name]["restored"] = before == (dict(os.environ), handlers())
    try:
        Run(3)
    except Exception as error:
        told["three"] = f"{type(error).__name__}: {error}"
    with open(f"{sys.argv[2]}.{told['two']['ranks']['RANK']}", "w") as file:
        json.dump(told, file)


def main(what):
    if what == "one_after_the_other":
        one_after_the_other()
        return
    run = Run()
    if what == "function":
        run.launch(misbehave, int(sys.argv[2]), sys.argv[3])
    elif what == "script":
        run.launch()
        misbehave(run, int(sys.argv[2]), sys.argv[3])
    elif what == "late":
        run.launch()
        rank = run.environment.global_rank()
        run.close()
        if rank == 1:
            time.sleep(0.5)
            raise ValueError("boom")
    elif what == "hello":
        say(
            "hello",
            run.launch(lambda run: run.environment.global_rank()),
            sys.argv[1:],
            os.getcwd(),
            sys.flags.dont_write_bytecode,
        )
    elif what == "exits":
        run.launch()
        sys.exit(int(sys.argv[2]))


if __name__ == "__main__":
    main(sys.argv[1])
