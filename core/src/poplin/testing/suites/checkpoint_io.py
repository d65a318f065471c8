"""The suite for checkpoint IOs.

How to use it::

    from poplin.testing import CheckpointIOCompliance

    class TestAcme(CheckpointIOCompliance):
        name = "acme"                 # or: def create(self): return AcmeCheckpointIO(...)
        plain_values = False          # where the format holds tensors only
        suffix = ".acme"              # of the paths of the checks

``sharded`` is read: a format that takes each rank's part is written through a Fabric of one process. Writes are cut
off for real: the process is killed at a size limit, in the middle of the file.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poplin import Fabric
from poplin.errors import CheckpointError, CheckpointNotFoundError, DamagedCheckpointError, PoplinError
from poplin.strategies import ParallelStrategy
from poplin.testing.case import Case, error_or_none
from poplin.testing.checks import SEVERAL, requirement
from poplin.testing.suites.extension import Common

#: Bytes that a process may write to one file before it is killed.
_CUT = 64 * 1024


class CheckpointIOCompliance(Common):
    """What every checkpoint IO must do: keep values, be whole or not there, name what is damaged, execute nothing."""

    kind = "checkpoint_ios"
    ranks_exist = True
    #: Whether it keeps plain values (numbers, strings, nested lists) besides tensors.
    plain_values: bool = True
    #: End of the paths in the checks.
    suffix: str = ""

    def state(self, scale: float = 1.0) -> dict[str, Any]:
        """A state to be saved: an object's state dict, and plain values if the format keeps them."""
        tensors = {
            "weight": torch.arange(6, dtype=torch.float32).reshape(2, 3) * scale,
            "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16) * scale,
            "count": torch.tensor(7),
            "mask": torch.tensor([True, False]),
            "empty": torch.zeros(0, 4),
            "view": (torch.arange(12, dtype=torch.float64).reshape(3, 4) * scale).t(),
        }
        plain = {"step": 3, "lr": 0.5, "name": "ünï", "nested": {"list": [1, 2.5, None, True]}}
        return {"model": tensors} | (plain if self.plain_values else {})

    def _io(self, case: Case) -> tuple[Any, Callable[[dict[str, Any], Path], None], Callable[[Path], dict[str, Any]]]:
        """The IO bound to a run, and how a state is written by it and read."""
        io = self.create()
        fabric = case.use(
            Fabric(accelerator="cpu", strategy=ParallelStrategy(timeout=30), devices=case.world_size, plugins=[io])
        )
        strategy = fabric.strategy
        return io, lambda state, path: strategy.save_checkpoint(path, state), io.load_checkpoint

    @requirement("CheckpointIO.load_checkpoint")
    def test_what_was_saved_comes_back(self, case: Case) -> None:
        """Tensors of every dtype and shape, views and empty ones, come back with their values, and plain values too."""
        _, save, load = self._io(case)
        path = self._path(case)
        save(self.state(), path)
        self._expect_state(case, load(path), self.state())

    @requirement("CheckpointIO.save_checkpoint")
    def test_saving_leaves_the_state_as_it_was(self, case: Case) -> None:
        """Neither the dictionary nor its tensors are changed by a save."""
        _, save, _ = self._io(case)
        state, same = self.state(), self.state()
        save(state, self._path(case))
        self._expect_state(case, state, same)

    @requirement("CheckpointIO.save_checkpoint")
    def test_a_later_save_replaces_an_earlier_one(self, case: Case) -> None:
        """Saving to the same path again leaves the later state, and no rubbish beside it."""
        _, save, load = self._io(case)
        path = self._path(case)
        save(self.state(), path)
        save(self.state(scale=2.0), path)
        self._expect_weight(case, load(path), 2.0)
        case.expect_equal(sorted(os.listdir(path.parent)), [path.name], "what stands in the folder")

    @requirement("CheckpointIO.save_checkpoint")
    def test_a_save_that_is_killed_leaves_what_stood_there(self, case: Case) -> None:
        """A process that dies in the middle of a save has not touched the checkpoint that stood at the path."""
        _, save, load = self._io(case)
        path, state = self._path(case), self.state()
        save(state, path)
        code = _in_child(lambda: _cut_off(lambda: save(_large(), path)))
        case.expect_equal(code, -signal.SIGXFSZ, "exit code of the process that was killed in a save")
        error = error_or_none(lambda: self._expect_weight(case, load(path)))
        case.expect(error is None, "the checkpoint that stood there, whole", error)

    @requirement("CheckpointIO.load_checkpoint")
    def test_a_save_that_was_killed_is_not_taken_for_whole(self, case: Case) -> None:
        """What a killed save leaves at a new path is nothing, or is refused as damaged."""
        _, save, load = self._io(case)
        path = self._path(case)
        _in_child(lambda: _cut_off(lambda: save(_large(), path)))
        case.expect_error(
            (CheckpointNotFoundError, DamagedCheckpointError), lambda: load(path), "for what a killed save has left"
        )

    @requirement("CheckpointIO.save_checkpoint")
    def test_a_full_disk_is_an_error_and_leaves_what_stood_there(self, case: Case) -> None:
        """Where the disk is full a CheckpointError is raised, and the checkpoint at the path still stands."""
        _, save, load = self._io(case)
        path, state = self._path(case), self.state()
        save(state, path)
        code = _in_child(lambda: _on_full_disk(lambda: save(_large(), path)))
        case.expect_equal(code, 0, "0, for a CheckpointError where the disk is full (1: none, 2: another error)")
        error = error_or_none(lambda: self._expect_weight(case, load(path)))
        case.expect(error is None, "the checkpoint that stood there, whole", error)

    @requirement("CheckpointIO.load_checkpoint")
    def test_a_checkpoint_that_lost_a_part_is_refused(self, case: Case) -> None:
        """With any of its files cut off in the middle, a checkpoint is a DamagedCheckpointError, or it is read right.

        (A file that is there for other readers may be cut off without harm.)
        """
        _, save, load = self._io(case)
        path = self._path(case)
        save(self.state(), path)
        for file in _files(path):
            kept = file.read_bytes()
            file.write_bytes(kept[: len(kept) // 2])
            self._expect_refused_or_right(case, DamagedCheckpointError, lambda: load(path), f"with {file.name} cut off")
            file.write_bytes(kept)
        self._expect_weight(case, load(path))

    @requirement("CheckpointIO.load_checkpoint")
    def test_nothing_there_is_an_error_of_its_own(self, case: Case) -> None:
        """A path where nothing stands is a CheckpointNotFoundError, which is a FileNotFoundError."""
        _, _, load = self._io(case)
        case.expect_error(CheckpointNotFoundError, lambda: load(self._path(case)), "where nothing stands")

    @requirement("CheckpointIO.load_checkpoint")
    def test_reading_executes_nothing(self, case: Case) -> None:
        """A pickle that would run code, in the place of any of its files, is refused and does not run."""
        _, save, load = self._io(case)
        path = self._path(case)
        save(self.state(), path)
        mark = case.folder / "executed"
        for file in _files(path):
            kept = file.read_bytes()
            file.write_bytes(pickle.dumps(_Touch(str(mark))))
            what = f"with a pickle that runs code as {file.name}"
            self._expect_refused_or_right(case, PoplinError, lambda: load(path), what)
            case.expect(not mark.exists(), "nothing in a checkpoint is executed", f"{file.name} ran code")
            file.write_bytes(kept)

    @requirement("CheckpointIO.recognises")
    def test_it_recognises_its_own_and_nothing_else(self, case: Case) -> None:
        """``recognises`` is True for what it wrote, and False, without an error, for anything else."""
        io, save, _ = self._io(case)
        path = self._path(case)
        save(self.state(), path)
        if not io.recognises(path):
            case.not_claimed("recognises() says no to its own: it does not take part in choosing a reader")
        text, folder = case.folder / "text", case.folder / "folder"
        text.write_text("no checkpoint\n")
        folder.mkdir()
        for other in (text, folder, case.folder / "absent"):
            case.expect(not io.recognises(other), f"recognises(...) is False for {other.name}", "True")

    @requirement("CheckpointIO.remove_checkpoint")
    def test_removing_leaves_nothing(self, case: Case) -> None:
        """After ``remove_checkpoint`` nothing is left at the path, and its neighbours stand."""
        io, save, _ = self._io(case)
        path = self._path(case)
        neighbour = path.with_name("neighbour" + self.suffix)
        save(self.state(), path)
        save(self.state(), neighbour)
        io.remove_checkpoint(path)
        case.expect_equal(os.listdir(path.parent), [neighbour.name], "what stands in the folder")

    @requirement("CheckpointIO.save_checkpoint")
    def test_missing_folders_are_made_and_a_path_may_be_a_string(self, case: Case) -> None:
        """The folders above the path are made, and the path may be a string or a ``Path``."""
        io, save, load = self._io(case)
        path = case.folder / "new" / "deep" / f"checkpoint{self.suffix}"
        save(self.state(), str(path))  # type: ignore[arg-type]
        self._expect_weight(case, load(str(path)))  # type: ignore[arg-type]
        io.teardown()

    @requirement("CheckpointIO.save_checkpoint", processes=SEVERAL)
    def test_fabric_saves_and_loads_with_it(self, case: Case) -> None:
        """``fabric.save`` and ``fabric.load`` with it bring a module and its optimizer back on every rank."""
        io = self.create()
        fabric = case.use(
            Fabric(accelerator="cpu", strategy=ParallelStrategy(timeout=30), devices=case.world_size, plugins=[io])
        )
        module, optimizer = self._trained(fabric)
        path = self._path(case)
        fabric.save(path, {"model": module, "optimizer": optimizer})
        other, its_optimizer = self._trained(fabric, 9)
        fabric.load(path, {"model": other, "optimizer": its_optimizer})
        for name, value in module.state_dict().items():
            case.expect_close(other.state_dict()[name], value, f"{name!r} as loaded", 0.0)
        moments = its_optimizer.state_dict()["state"][0]["exp_avg"]
        case.expect_close(moments, optimizer.state_dict()["state"][0]["exp_avg"], "the first moment as loaded", 0.0)

    def _trained(self, fabric: Fabric, seed: int = 0) -> tuple[Any, Any]:
        torch.manual_seed(seed)
        module = torch.nn.Linear(3, 2)
        wrapped, optimizer = fabric.setup(module, torch.optim.AdamW(module.parameters(), lr=0.1))
        fabric.backward(wrapped(torch.ones(1, 3)).sum())
        optimizer.step()
        return wrapped, optimizer

    def _path(self, case: Case) -> Path:
        folder = case.folder / "checkpoints"
        folder.mkdir(exist_ok=True)
        return folder / f"checkpoint{self.suffix}"

    def _expect_refused_or_right(self, case: Case, kind: type[Exception], load: Callable[[], Any], what: str) -> None:
        try:
            found = load()
        except kind:
            return
        except Exception as error:
            case.expect(False, f"{what}: {kind.__name__}", f"{type(error).__name__}: {error}")
        self._expect_weight(case, found)

    def _expect_weight(self, case: Case, found: Any, scale: float = 1.0) -> None:
        """One tensor stands for all: another check looks at each."""
        weight = found.get("model", {}).get("weight")
        case.expect(isinstance(weight, Tensor), "the tensor 'weight' of 'model'", sorted(found))
        case.expect_close(weight, self.state(scale)["model"]["weight"], "its values", 0.0)

    def _expect_state(self, case: Case, found: Any, expected: dict[str, Any]) -> None:
        case.expect_equal(sorted(found), sorted(expected), "the keys of the state")
        for key, wanted in expected.items():
            if key != "model":
                case.expect_equal(found[key], wanted, f"the plain value {key!r}")
        case.expect_equal(sorted(found["model"]), sorted(expected["model"]), "the names in 'model'")
        for name, tensor in expected["model"].items():
            value = found["model"][name]
            case.expect(isinstance(value, Tensor), f"a tensor as {name!r}", type(value).__name__)
            case.expect_equal(value.dtype, tensor.dtype, f"dtype of {name!r}")
            case.expect_close(value, tensor, f"values of {name!r}", 0.0)


class _Touch:
    """Runs code when it is unpickled."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self._path, "w")


def _large() -> dict[str, Any]:
    return {"model": {"weight": torch.randn(64 * _CUT)}}


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def _in_child(action: Callable[[], int]) -> int:
    """Run ``action`` in a forked process.

    Returns:
        Its exit code, negative for a signal.
    """
    pid = os.fork()
    if pid == 0:
        code = 2
        try:
            code = action()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _cut_off(save: Callable[[], None]) -> int:
    """Be killed by the system in the middle of writing a file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (_CUT, resource.RLIM_INFINITY))
    save()
    return 0


def _on_full_disk(save: Callable[[], None]) -> int:
    """Save where no file may grow beyond a limit, which is an OSError as a full disk is one.

    Returns:
        0 for a CheckpointError, 1 for no error, 2 for another one.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_CUT, resource.RLIM_INFINITY))
    try:
        save()
    except CheckpointError:
        return 0
    return 1
