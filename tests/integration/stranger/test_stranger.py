"""A stranger's device, and a stranger's package for it: real to torch, built, installed by pip, and gone again.

`acme-torch` brings the device `acme` to torch: compiled, in the slot PrivateUse1, two devices, memory on the CPU.
`acme-poplin` is written with what README.md and docs/plugin-api.md say. Neither is known to anything of Poplin's.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAMS = HERE / "programs"
OURS = [ROOT / "core", *(ROOT / "plugins" / name for name in ("ddp", "precision", "generic"))]
INSTALL = "install --quiet --no-index --no-deps --ignore-installed --no-build-isolation".split()
NAMES = {
    ("accelerators", "acme"),
    ("strategies", "acme_staged"),
    ("precisions", "acme-mixed"),
    ("loggers", "acme_lines"),
}

pytestmark = [
    pytest.mark.slow,  # compiles
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("c++") is None or shutil.which("ninja") is None, reason="needs a compiler and ninja"
    ),
]


class Home:
    """A virtual environment of its own, with torch and the rest seen in the running one's site folder."""

    def __init__(self, folder):
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
        self.python = folder / "venv" / "bin" / "python"
        others = folder / "others"
        others.mkdir()
        for path in Path(torch.__file__).parents[1].iterdir():
            if not path.name.lower().startswith(("poplin", "_poplin", "__editable__")) and path.suffix != ".pth":
                (others / path.name).symlink_to(path)
        site = next((folder / "venv").glob("lib/python*/site-packages"))
        (site / "others.pth").write_text(f"{others}\n")
        self.reports = folder / "reports"
        self.reports.mkdir()

    def run(self, *words, code=0, **variables):
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("POPLIN_", "LT_", "PL_", "PYTHON", "TORCH_DEVICE_BACKEND"))
        }
        done = subprocess.run(
            [str(word) for word in (self.python, *words)],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=self.reports,
            env=environment | {"OMP_NUM_THREADS": "1", "MAX_JOBS": "1"} | variables,
        )
        assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def pip(self, *words):
        python, self.python = self.python, Path(sys.executable)
        try:
            return self.run("-m", "pip", "--python", python, *words)
        finally:
            self.python = python

    def report(self, program, *words, **variables):
        out = self.run(PROGRAMS / program, *words, **variables).stdout
        return json.loads(next(line for line in out.splitlines() if line.startswith("REPORT ")).removeprefix("REPORT "))

    def listed(self):
        done = self.run("-m", "poplin", "plugins", "--json")
        return {(row["kind"], row["name"]) for row in json.loads(done.stdout) if row["status"] != "role"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = Home(tmp_path_factory.mktemp("stranger"))
    sources = []
    for name in ("acme-torch", "acme-poplin"):  # building leaves files beside the sources
        sources.append(shutil.copytree(HERE / name, home.folder / name))
    home.pip(*INSTALL, *OURS, *sources)
    return home


@pytest.fixture(scope="module")
def one(home):
    return home.report("one_process.py", home.reports)


@pytest.fixture(scope="module")
def two(home, one):
    """The reports of both ranks, by how they were started."""
    done = {}
    program = PROGRAMS / "two_processes.py"
    for key, words in {
        "launch": [program, home.reports],
        "16-mixed": [program, home.reports, "16-mixed"],
        "run": [
            *"-m poplin run --accelerator acme --strategy acme_staged --devices 2 --precision acme-mixed".split(),
            *(program, home.reports, "acme-mixed", "--bare"),
        ],
    }.items():
        for path in home.reports.glob("rank*.json"):
            path.unlink()
        home.run(*words)
        done[key] = [json.loads((home.reports / f"rank{rank}.json").read_text()) for rank in range(2)]
    return done


def test_pip_brings_its_names(home):
    assert home.listed() >= NAMES


def test_it_trains_on_the_device_as_on_the_cpu(home, one):
    assert one["device"] == ["acme:0"] * 3
    assert one["end"] == pytest.approx(one["cpu end"], abs=1e-7)
    assert one["second device"] == "acme:1"
    assert one["made"] == ["acme:0", "acme:0"]
    assert one["batches"] == ["acme:0", "acme:0"]
    lines = [json.loads(line) for line in (home.reports / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4]
    assert "acme-poplin 1.2" in one["explained"]


def test_checkpoints_go_from_device_to_cpu_and_back(one):
    assert one["rest"] == {} or one["rest"] == {"step": 5}
    assert one["on cpu"]
    assert one["back"]
    assert one["optimizer back"] == ["acme:1"]
    assert one["continued"] < 1e-6


def test_autocast_runs_on_it(one):
    assert one["autocast at 32-true"] is False
    for name, dtype in (("acme-mixed", "bfloat16"), ("bf16-mixed", "bfloat16"), ("16-mixed", "float16")):
        told = one[name]
        assert told["seen"] == ["acme", True, f"torch.{dtype}", f"torch.{dtype}"]
        assert told["type"] == "acme"
        assert told["finite"]
        assert 0 < told["distance"] < 0.05, name
    assert one["bf16-true"]["seen"][3] == "torch.bfloat16"


def test_losses_are_scaled_on_it(one):
    assert one["16-mixed"]["scaler"] == [True, 65536.0]
    assert one["skipped"] == [True, 0.5]


def test_defaults_suit_a_device_module_that_can_little(one):
    assert one["seed"] == 1234
    assert one["memory"] == {}
    assert one["peak"] is None


@pytest.mark.parametrize("role", ["auto", "gpu"])
def test_a_role_goes_to_it_by_priority(one, role):
    device, explained = one[role]
    assert device == "acme:0"
    assert "acme-poplin 1.2" in explained
    assert "priority" in explained


def test_its_precision_is_for_its_device_only(one):
    assert "acme-mixed" in one["elsewhere"]
    assert "SelectionError" in one["elsewhere"]


@pytest.mark.parametrize("how", ["launch", "run", "16-mixed"])
def test_two_processes_are_as_one(one, two, how):
    reference = {"launch": one["end"], "run": None, "16-mixed": None}[how]
    for rank, told in enumerate(two[how]):
        assert told["device"] == f"acme:{rank}"
        assert told["strategy"] == "StagedStrategy"
        if reference is not None:
            assert told["end"] == pytest.approx(reference, abs=1e-6)
        assert told["end"] == two[how][0]["end"]
        assert told["gathered"] == [f"acme:{rank}", [[0.0, 0.0], [1.0, 1.0]]]
        assert told["reduced"] == [3]
        assert told["told"] == "acme"
        assert told["gradient through gather"] == [2.0 * (rank + 1)] * 2
        assert told["local gradients differ"]
    assert "acme_staged" in two[how][0]["explained"]


@pytest.mark.parametrize("how", ["launch", "run"])
def test_a_plain_backward_is_an_error_where_the_strategy_averages(two, how):
    assert "fabric.backward" in two[how][0]["plain backward"]


def test_uninstalling_it_leaves_nothing(home, two):
    home.pip("uninstall", "--quiet", "--yes", "acme-poplin")
    try:
        assert not home.listed() & NAMES
        gone = home.report("unserved.py", POPLIN_DISABLE_PLUGINS="poplin-generic")
        assert gone["name"].startswith("UnknownNameError")
        assert gone["strategy"] == gone["auto"]
        # torch still has the device, and nothing here serves it: no silent run on the CPU
        assert "torch sees an accelerator here ('acme')" in gone["auto"]
        assert "blocked by POPLIN_DISABLE_PLUGINS" in gone["auto"]
        served = home.report("unserved.py")
        assert served["auto"][:2] == ["torch", "acme:0"]
        assert served["name"].startswith("UnknownNameError")
        assert served["strategy"].startswith("UnknownNameError")
        done = home.run(
            "-m", "poplin", "run", "--accelerator", "acme", PROGRAMS / "two_processes.py", home.reports, code=1
        )
        assert "UnknownNameError: There is no accelerator 'acme'" in done.stderr
        home.pip("uninstall", "--quiet", "--yes", "poplin-generic")
        assert "pip install poplin-generic" in home.report("unserved.py")["auto"]
    finally:
        home.pip(*INSTALL, ROOT / "plugins" / "generic", home.folder / "acme-poplin")
    assert home.listed() >= NAMES
