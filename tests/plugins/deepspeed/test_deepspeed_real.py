"""The real DeepSpeed on two gloo processes. The programs do the work; here is what must come of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from poplin.testing.ranks import run_ranks
from poplin_deepspeed.checkpoint import DeepSpeedCheckpointIO

pytestmark = [pytest.mark.extras, pytest.mark.timeout(1000)]

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parents[3]
#: float32: another order of additions. bfloat16: DDP steps other weights, or rounds them at every step.
TOLERANCE = {"32-true": 1e-6, "bf16-mixed": 2e-3, "bf16-true": 2e-2}
CPU_ADAM = 2e-6  # computes the same formula in another order


@pytest.fixture(scope="session")
def extensions(tmp_path_factory):
    """A folder of our own for extensions, with DeepSpeedCPUAdam in it, built in one step. (Or the caller's folder.)"""
    folder = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or tmp_path_factory.mktemp("extensions"))
    done = subprocess.run(
        [sys.executable, "-m", "poplin_deepspeed.extensions", "cpu_adam"],
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == f"ready: cpu_adam (in {folder})"
    return folder


def run(program, folder, *args, **options):
    environment = {"TORCH_EXTENSIONS_DIR": str(options.pop("extensions", folder / "extensions"))}
    return run_ranks(PROGRAMS / program, args=[str(folder), *args], env=environment, timeout=400, **options)


def whole(cases):
    for name, found in cases.items():
        assert "FAILED" not in str(found), f"{name}: {found}"
    return cases


# --- training


@pytest.fixture(scope="module")
def trained(extensions, tmp_path_factory):
    return [whole(result) for result in run("training.py", tmp_path_factory.mktemp("training"), extensions=extensions)]


def distances(found):
    return [value for name, value in found.items() if "micro batches" in name]


@pytest.mark.parametrize("precision", TOLERANCE)
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_training_equals_ddp_with_accumulation_and_clipping(trained, stage, precision):
    for result in trained:
        found = distances(result[f"stage {stage} {precision}"])
        assert len(found) == 3
        assert max(found) <= TOLERANCE[precision]
        dtype = "torch.float32" if precision == "32-true" else "torch.bfloat16"
        assert result[f"stage {stage} {precision}"]["dtype"] == dtype


def test_offload_and_deepspeeds_own_optimizer_equal_ddp(trained):
    for result in trained:
        for stage in (2, 3):
            assert max(distances(result[f"stage {stage} offload AdamW"])) <= TOLERANCE["32-true"]
            assert max(distances(result[f"stage {stage} offload DeepSpeedCPUAdam"])) <= CPU_ADAM
        assert max(distances(result["stage 1 DeepSpeedCPUAdam"])) <= TOLERANCE["bf16-mixed"]


def test_a_resumed_run_is_the_run_itself_to_the_bit(trained):
    for result in trained:
        assert len(result) == 14
        for name, found in result.items():
            assert (found["loaded"], found["resumed"], found["loaded again"]) == (True, True, True), name
            assert found["values"] == [3, 1, [1.0, 1.0]]


def test_consolidation_gives_the_trained_weights(trained):
    for result in trained:
        for name, found in result.items():
            assert (found["zero_to_fp32"], found["read"]) == (True, True), name


# --- what is unusual, wrong, or refused


@pytest.fixture(scope="module")
def limits(tmp_path_factory):
    results = run("limits.py", tmp_path_factory.mktemp("limits"))
    for result in results:
        for cases in result.values():
            whole(cases)
    return results


STAGES = pytest.mark.parametrize("stage", [1, 2, 3])


def at(limits, stage):
    return [result[f"stage {stage}"] for result in limits]


@STAGES
def test_an_error_in_a_step_leaves_the_engine_usable(limits, stage):
    for result in at(limits, stage):
        found = result["errors_in_a_step"]
        assert [found[name] for name in ("forward", "backward", "closure")] == ["ArithmeticError"] * 3
        assert found["then"] <= 1e-6


@STAGES
def test_backward_and_step_as_torch_means_them(limits, stage):
    for result in at(limits, stage):
        found = result["unusual_steps"]
        for name in ("twice through one graph", "closure", "left out", "then"):
            assert found[name] <= 1e-6, name
        assert found["its loss"] is True
        assert (found["empty step"], found["its norm"]) == (0, 0)
        assert found["not finite"] == ["NonFiniteGradientsError", "RuntimeError"]
        assert (found["returned"], found["skipped"], found["told"]) == ("inf", 0, True)


@STAGES
def test_what_was_there_before_setup_counts(limits, stage):
    for result in at(limits, stage):
        assert result["state_from_before"] <= 1e-6
        distance, *lrs = result["schedulers"]
        assert distance <= 1e-6
        assert lrs == [0.00125, 0.00125]
        assert result["batch_sizes"] == [3, 6]


@STAGES
def test_modules_that_are_not_trained_or_not_all_of_them(limits, stage):
    for result in at(limits, stage):
        assert result["without_optimizer"] == [True, ["UsageError", "RuntimeError"], True]
        frozen = result["frozen_parameters"]
        assert frozen["trained"] <= 1e-6
        assert frozen["loaded"] == 0
        assert "missing in the checkpoint (2): model.out.weight, model.out.bias" in frozen["left out"]
        partitioned, trained, loaded = result["made_by_init_module"]
        assert partitioned is (stage == 3)
        assert trained <= 1e-6
        assert loaded == 0


@STAGES
def test_what_an_engine_cannot_do_is_refused(limits, stage):
    usage, limit = ["UsageError", "RuntimeError"], ["EngineLimitError", "NotImplementedError"]
    value = ["ArgumentValueError", "ValueError"]
    expected = {
        "two optimizers": value,
        "another's parameters": usage,
        "LBFGS": limit,
        "apart": usage,
        "shared": usage,
        "by value": limit,
        "other norm": limit,
        "a part": limit,
        "plain backward": usage,
        "a vector": limit,
        "create_graph": limit,
        "unmarked": usage,
        "pickle": usage,
        "copy": usage,
        "step's argument": limit,
        "filter": ["ArgumentTypeError", "TypeError"],
        "optimizer alone": usage,
        "a URL": value,
    }
    for rank, result in enumerate(at(limits, stage)):
        found = result["refusals"]
        assert {name: found[name] for name in expected} == expected
        assert found["not there"][0] == "CheckpointNotFoundError"
        assert found["marked"] == [4, 7]
        assert found["exists"] is False
        warned = stage > 1 and rank == 0
        assert [("no effect" in message) for message in found["no sync"]] == [True] * warned


@STAGES
def test_two_engines_of_a_gan(limits, stage):
    for result in at(limits, stage):
        assert result["none set up"] == ["UsageError", "RuntimeError"]
        found = result["adversarial"]
        assert found["detached True"] <= 1e-6
        assert found["detached False"] <= 1e-6
        assert found["which"] == ["ArgumentValueError", "ValueError"]
        assert found["loaded"] == 0
        assert found["folders"] == 2


def test_activation_checkpointing_is_configured(limits):
    for result in limits:
        configured, distance = result["checkpointing"]["checkpointing"]
        assert configured
        assert distance <= 1e-6


def test_an_impossible_config_is_one_clear_error(limits):
    for result in limits:
        name, builtin, text, states, same_parameters = result["checkpointing"]["impossible config"]
        assert (name, builtin) == ("EngineSetupError", "RuntimeError")
        assert "could not make an engine of Model: ValidationError: " in text
        assert "nonsense Extra inputs are not permitted" in text
        assert states == 7  # the tied weight has one
        assert same_parameters


def test_closing_gives_back_what_was_taken(limits):
    for result in limits:
        assert result["after"] == {"process group": False, "linear": True}


# --- checkpoints


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    return [whole(result) for result in run("elsewhere.py", tmp_path_factory.mktemp("elsewhere"))]


def test_other_strategies_go_on_from_a_checkpoint_and_the_reverse(elsewhere):
    for result in elsewhere:
        found = {name: case for name, case in result.items() if "plugins=" in name}
        assert len(found) == 7
        for name, case in found.items():
            assert case["the rest"] == {"step": 2}, name
            assert case["to ddp"] <= 1e-6, name
            assert case["without a state"] == ["model", "optimizer", "step"], name
            assert case["from ddp"][0] <= 1e-6, name
            assert case["from ddp"][1] == 2, name
            assert case["plain weights"] == 0, name
            assert case["weights alone"] is True, name
            assert case["in the background"] is True, name


def test_deepspeed_alone_reads_and_writes_the_same_folders(elsewhere):
    for result in elsewhere:
        for stage in (1, 2, 3):
            case = result[f"stage {stage} and DeepSpeed alone"]
            assert case["client state"] == 2
            assert case["read by it"] == 0
            assert case["read by us"][0] <= 1e-6
            assert case["read by us"][1] == 4


def test_any_stage_goes_on_from_any_other(elsewhere):
    for result in elsewhere:
        assert len(result["between stages"]) == 9
        assert all(result["between stages"].values())


@pytest.mark.parametrize(("victim", "moment"), [(1, "file"), (0, "manifest")])
def test_a_rank_killed_in_the_middle_of_a_save_leaves_the_checkpoint_before(tmp_path, victim, moment):
    results = run("killed.py", tmp_path, str(victim), moment, expect_failure=True)
    assert results[victim]["exit"] == -9
    assert [result["report"] for result in results] == ["trained on"] * 2
    read = DeepSpeedCheckpointIO().load_checkpoint(tmp_path / "last")
    saved = torch.load(tmp_path / "saved.pt")
    assert read["step"] == 2
    assert set(read["model"]) == set(saved)
    assert all(torch.equal(read["model"][name], saved[name]) for name in saved)
    leftovers = [entry.name for entry in (tmp_path / "last").iterdir() if entry.name.startswith("step")]
    assert len(leftovers) == 2  # the next save takes the other one away


# --- launching


def test_a_script_launches_its_own_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        """
import json
import os
import sys
import torch
from poplin import Fabric

def main(fabric):
    before = dict(os.environ)
    model = torch.nn.Linear(3, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.backward(model(torch.ones(2, 3)).mean())
    optimizer.step()
    fabric.save("checkpoint", {"model": model, "optimizer": optimizer})
    changed = {name for name in {**before, **os.environ} if before.get(name) != os.environ.get(name)}
    return fabric.world_size, changed <= {"TORCHINDUCTOR_CACHE_DIR"}  # which torch sets when it is imported

if __name__ == "__main__":
    config = json.dumps({"zero_optimization": {"stage": 3}})
    os.environ["POPLIN_DEEPSPEED_CONFIG"] = config
    fabric = Fabric(accelerator="cpu", devices=2, strategy="deepspeed", plugins="spawn")
    assert "deepspeed" not in sys.modules
    print(fabric.strategy.stage, *fabric.launch(main))
    other = Fabric(accelerator="cpu", devices=1)
    print(sorted(other.load("checkpoint")), "deepspeed" in sys.modules)
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-2:] == ["3 2 True", "['model', 'optimizer'] False"]
    command = [sys.executable, "-m", "poplin", "consolidate", "checkpoint", "--output_file", "one.ckpt"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert list(torch.load(tmp_path / "one.ckpt")["model"]) == ["weight", "bias"]
