"""Checkpoint IOs with one planted fault each: the check that names it fails, and no other."""

import os
import pickle
import threading
from pathlib import Path

import pytest
import torch

from poplin.checkpoint import CheckpointIO, TorchCheckpointIO
from poplin.errors import CheckpointError, CheckpointNotFoundError, DamagedCheckpointError
from poplin.testing import CheckpointIOCompliance, run_suite


class Suite(CheckpointIOCompliance):
    slow = True  # those that are not are run with the ordinary tests
    io = TorchCheckpointIO

    def create(self):
        return self.io()


class Sound(Suite):
    slow = False
    finds = None


class NotOfItsKind(Suite):
    finds = "it is made without arguments and is of its kind"
    made = TorchCheckpointIO()

    def create(self):
        return type(self).made


class NotSendable(Suite):
    finds = "it can be sent to another process before use"

    class io(TorchCheckpointIO):
        def __init__(self):
            self.lock = threading.Lock()


class OtherArguments(Suite):
    finds = "its members take what the interface says"

    class io(TorchCheckpointIO):
        def prepare_save(self, checkpoint, path, options=None):
            return None


class TeardownNeedsUse(Suite):
    finds = "teardown needs no use"

    class io(TorchCheckpointIO):
        bound = False

        def bind(self, selection):
            self.bound = True

        def teardown(self):
            if not self.bound:
                raise RuntimeError("it was never bound")


class LosesDtypes(Suite):
    finds = "what was saved comes back"

    class io(TorchCheckpointIO):
        def load_checkpoint(self, path, map_location=None, weights_only=None):
            state = super().load_checkpoint(path, map_location, weights_only)
            if "half" in state["model"]:
                state["model"]["half"] = state["model"]["half"].float()
            return state


class ChangesTheState(Suite):
    finds = "saving leaves the state as it was"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            super().save_checkpoint(checkpoint, path, storage_options)
            checkpoint["path"] = str(path)


class LeavesRubbish(Suite):
    finds = "a later save replaces an earlier one"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            if os.path.exists(path):
                Path(f"{path}.old").write_bytes(Path(path).read_bytes())
            super().save_checkpoint(checkpoint, path, storage_options)


class WritesInPlace(Suite):
    slow = False
    finds = "a save that is killed leaves what stood there"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            before = Path(path).read_bytes() if os.path.isfile(path) else None
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            try:
                torch.save(checkpoint, path)
            except Exception as error:
                if before is not None:
                    Path(path).write_bytes(before[:60_000])
                raise CheckpointError("no room") from error


class FullDiskIsBare(Suite):
    finds = "a full disk is an error and leaves what stood there"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            try:
                super().save_checkpoint(checkpoint, path, storage_options)
            except CheckpointError as error:
                raise OSError("no room") from error


class Unchecked(Suite):
    """Reads half a file as if it were whole: whatever cut it off."""

    finds = "a checkpoint that lost a part is refused", "a save that was killed is not taken for whole"

    class io(CheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            partial = Path(f"{path}.partial") if os.path.exists(path) else Path(path)
            try:
                torch.save(checkpoint, partial)
                partial.replace(path)
            except Exception as error:
                partial.unlink()
                raise CheckpointError("no room") from error

        def load_checkpoint(self, path, map_location=None, weights_only=None):
            if not os.path.exists(path):
                raise CheckpointNotFoundError(f"nothing at {path}")
            try:
                return torch.load(path, weights_only=True)
            except pickle.UnpicklingError as error:
                raise DamagedCheckpointError("unsafe") from error
            except RuntimeError:
                return {"model": {"weight": torch.zeros(1)}}

        def remove_checkpoint(self, path):
            os.remove(path)


class AbsentIsBare(Suite):
    finds = "nothing there is an error of its own"

    class io(TorchCheckpointIO):
        def load_checkpoint(self, path, map_location=None, weights_only=None):
            if not os.path.exists(path) and not Path(path).parent.joinpath("killed").exists():
                raise CheckpointError("no such file") if "nothing_there" in str(path) else CheckpointNotFoundError("")
            return super().load_checkpoint(path, map_location, weights_only)


class Executes(Suite):
    slow = False
    finds = "reading executes nothing"

    class io(TorchCheckpointIO):
        def load_checkpoint(self, path, map_location=None, weights_only=None):
            return super().load_checkpoint(path, map_location, weights_only=False)


class RecognisesAnything(Suite):
    finds = "it recognises its own and nothing else"

    class io(TorchCheckpointIO):
        @classmethod
        def recognises(cls, path):
            return True


class RemovesNothing(Suite):
    finds = "removing leaves nothing"

    class io(TorchCheckpointIO):
        def remove_checkpoint(self, path):
            pass


class MakesNoFolders(Suite):
    finds = "missing folders are made and a path may be a string"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            if not Path(path).parent.is_dir():
                raise CheckpointError("no such folder")
            super().save_checkpoint(checkpoint, path, storage_options)


class LosesOptimizers(Suite):
    finds = "fabric saves and loads with it"

    class io(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint, path, storage_options=None):
            kept = {key: value for key, value in checkpoint.items() if key != "optimizer"}
            super().save_checkpoint(kept, path, storage_options)


FAULTS = [one for one in vars().values() if isinstance(one, type) and issubclass(one, Suite) and one is not Suite]


def finds(suite):
    return {suite.finds} if isinstance(suite.finds, str) else set(suite.finds or ())


@pytest.mark.parametrize(
    "suite", [pytest.param(one, id=one.__name__, marks=[pytest.mark.slow] * one.slow) for one in FAULTS]
)
def test_the_check_that_names_the_fault_fails_and_no_other(suite):
    failed = {outcome.check: outcome.message for outcome in run_suite(suite) if outcome.status == "failed"}
    assert set(failed) == finds(suite), "\n".join(failed.values())


def test_every_check_of_checkpoint_ios_is_named_by_a_fault():
    from poplin.testing.checks import requirements

    named = set().union(*map(finds, FAULTS))
    assert {one.title for one in requirements(CheckpointIOCompliance)} == named
