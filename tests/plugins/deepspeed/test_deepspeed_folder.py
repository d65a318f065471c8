"""ZeRO folders without DeepSpeed: read, damaged, hostile, replaced. The files are made here as DeepSpeed makes them."""

import json
import math
import shutil
from collections import OrderedDict

import pytest
import torch
from torch.distributed import HashStore

from poplin.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    DamagedCheckpointError,
    UnsafeCheckpointError,
    UsageError,
)
from poplin_deepspeed import folder, saving, scaling
from poplin_deepspeed.capturing import Captured, Slot
from poplin_deepspeed.checkpoint import DeepSpeedCheckpointIO

WORLD = 2
IO = DeepSpeedCheckpointIO()
WEIGHTS = {
    "a.weight": torch.arange(15.0).reshape(5, 3),
    "a.bias": torch.arange(5.0),
    "b.weight": torch.full((1, 5), 7.0),
}
FROZEN = {"c.weight": torch.arange(7.0)}
BUFFERS = {"seen": torch.tensor([1, 2])}
GROUPS = [["a.weight", "a.bias"], ["b.weight"]]
STATE = {name: value * 10 for name, value in WEIGHTS.items()}


def padded(value, multiple):
    flat = value.reshape(-1)
    return torch.cat([flat, flat.new_zeros(-flat.numel() % multiple)])


def flats(values, stage):
    """What each rank holds of each group."""
    ranks = [[] for _ in range(WORLD)]
    for group in GROUPS:
        if stage == 3:
            parts = [padded(values[name], WORLD).chunk(WORLD) for name in group]
            for rank in range(WORLD):
                ranks[rank].append(torch.cat([part[rank] for part in parts]))
        else:
            flat = padded(torch.cat([values[name].reshape(-1) for name in group]), 2 * WORLD)
            for rank, part in enumerate(flat.chunk(WORLD)):
                ranks[rank].append(part.clone())
    return ranks


def zero_files(stage):
    """File name → content, as ``engine.save_checkpoint`` writes it."""
    files = {}
    shapes = [OrderedDict((name, WEIGHTS[name].shape) for name in group) for group in GROUPS]
    weights, moments = flats(WEIGHTS, stage), flats(STATE, stage)
    for rank in range(WORLD):
        states = {index: {"step": torch.tensor(3.0), "exp_avg": flat} for index, flat in enumerate(moments[rank])}
        raw = {"state": states, "param_groups": [{"lr": 0.1 * (i + 1), "params": [i]} for i in range(len(GROUPS))]}
        own = {"zero_stage": stage, "partition_count": WORLD if stage == 3 else [WORLD] * len(GROUPS)}
        if stage == 3:
            own |= {"fp32_flat_groups": weights[rank], "optimizer_state_dict": raw}
        else:
            unpadded = []
            for flat, group in zip(weights[rank], GROUPS, strict=True):
                total = sum(WEIGHTS[name].numel() for name in group)
                unpadded.append(flat[: total - rank * flat.numel()] if rank == WORLD - 1 else flat)
            own |= {"single_partition_of_fp32_groups": unpadded, "base_optimizer_state": raw}
        files[f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"] = {"optimizer_state_dict": own}
    for rank in range(WORLD if stage == 3 else 1):
        empty = {name: torch.empty(0) for name in (*WEIGHTS, *FROZEN)}
        module = {**(empty if stage == 3 else {**WEIGHTS, **FROZEN}), "d.weight": torch.empty(0), **BUFFERS}
        fragments = {name: padded(value, WORLD).chunk(WORLD)[rank] for name, value in FROZEN.items()}
        model = {
            "module": module,
            "buffer_names": list(BUFFERS),
            "param_shapes": shapes,
            "shared_params": {"d.weight": "a.weight"},
            "frozen_param_shapes": {name: value.shape for name, value in FROZEN.items()} if stage > 1 else None,
            "frozen_param_fragments": (fragments if stage == 3 else FROZEN) if stage > 1 else None,
            "global_steps": 3,
            "epoch": 4,
        }
        files[f"{f'zero_pp_rank_{rank}_' if stage == 3 else ''}mp_rank_00_model_states.pt"] = model
    return files


def written_by_deepspeed(path, stage, tag="global_step3", zipped=False):
    (path / tag).mkdir(parents=True)
    for name, content in zero_files(stage).items():
        torch.save(content, path / tag / name, _use_new_zipfile_serialization=zipped)
    (path / "latest").write_text(tag)
    return path


def captured(stage, rank, tag="step3-0123abcd"):
    tensors = []

    def slots(value):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            return Slot(len(tensors) - 1)
        if isinstance(value, dict):
            return type(value)((key, slots(item)) for key, item in value.items())
        return [slots(item) for item in value] if type(value) is list else value

    own = [name for name in zero_files(stage) if f"rank_{rank}_" in name or (rank == 0 and name.startswith("mp_"))]
    files = {name: slots(zero_files(stage)[name]) for name in own}
    return Captured(tag, "0", files, tensors, GROUPS)


def save(path, stage=2, tag="step3-0123abcd", store=None, ranks=(1, 0), step=3, timeout=5.0):
    """One save by all ranks, one after the other."""
    store = store or HashStore()
    for rank in ranks:
        one = captured(stage, rank, tag)
        state = {"model": one.marker(), "optimizer": {"poplin-deepspeed optimizer": "0"}}
        state |= {"step": step} if rank == 0 else {}
        saving.write(path, state, {tag: one}, saving.Ranks(rank, WORLD, store, timeout))
    return path


def check(content):
    model = content["model"]
    assert list(model) == [*WEIGHTS, *FROZEN, "d.weight", *BUFFERS]
    for name, value in {**WEIGHTS, **FROZEN, **BUFFERS, "d.weight": WEIGHTS["a.weight"]}.items():
        assert torch.equal(model[name], value), name
    state = content["optimizer"]
    assert set(state["state"]) == set(WEIGHTS)
    for name, value in STATE.items():
        assert torch.equal(state["state"][name]["exp_avg"], value)
        assert state["state"][name]["step"] == 3
    assert [group["params"] for group in state["param_groups"]] == GROUPS
    assert [group["lr"] for group in state["param_groups"]] == [0.1, 0.2]


# --- reading


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_deepspeed_alone_wrote(tmp_path, stage, zipped):
    written_by_deepspeed(tmp_path / "x", stage, zipped=zipped)
    assert IO.recognises(tmp_path / "x")
    content = IO.load_checkpoint(tmp_path / "x")
    check(content)
    assert content["epoch"] == 4
    assert set(content) == {"model", "optimizer", "epoch"}


@pytest.mark.parametrize("stage", [2, 3])
def test_what_we_wrote(tmp_path, stage):
    content = IO.load_checkpoint(save(tmp_path / "x", stage))
    check(content)
    assert content["step"] == 3
    assert (tmp_path / "x" / "latest").read_text() == "step3-0123abcd"


def test_lightnings_folders_and_a_tag_itself_are_recognised(tmp_path):
    written_by_deepspeed(tmp_path / "x", 2, tag="checkpoint")
    (tmp_path / "x" / "latest").unlink()
    check(IO.load_checkpoint(tmp_path / "x"))
    check(IO.load_checkpoint(tmp_path / "x" / "checkpoint"))


def test_what_is_not_recognised(tmp_path):
    (tmp_path / "file").write_bytes(b"PK\x03\x04")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "latest").write_text("../outside")
    for path in ("file", "folder", "nothing"):
        assert not IO.recognises(tmp_path / path)
    assert not IO.recognises("s3://bucket/x")
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint at"):
        IO.load_checkpoint(tmp_path / "nothing")
    with pytest.raises(DamagedCheckpointError, match="is a file"):
        IO.load_checkpoint(tmp_path / "file")
    with pytest.raises(DamagedCheckpointError, match="no whole checkpoint"):
        IO.load_checkpoint(tmp_path / "folder")


class Scaler:
    """DeepSpeed's scaler of float16, which computes on no CPU."""

    dynamic = True

    def __init__(self, scale=65536.0):
        self.cur_scale, self.cur_iter, self.last_overflow_iter, self.cur_hysteresis = scale, 7, 3, 2


def test_the_loss_scale_travels_with_the_optimizer():
    taken = scaling.state_of(Scaler(1024.0))
    assert taken == {
        "deepspeed_loss_scale": {"cur_scale": 1024.0, "cur_iter": 7, "last_overflow_iter": 3, "cur_hysteresis": 2}
    }
    other = Scaler()
    other.cur_iter = 0
    scaling.restore(other, {"state": {}, **taken})
    assert vars(other) == vars(Scaler(1024.0))
    scaling.restore(other, {"state": {}})
    static = Scaler()
    static.dynamic = False
    assert scaling.state_of(static) == scaling.state_of(None) == {}
    scaling.restore(static, taken)
    assert static.cur_scale == 65536.0


# --- damage


@pytest.mark.parametrize("change", ["cut", "flip", "remove", "swap"])
def test_every_damage_is_found_before_anything_is_loaded(tmp_path, change):
    path = save(tmp_path / "x")
    file = path / "step3-0123abcd" / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    content = bytearray(file.read_bytes())
    if change == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif change == "flip":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif change == "remove":
        file.unlink()
    else:
        shutil.copyfile(file.with_name("zero_pp_rank_0_mp_rank_00_optim_states.pt"), file)
    with pytest.raises(
        DamagedCheckpointError, match=f"zero_pp_rank_1.*{'missing' if change == 'remove' else 'corrupt'}"
    ):
        IO.load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(version=99), "later version"),
        (lambda m: m.update(format="another"), "its format is 'another'"),
        (lambda m: m.pop("engines"), "corrupt"),
        (lambda m: m["files"].update({"../../etc/passwd": [1, 1]}), "outside of the folder"),
    ],
)
def test_manifests_that_are_wrong(tmp_path, change, message):
    path = save(tmp_path / "x")
    manifest = json.loads((path / folder.MANIFEST).read_text())
    change(manifest)
    (path / folder.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=message):
        IO.load_checkpoint(path)
    (path / folder.MANIFEST).write_text("{")
    with pytest.raises(DamagedCheckpointError, match="corrupt"):
        IO.load_checkpoint(path)


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeeds_own_folders_that_are_incomplete(tmp_path, stage):
    path = written_by_deepspeed(tmp_path / "x", stage) / "global_step3"
    (path / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(DamagedCheckpointError, match="written by 2 processes, and holds 1 files of optimizers"):
        IO.load_checkpoint(path)
    file = path / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DamagedCheckpointError, match="is damaged"):
        IO.load_checkpoint(path)
    torch.save([1], file)
    with pytest.raises(DamagedCheckpointError, match="no ZeRO file"):
        IO.load_checkpoint(path)
    (path / "zero_pp_rank_0_mp_rank_01_optim_states.pt").touch()
    with pytest.raises(CheckpointError, match="model parallelism"):
        IO.load_checkpoint(path)


class Hostile:
    def __reduce__(self):
        return (math.factorial, (5,))


def test_nothing_in_a_folder_is_executed(tmp_path):
    path = written_by_deepspeed(tmp_path / "x", 2) / "global_step3"
    file = path / "mp_rank_00_model_states.pt"
    torch.save({**torch.load(file), "client": Hostile()}, file)
    with pytest.raises(UnsafeCheckpointError, match="weights_only=False"):
        IO.load_checkpoint(tmp_path / "x")
    assert IO.load_checkpoint(tmp_path / "x", weights_only=False)["client"] == 120


# --- writing


def test_a_save_takes_the_place_of_the_one_before(tmp_path):
    path = save(tmp_path / "x", 2)
    (path / "step2-deadbeef").mkdir()  # of a save that was cut off
    (path / "notes.txt").write_text("mine")
    save(path, 3, tag="step5-89abcdef", step=5)
    assert sorted(entry.name for entry in path.iterdir() if entry.is_dir()) == ["step5-89abcdef"]
    assert (path / "notes.txt").read_text() == "mine"
    assert IO.load_checkpoint(path)["step"] == 5
    IO.remove_checkpoint(path)
    IO.remove_checkpoint(path)
    assert not path.exists()


def test_a_save_over_the_leftovers_of_one_that_was_cut_off(tmp_path):
    (tmp_path / "x" / "step2-deadbeef").mkdir(parents=True)
    assert IO.load_checkpoint(save(tmp_path / "x"))["step"] == 3
    assert not (tmp_path / "x" / "step2-deadbeef").exists()


def test_what_stands_in_the_way_is_left_alone(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="is a file"):
        save(tmp_path / "file", ranks=(0,))
    with pytest.raises(CheckpointError, match="other things in it"):
        save(tmp_path / "folder", ranks=(0,))
    with pytest.raises(CheckpointError, match="is left alone"):
        IO.remove_checkpoint(tmp_path / "folder")
    assert [entry.name for entry in (tmp_path / "folder").iterdir()] == ["notes.txt"]


def test_a_rank_that_fails_or_never_comes_leaves_the_checkpoint_before(tmp_path):
    path = save(tmp_path / "x")
    with pytest.raises(CheckpointError, match="rank 1 was not done within 0.1 s"):
        save(path, tag="step5-89abcdef", ranks=(0,), timeout=0.1)
    store = HashStore()
    store.set("poplin-deepspeed/step5-89abcdef/1", json.dumps({"error": "OSError: no space left"}))
    with pytest.raises(CheckpointError, match="by rank 1: OSError: no space left.*still stands"):
        save(path, tag="step5-89abcdef", ranks=(0,), store=store)
    store.set("poplin-deepspeed/step5-89abcdef/1", json.dumps({"files": {"step5-89abcdef/elsewhere.pt": [9, 9]}}))
    with pytest.raises(CheckpointError, match="a file system that all machines share"):
        save(path, tag="step5-89abcdef", ranks=(0,), store=store)
    assert not (path / "step5-89abcdef").exists()
    assert IO.load_checkpoint(path)["step"] == 3


def test_a_rank_that_cannot_write_says_so_to_the_others(tmp_path):
    (tmp_path / "file").write_text("")
    store = HashStore()
    with pytest.raises(CheckpointError, match="is a file"):
        save(tmp_path / "file", ranks=(1,), store=store)
    assert "is a file" in json.loads(store.get("poplin-deepspeed/step3-0123abcd/1"))["error"]


def test_an_optimizer_without_its_module_is_refused(tmp_path):
    state = {"optimizer": {"poplin-deepspeed optimizer": "0"}}
    with pytest.raises(UsageError, match="'optimizer' and not its module"):
        saving.write(tmp_path / "x", state, {}, saving.Ranks(0, 1, HashStore(), 1.0))
    assert not (tmp_path / "x").exists()
