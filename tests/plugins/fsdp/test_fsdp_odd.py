"""Odd modules and orders on two sharded ranks, precisions, checkpoints, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from poplin.testing import run_ranks

HERE = Path(__file__).parent
NAMES = [f"{part}.linear.{name}" for part in ("first", "second") for name in ("bias", "weight")]
LIKE_ONE_PROCESS = [
    "no parameter at the root",
    "a shared submodule, below two units",
    "a shared submodule, a unit itself",
    "lists of parameters",
    "odd parameters",
    "groups and states from before",
    "a marked method",
    "compiled by eager",
    "compiled by aot_eager",
    "compiled parts",
    "compiled and checkpointed parts",
]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sharded")
    return run_ranks(HERE / "odd_script.py", 2, args=[str(folder)], env={"OMP_NUM_THREADS": "1"}, timeout=170)


def test_it_trains_as_one_process_does(ranks):
    for rank in ranks:
        assert {name: rank[name] for name in LIKE_ONE_PROCESS if not rank[name] <= 1e-6} == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("names of a compiled part", NAMES),
        ("its class", [True, True]),
        ("copies", ["UsageError", "UsageError"]),
        ("the raw module again", [True, True]),
        ("unsynchronised", [True] * 4),
        ("synchronised", [True] * 4),
        ("still off", [False]),
        ("on again", [True]),
        ("after a forward", True),
        ("between forward and backward", True),
        ("without parameters", [8, 6]),
        ("frozen", [False, [3, 6]]),
        ("closure", True),
        ("clipped by value", pytest.approx(1e-3)),
        ("hooked, afterwards", [True, "Linear"]),
        ("reset", True),
        ("data", [0, 1]),
        ("batches", [[0, 1], [2, 3]]),
        ("batch norm", ["torch.float32", "torch.float32", True]),
        ("channels last", [2, 4, 3, 3]),
        ("explained", True),
        ("a failed forward", True),
        ("a failed backward", True),
        ("a failed setup", ["Stop", "Inner", True, True, 0]),
        ("set up again", "DTensor"),
        ("overflow", [True, False, True, 32768.0]),
        ("checkpoint, full", [True, True, 3, "TorchCheckpointIO", False]),
        ("checkpoint, sharded", [True, True, 3, "ShardedCheckpointIO", True]),
    ],
)
def test_on_every_rank(ranks, name, expected):
    assert [rank[name] for rank in ranks] == [expected, expected]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("unmarked", "UsageError", ["Two.unmarked()", "mark_forward_method"]),
        ("not finite", "NonFiniteGradientsError", ["error_if_nonfinite=False"]),
        ("hooked", "UsageError", ["weight of Linear", "hooks"]),
        ("lazy", "UsageError", ["weight, bias of LazyLinear"]),
        ("dtypes", "UsageError", ["0.weight is float32, 1.weight is bfloat16", "auto_wrap_policy"]),
        ("lost", "UsageError", ["1.matrices (ParameterList): 0, 1", "1.named", "fabric.init_module()"]),
        ("a list as a unit", "UsageError", ["ModuleList has no forward"]),
        ("no plan", "SelectionError", ["parallelize_fn", "parallel_plan"]),
    ],
)
def test_it_is_refused_on_every_rank(ranks, name, error, words):
    for rank in ranks:
        assert rank[name]["class"] == error
        assert [word for word in words if word not in rank[name]["text"]] == []


def test_precisions_are_those_of_the_policy(ranks):
    found = ranks[0]["precision"]
    assert {name: found[name] for name in found if not name.endswith("norm")} == {
        # the result, parameters, gradients, a buffer, and what a layer in the middle gets
        "bf16-mixed": ["float32", "float32", "float32", "float32", "torch.bfloat16"],
        "16-mixed": ["float32", "float32", "float32", "float32", "torch.float16"],
        "bf16-true": ["float32", "bfloat16", "bfloat16", "bfloat16", "torch.bfloat16"],
        "16-true": ["float32", "float16", "float16", "float16", "torch.float16"],
        "64-true": ["float64", "float64", "float64", "float64", "torch.float64"],
    }
    assert found == ranks[1]["precision"]  # the norms, too
