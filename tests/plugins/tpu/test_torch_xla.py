"""The real torch_xla, on its CPU device. What only several replicas can show is in test_replicas.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"
#: As near as two ways of computing the same come.
NEAR = 1e-5

pytestmark = [pytest.mark.xla, pytest.mark.timeout(900)]


def run(*words, **variables):
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=800,
        env=os.environ | {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROGRAMS)} | variables,
    )
    return done.returncode, done.stdout, done.stderr


def report(program, folder, **variables):
    code, out, err = run(PROGRAMS / program, folder, **variables)
    assert code == 0, out + err
    return json.loads(out.rpartition("REPORT ")[2])


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return report("single.py", tmp_path_factory.mktemp("single"), CPU_NUM_DEVICES="2")


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    return report("launched.py", tmp_path_factory.mktemp("launched"))


@pytest.fixture(scope="module")
def spmd(tmp_path_factory):
    return report("spmd.py", tmp_path_factory.mktemp("spmd"), CPU_NUM_DEVICES="4")


@pytest.mark.parametrize("case", ["plain", "closure", "accumulated", "epochs"])
def test_training_on_one_device_equals_the_cpu(single, case):
    assert single[case] < NEAR


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_half_precisions_are_near_the_cpu(single, precision):
    assert single[precision] < 0.02


def test_checkpoints_go_both_ways_and_training_resumes(single):
    assert single["resumed on xla"] == 0
    assert single["resumed on cpu"] < NEAR
    assert single["cpu to xla"] == 0
    assert single["devices in the file"] == ["cpu"]
    assert single["tied in the file"] is True


def test_data_seeds_frozen_modules_and_init_module(single):
    assert single["loader"] == [5, "xla:0"]
    assert single["seeded"] is True
    assert single["frozen"] == single["init_module"] == "xla:0"


def test_folders_and_saving_in_the_background_have_the_values_of_the_device(single):
    assert single["sharded"] == single["later"] == single["later, a file"] == 0


def test_a_second_device_compile_the_position_in_data_and_optimizers_of_before(single):
    assert single["second device"] == ["xla:1", "xla:1"]
    assert single["seeded there"] is True
    assert single["first again"] == "xla:0"
    assert single["compiled"] == "xla:0"
    assert single["position"] == [4, True]
    assert single["of before"] == [["xla:0"], True]


def test_the_trace_says_which_runtime_and_strategy(single):
    assert "torch_xla 2.9.0, PJRT_DEVICE=CPU" in single["explain"]
    assert "single_xla" in single["explain"]
    assert single["redirect ddp"] == ["XLAStrategy", True]
    assert single["redirect fsdp"] == ["XLAFSDPStrategy", True]
    assert single["redirect single_device"] == ["SingleDeviceXLAStrategy", True]
    assert single["redirect single_tpu"] == ["SingleDeviceXLAStrategy", False]


def test_what_is_refused(single):
    assert "use 'bf16-mixed'" in single["16-mixed"]
    assert "has 2 device(s) here" in single["three"]
    assert "runs on torch_xla's devices" in single["on the CPU"]


def test_every_collective_in_a_launched_process(launched):
    results = launched["xla"]
    assert results["place"] == [1, 0, 0, 0, True]
    assert results["all_gather"] == [1, 4]
    assert results["gather of the host"] == ["cpu", [[0, 1, 2, 3]]]
    assert results["gradient"] == [1, 1]
    assert results["sum"] == results["product"] == results["broadcast"] == [0, 1, 2, 3]
    assert results["mean of integers"] == ["torch.float32", [0, 1, 2, 3]]
    assert results["max of the host"] == [0, 1, 2, 3]
    assert results["broadcast tensor"] == "xla:0"
    assert results["decisions"] == [True, False]
    assert results["first"] is True
    assert results["refused group"].startswith("SelectionError")
    assert results["refused operation"].startswith("ArgumentValueError")
    assert results["refused unpicklable"].startswith("CollectiveError")


@pytest.mark.parametrize(
    ("strategy", "case"),
    [
        ("xla", "plainly"),
        ("xla", "with a closure"),
        ("xla_fsdp", "shards"),
        ("xla_fsdp", "shards accumulated"),
        ("xla_fsdp", "shards with tied weights"),
    ],
)
def test_launched_training_equals_the_cpu_saves_the_users_names_and_resumes(launched, strategy, case):
    assert launched[f"{case} beside the CPU"] < NEAR
    assert launched[strategy][case] == 0
    states, groups = launched[f"{case}: states"]
    assert states == sorted(groups[0])
    assert {"first.weight", "last.bias"} <= set(states)


def test_clipping_with_shards_takes_the_whole_norm(launched):
    assert launched["xla_fsdp"]["norm"] == pytest.approx(launched["norm"], rel=NEAR)
    assert launched["xla"]["norm"] == pytest.approx(launched["norm"], rel=NEAR)


def test_errors_of_launched_functions(launched):
    assert launched["error"] == "KeyError: 'of mine'"
    assert "can't be sent back" in launched["result"]
    assert "can't be sent to the processes" in launched["argument"]
    assert "launch() needs one" in launched["no function"]
    assert "Call fabric.launch() first" in launched["not launched"]


def test_spmd_shards_parameters_and_batches_over_four_devices(spmd):
    assert spmd["place"] == [1, 1]
    assert spmd["batch"] == "{devices=[4,1]0,1,2,3}"
    assert all(spec.startswith("{devices=[") for spec in spmd["parameters"])
    assert spmd["states"] == spmd["parameters"][0]
    assert all("last_tile_dim_replicate" in spec for spec in spmd["with copies"])
    assert set(spmd["small ones whole"]) == {"{replicated}"}
    assert max(spmd["distances"]) < NEAR
    assert spmd["file"] == 0
    assert "does not fit the 4 device(s)" in spmd["mesh"]


def test_the_command_line_runs_a_script_on_it(tmp_path):
    smoke = Path(__file__).parents[3] / "docs" / "examples" / "smoke.py"
    code, out, err = run("-m", "poplin", "run", "--accelerator=xla", "--devices=1", smoke, "--max-steps", 3)
    assert code == 0, out + err
    assert out.splitlines()[-1] == "ok: 3 steps on 1 process(es), xla"


def test_auto_never_takes_it(tmp_path):
    code, out, err = run("-c", "from poplin import Fabric; print(Fabric(devices=1).device)")
    assert (code, out.splitlines()[-1:]) == (0, ["cpu"]), err
    code, out, err = run(
        "-c", "import sys; from poplin import Fabric; Fabric(devices=1); print('torch_xla' in sys.modules)"
    )
    assert out.splitlines()[-1] == "False"
