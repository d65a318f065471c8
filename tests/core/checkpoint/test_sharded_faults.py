"""Sharded saves that are killed, and how much memory a rank needs to load its part."""

import signal
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("poplin_ddp")

from poplin import Fabric
from poplin.checkpoint import ShardedCheckpointIO, TorchCheckpointIO, consolidate
from poplin.errors import DamagedCheckpointError
from poplin.testing.ranks import run_ranks

from .sharding import differing, make, reference, values

pytestmark = pytest.mark.slow

BESIDE = Path(__file__).parent
KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[2])
import torch
import poplin.checkpoint.sharded_save as sharded_save
from sharding import MeshStrategy, make, step
from poplin import Fabric

folder, where = sys.argv[1], sys.argv[3]
fabric = Fabric(accelerator="cpu", devices=2, strategy=MeshStrategy("rows"))
fabric.launch()
model, optimizer = fabric.setup(*make())
step(model, optimizer)
state = {"model": model, "optimizer": optimizer, "step": 7}
fabric.save(f"{folder}/first", state)
fabric.save(f"{folder}/same", state)
step(model, optimizer, 1)
original, count = getattr(sharded_save, where), 0


def dies(*args):
    global count
    count += 1
    if count == 3 or where == "dcp_metadata":
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*args)


if fabric.global_rank == (0 if where == "dcp_metadata" else 1):
    setattr(sharded_save, where, dies)
path = f"{folder}/{sys.argv[4]}"
if sys.argv[5] == "async":
    fabric.save_async(path, state).wait()
else:
    fabric.save(path, state)
"""


@pytest.mark.parametrize(
    ("where", "name", "how"), [("write_item", "second", "sync"), ("dcp_metadata", "same", "async")]
)
def test_a_save_that_is_killed(tmp_path, where, name, how):
    """A rank gets SIGKILL while it writes; or rank 0 does in the commit, over an older checkpoint."""
    args = [str(tmp_path), str(BESIDE), where, name, how]
    ranks = run_ranks(KILLED, 2, args=args, env={"OMP_NUM_THREADS": "1"}, expect_failure=True)
    victim = 0 if where == "dcp_metadata" else 1
    assert ranks[victim]["exit"] == -signal.SIGKILL
    assert "CollectiveError" in ranks[1 - victim]["output"]
    assert "lost each other in saving" in ranks[1 - victim]["output"]
    sharded = ShardedCheckpointIO()
    for path in {"first", name} - {"second"}:  # what stood there before still stands
        with Fabric(accelerator="cpu", devices=1) as fabric:
            model, optimizer = fabric.setup(*make(3))
            fabric.load(tmp_path / path, {"model": model, "optimizer": optimizer, "step": 0})
        assert differing(values(model, optimizer), reference()) == []
    if name == "second":
        with pytest.raises(DamagedCheckpointError, match="second is incomplete: a save into it has begun"):
            sharded.load_checkpoint(tmp_path / "second")
        sharded.save_checkpoint({"step": 8}, tmp_path / "second")
        assert sharded.load_checkpoint(tmp_path / "second") == {"step": 8}


MEMORY = """
import ctypes, os, sys, threading
sys.path.insert(0, sys.argv[2])
import torch
from torch import nn
from sharding import MeshStrategy, full
from poplin import Fabric
from poplin.testing import report

torch.set_num_threads(1)
folder = sys.argv[1]
world = int(os.environ["WORLD_SIZE"])


def anonymous():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


class Peak:
    def __enter__(self):
        self.before = self.most = anonymous()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self):
        while not self.done.wait(0.005):
            self.most = max(self.most, anonymous())

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        self.most = max(self.most, anonymous())
        self.grown = self.most - self.before


seen = {}
with Fabric(accelerator="cpu", devices=world, strategy=MeshStrategy("rows")) as fabric:
    fabric.launch()
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(8)])
    model = fabric.setup(model)
    fabric.load(f"{folder}/folder", {"model": model})  # everything is imported and set up
    for name, load in {
        "folder": lambda: fabric.load(f"{folder}/folder", {"model": model}),
        "file": lambda: fabric.load_raw(f"{folder}/weights.pt", model),
        "safetensors": lambda: fabric.load_raw(f"{folder}/weights.safetensors", model),
    }.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.to_local().zero_()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        with Peak() as peak:
            load()
        seen[name] = peak.grown
        seen[name + " is right"] = [full(p).double().sum().item() for p in model.parameters()]
    fabric.barrier()
report(seen)
"""


def test_a_rank_needs_memory_for_its_part_only(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(2048, 2048, bias=False) for _ in range(8)])
    sums = [parameter.double().sum().item() for parameter in model.parameters()]
    whole = sum(parameter.numel() * 4 for parameter in model.parameters())  # 134 MB
    ShardedCheckpointIO().save_checkpoint({"model": dict(model.state_dict())}, tmp_path / "folder")
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    consolidate(tmp_path / "folder", tmp_path / "weights.safetensors", key="model")
    assert TorchCheckpointIO.recognises(tmp_path / "weights.safetensors")
    grown = {}
    for world_size in (2, 4):
        args = [str(tmp_path), str(BESIDE)]
        ranks = run_ranks(MEMORY, world_size, args=args, env={"OMP_NUM_THREADS": "1"}, timeout=120)
        for kind in ("folder", "file", "safetensors"):
            assert all(torch.allclose(torch.tensor(rank[f"{kind} is right"]), torch.tensor(sums)) for rank in ranks)
            grown[kind, world_size] = max(rank[kind] for rank in ranks) / whole
    print({f"{kind} on {size} ranks": round(share, 2) for (kind, size), share in grown.items()})
    for kind in ("folder", "file", "safetensors"):
        assert grown[kind, 2] < 0.5 + 0.25  # its part, and what is read at once
        assert grown[kind, 4] < 0.25 + 0.25
        assert grown[kind, 4] < grown[kind, 2]
