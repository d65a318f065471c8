"""`poplin estimate` and `fabric.explain(memory=True)`: bytes in one process."""

import json
import sys

import pytest
import torch
from torch import nn

from poplin import Fabric
from poplin.cli import app
from poplin.cli.estimate import load_target
from poplin.cli.planning import World, plan
from poplin.errors import ArgumentValueError
from poplin.strategies.memory import Memory, memory_of, states_of

MODELS = """
import torch
from torch import nn

def mlp():
    return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))

def looks():
    return nn.Linear(1, 1).weight.item()

number = 3
"""
#: of `mlp`
PARAMETERS = (100 * 200 + 200 + 200 * 10 + 10) * 4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 20)
        self.head = nn.Linear(20, 50, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(20, 20, bias=False).requires_grad_(False)
        self.register_buffer("mask", torch.ones(50, dtype=torch.bool))


def mlp():
    return nn.Sequential(nn.Linear(100, 200), nn.ReLU(), nn.Linear(200, 10))


def run(capsys, *words):
    code = app.main(["estimate", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "made_models.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("made_models", None)


def test_what_is_counted():
    counted = memory_of(Tied(), torch.optim.AdamW)
    steps = 4  # AdamW's counter, one for each parameter
    assert counted == Memory(
        parameters=(50 * 20 + 20 * 20) * 4, buffers=50, gradients=50 * 20 * 4, optimizer=2 * 50 * 20 * 4 + steps
    )
    assert counted.device == sum((5600, 50, 4000, 8004))
    off = counted.offloaded("parameters", "optimizer")
    assert (off.parameters, off.optimizer, off.host, off.device) == (0, 0, 13604, 4050)
    assert memory_of(Tied()).optimizer == 0


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam, torch.optim.Adafactor, torch.optim.Adagrad])
def test_the_planned_states_are_those_of_a_real_step(make):
    model = mlp()
    planned = memory_of(mlp().to("meta"), make).optimizer
    optimizer = make(model.parameters())
    model(torch.randn(3, 100)).sum().backward()
    optimizer.step()
    assert planned == states_of(optimizer)


def test_strategies_are_planned_for_a_world_that_is_not_here():
    steps = 4 * 4
    whole = {"parameters": PARAMETERS, "gradients": PARAMETERS, "optimizer": 2 * PARAMETERS + steps}
    for size in (8, 1024):
        planned = plan(mlp, "ddp", World.of(size, 8))
        assert planned.memory == Memory(**whole, communication=PARAMETERS), planned.reason
    single = plan(mlp, "single_device", World.of(1, 8))
    assert single.memory == Memory(**whole)
    assert plan(mlp, "ddp", World.of(8, 8), precision="bf16-true", make_optimizer=None).memory == Memory(
        PARAMETERS // 2, 0, PARAMETERS // 2, 0, PARAMETERS // 2
    )
    refused = plan(mlp, "single_device", World.of(8, 8))
    assert refused.memory is None
    assert "runs on one device" in refused.reason
    assert not torch.distributed.is_initialized()


@pytest.mark.filterwarnings("ignore:strategy='dp' needs several GPUs")
def test_a_redirect_is_shown():
    planned = plan(mlp, "dp", World.of(2, 8))
    assert planned.served_by == "ddp"
    assert planned.memory == plan(mlp, "ddp", World.of(2, 8)).memory


def test_the_command_prints_tables_and_json(capsys, folder):
    code, out, err = run(
        capsys, "made_models:mlp", "--world-size", "1,8", "--strategy", "ddp", "--strategy", "single_device"
    )
    assert (code, err) == (0, "")
    assert "world size 8" in out
    row = next(line for line in out.splitlines() if line.strip().startswith("single_device"))
    assert row.split()[1:] == "86.8 KiB 86.8 KiB 173.5 KiB 0 B 0 B 347.0 KiB 0 B".split()
    assert "single_device: not planned: " in out
    code, out, _ = run(
        capsys, "made_models.py:mlp", "--world_size", "8", "--strategy", "ddp", "--optimizer", "none", "--json"
    )
    (row,) = json.loads(out)
    assert row["bytes"] == {
        "parameters": PARAMETERS, "buffers": 0, "gradients": PARAMETERS, "optimizer": 0, "communication": PARAMETERS,
        "host": 0, "device": 3 * PARAMETERS,
    }  # fmt: skip
    assert (code, row["strategy"], row["world_size"], row["reason"]) == (0, "ddp", 8, "")


def test_every_installed_strategy_is_planned(capsys, folder):
    code, out, _ = run(capsys, "made_models:mlp", "--world-size", "8")
    assert code == 0
    assert "ddp (+" in out  # its other spellings are not rows of their own


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mlp"], "write package.module:name"),
        (["nowhere.at_all:mlp"], "No module named"),
        (["made_models:absent"], "no attribute 'absent'"),
        (["absent.py:mlp"], "there is no file"),
        (["made_models:number"], "can't be called"),
        (["made_models:mlp", "--world-size", "12"], "does not fill machines of 8 devices"),
        (["made_models:mlp", "--optimizer", "torch.optim:Nothing"], "no attribute 'Nothing'"),
    ],
)
def test_what_can_not_be_meant(capsys, folder, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (1, "")
    assert message in err


def test_a_model_that_can_not_be_planned_says_why(capsys, folder):
    code, out, _ = run(capsys, "made_models:looks", "--strategy", "ddp", "--world-size", "8")
    assert code == 1
    assert "could not be made on the meta device" in out
    code, out, _ = run(
        capsys, "made_models:mlp", "--strategy", "ddp", "--optimizer", "torch.optim:LBFGS", "--world-size", "8"
    )
    assert code == 1
    assert "states of the optimizer can't be planned" in out
    with pytest.raises(ArgumentValueError, match="names nothing"):
        load_target("a:")


def test_explain_tells_what_is_held():
    with Fabric(accelerator="cpu", devices=1) as fabric:
        assert "nothing is set up" in fabric.explain(memory=True)
        assert "memory of" not in fabric.explain()
        model = mlp()
        model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        text = fabric.explain(memory=True)
        assert "Sequential: parameters 86.8 KiB, gradients 86.8 KiB, buffers 0 B" in text
        assert "SGD: states 0 B, which the first step makes" in text
        fabric.backward(model(torch.randn(2, 100)).sum())
        optimizer.step()
        assert "SGD: states 86.8 KiB" in fabric.explain(memory=True)
