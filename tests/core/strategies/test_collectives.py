"""Collectives between real processes: every dtype, nested collections, objects, and what does not fit together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

RunStrategy = Callable[..., list[Any]]

BODY = """
from collections import OrderedDict, namedtuple
from dataclasses import dataclass

import numpy as np

from poplin.strategies.collectives import gather_nested, reduce_nested

out = {"dtypes": {}, "objects": {}}
strategy = started()


def values(tensor):
    return torch.view_as_real(tensor).tolist() if tensor.is_complex() else tensor.double().tolist()


def described(tensor):
    return [str(tensor.dtype).removeprefix("torch."), values(tensor)]


DTYPES = "bool int8 uint8 int16 uint16 int32 int64 float16 bfloat16 float32 float64 complex64 float8_e4m3fn".split()
for name in DTYPES:
    dtype = getattr(torch, name)
    make = lambda: torch.tensor([0, 1, RANK]).to(dtype)
    case = {"gather": described(strategy.all_gather(make()))}
    for op in ("mean", "sum", "max", "min") if name != "complex64" else ("mean", "sum"):
        tensor = make()
        reduced = strategy.all_reduce(tensor, reduce_op=op)
        case[op] = [*described(reduced), reduced is tensor, values(tensor)]
    mine = make()
    case["broadcast"] = described(strategy.broadcast(mine, src=WORLD - 1))
    case["kept"] = values(mine) == values(make())
    out["dtypes"][name] = case

# layouts in memory, empty and scalar tensors
grid = (torch.arange(6.0).reshape(2, 3) + RANK).t()
out["transposed"] = {
    "gather": strategy.all_gather(grid).tolist(),
    "broadcast": strategy.broadcast(grid).tolist(),
    "sum": strategy.all_reduce(grid, reduce_op="sum").tolist(),
}
out["scalar"] = strategy.all_gather(torch.tensor(float(RANK))).tolist()
out["empty"] = [list(strategy.all_gather(torch.ones(0, 3)).shape), list(strategy.broadcast(torch.ones(0, 3)).shape)]
out["product"] = strategy.all_reduce(torch.tensor([2.0 + RANK]), reduce_op=dist.ReduceOp.PRODUCT).item()
out["many"] = strategy.all_reduce(torch.tensor(2**40 + RANK), reduce_op="mean").item()
leaf = torch.ones(2, requires_grad=True)
doubled = leaf * 2
strategy.all_reduce(doubled.sum() + RANK)
doubled.sum().backward()
out["graph_untouched"] = leaf.grad.tolist()

# gradients through a gather: the sum over ranks of what each asks of this rank's part
x = torch.tensor([1.0, 2.0], requires_grad=True)
weights = torch.arange(1.0, WORLD + 1)[:, None]
gathered = strategy.all_gather(x * (RANK + 1), sync_grads=True)
(gathered * weights if WORLD > 1 else gathered).sum().backward()
out["gradient"] = x.grad.tolist()
z = torch.ones(2, dtype=torch.complex64, requires_grad=True)
strategy.all_gather(z, sync_grads=True).abs().sum().backward()
out["complex_gradient"] = values(z.grad)
out["no_gradient"] = strategy.all_gather(x).requires_grad and WORLD > 1

# nested
Pair = namedtuple("Pair", "left right")


@dataclass
class Record:
    loss: torch.Tensor
    name: str = "n"


nested = {
    "b": torch.tensor(RANK),
    "a": [1.5 * RANK, (bool(RANK), Pair(torch.ones(2, dtype=torch.bfloat16) * RANK, "text"))],
    "record": Record(torch.full((1,), float(RANK))),
    "array": np.array([RANK], dtype=np.float32),
    "large": torch.full((10_000,), float(RANK)),
    "nothing": {},
    "none": None,
}
together = gather_nested(strategy, nested)
out["nested"] = {
    "b": together["b"].tolist(),
    "a0": described(together["a"][0]),
    "bool": described(together["a"][1][0]),
    "pair": [type(together["a"][1][1]).__name__, described(together["a"][1][1].left), together["a"][1][1].right],
    "record": [type(together["record"]).__name__, together["record"].loss.tolist(), together["record"].name],
    "array": described(together["array"]),
    "large": [list(together["large"].shape), together["large"][-1].mean().item()],
    "others": [together["nothing"], together["none"]],
}
metrics = OrderedDict(x=torch.ones(2) * RANK, n=RANK, y=torch.tensor(3 + RANK), big=torch.ones(20_000) * RANK)
if RANK:
    metrics = OrderedDict(reversed(metrics.items()))  # every rank filled its own in another order
reduced = reduce_nested(strategy, metrics)
out["reduced"] = {key: described(reduced[key][:2] if reduced[key].dim() else reduced[key]) for key in sorted(reduced)}
out["in_place"] = [reduced["x"] is metrics["x"], reduced["big"] is metrics["big"], reduced["y"] is metrics["y"]]
out["numbers"] = [reduce_nested(strategy, RANK).item(), reduce_nested(strategy, 1, reduce_op="sum").item()]
out["empties"] = [gather_nested(strategy, {}), reduce_nested(strategy, []), gather_nested(strategy, "text")]

# objects
linear = torch.nn.Linear(2, 2)
big = {"weights": torch.arange(50_000.0), "again": None, "small": torch.arange(3)}
big["again"] = big["weights"]
for name, obj in {"none": None, "dict": {"a": [1, "b"]}, "long": "x" * 5000, "state": big, "module": linear}.items():
    got = strategy.broadcast(obj if RANK == 0 else 17)
    if name == "state":
        same = torch.equal(got["weights"], big["weights"])
        out["objects"][name] = [same, got["again"] is got["weights"], got["small"].tolist()]
    elif name == "module":
        out["objects"][name] = [type(got).__name__, got.weight.requires_grad, got is linear]
    else:
        out["objects"][name] = got == obj
parameter = strategy.broadcast(torch.nn.Parameter(torch.ones(2)) if RANK == 0 else None)
out["objects"]["parameter"] = [type(parameter).__name__, parameter.tolist()]
source = torch.ones(3)
out["objects"]["own"] = strategy.broadcast(source, src=RANK if WORLD == 1 else 0) is source
out["decisions"] = [strategy.reduce_boolean_decision(RANK == 0, all=everyone) for everyone in (True, False)]

# what does not fit together, on every rank, and the next collective works
out["errors"] = {
    "shape": error_of(lambda: strategy.all_gather(torch.ones(2 + RANK))),
    "dtype": error_of(lambda: strategy.all_gather(torch.ones(2, dtype=torch.float64 if RANK else torch.float32))),
    "barrier": error_of(lambda: strategy.barrier("saved" if RANK else "loaded")),
    "unpicklable": error_of(lambda: strategy.broadcast((lambda: 1) if RANK == 0 else None)),
    "structure": error_of(lambda: gather_nested(strategy, {"a": 1} if RANK else {"b": 1})),
    "reduced": error_of(lambda: reduce_nested(strategy, {"a": 1, "c": 2} if RANK else {"b": 1, "c": 2})),
    "other": error_of(lambda: strategy.all_gather(torch.ones(2)) if RANK else strategy.barrier("x")),
    "sparse": error_of(lambda: strategy.all_gather(torch.eye(2).to_sparse())),
    "op": error_of(lambda: strategy.all_reduce(torch.ones(2), reduce_op="meen")),
    "op_type": error_of(lambda: strategy.all_reduce(torch.ones(2), reduce_op=3)),
    "src": error_of(lambda: strategy.broadcast(1, src=7)),
    "group": error_of(lambda: strategy.all_gather(torch.ones(1), group="world")),
}
strategy.barrier("every rank is still in step")

# subgroups: a rank alone, and everyone
alone = [dist.new_group([rank]) for rank in range(WORLD)]
everyone = dist.new_group(list(range(WORLD)))
out["subgroups"] = [
    strategy.all_reduce(torch.tensor([1.0 + RANK]), group=alone[RANK], reduce_op="sum").tolist(),
    strategy.all_gather(torch.tensor([RANK]), group=everyone).flatten().tolist(),
    gather_nested(strategy, {"a": RANK, "b": 1.0}, group=everyone)["a"].flatten().tolist(),
]
out["not_member"] = error_of(lambda: strategy.all_gather(torch.ones(1), group=alone[(RANK + 1) % WORLD]))["class"]

os.environ["POPLIN_DEBUG"] = "1"  # from here on everything is compared
strategy.teardown()
out["torn_down"] = [error_of(lambda: strategy.barrier()), dist.is_initialized()]
strategy = started()
out["debug"] = {
    "shape": error_of(lambda: strategy.all_reduce(torch.ones(3 + RANK))),
    "src": error_of(lambda: strategy.broadcast(torch.ones(3), src=RANK)),
    "other": error_of(lambda: strategy.broadcast(1) if RANK else strategy.all_reduce(torch.ones(1))),
    "fine": strategy.all_reduce(torch.ones(1) * RANK).item(),
}
strategy.teardown()
report(out)
"""


@pytest.fixture(scope="module")
def two(run_strategy: RunStrategy) -> list[Any]:
    return run_strategy(BODY, world_size=2)


@pytest.fixture(scope="module")
def one(run_strategy: RunStrategy) -> Any:
    return run_strategy(BODY, world_size=1)[0]


INTEGERS = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64")
FLOATS = ("float16", "bfloat16", "float32", "float64", "float8_e4m3fn")


@pytest.mark.parametrize("name", INTEGERS + FLOATS)
def test_every_dtype(two: list[Any], name: str) -> None:
    for rank, result in enumerate(two):
        case = result["dtypes"][name]
        assert case["gather"] == [name, [[0, 1, 0], [0, 1, 1]]]
        assert case["broadcast"] == [name, [0, 1, 1]]
        assert case["kept"]
        total = [0, 1, 1] if name == "bool" else [0, 2, 1]  # a sum of truth values is their or
        assert case["sum"] == [name, total, True, total]
        assert case["max"] == [name, [0, 1, 1], True, [0, 1, 1]]
        assert case["min"] == [name, [0, 1, 0], True, [0, 1, 0]]
        if name in INTEGERS:  # a new float tensor, the input as it was
            assert case["mean"] == ["float32", [0, 1, 0.5], False, [0, 1, rank]]
        else:
            assert case["mean"] == [name, [0, 1, 0.5], True, [0, 1, 0.5]]


def test_complex_numbers(two: list[Any]) -> None:
    for result in two:
        case = result["dtypes"]["complex64"]
        assert case["gather"][1] == [[[0, 0], [1, 0], [0, 0]], [[0, 0], [1, 0], [1, 0]]]
        assert case["sum"][1:] == [[[0, 0], [2, 0], [1, 0]], True, [[0, 0], [2, 0], [1, 0]]]
        assert case["mean"][1:3] == [[[0, 0], [1, 0], [0.5, 0]], True]
        assert case["broadcast"][1] == [[0, 0], [1, 0], [1, 0]]


def test_any_layout_in_memory(two: list[Any]) -> None:
    first = [[0, 3], [1, 4], [2, 5]]
    for result in two:
        assert result["transposed"]["gather"] == [first, [[value + 1 for value in row] for row in first]]
        assert result["transposed"]["sum"] == [[2 * value + 1 for value in row] for row in first]
        assert result["transposed"]["broadcast"] == first
        assert result["scalar"] == [0, 1]
        assert result["empty"] == [[2, 0, 3], [0, 3]]
        assert result["product"] == 6
        assert result["many"] == 2**40  # float32 holds no half there; the sum was exact


def test_gradients_flow_only_where_asked(two: list[Any], one: Any) -> None:
    for rank, result in enumerate(two):
        # two ranks ask (rank + 1) of the part, each with the part's weight (rank + 1)
        assert result["gradient"] == [2 * (rank + 1) ** 2] * 2
        assert result["complex_gradient"] == [[2, 0], [2, 0]]
        assert not result["no_gradient"]
        assert result["graph_untouched"] == [2, 2]
    assert one["gradient"] == [1, 1]


def test_nested_collections_keep_their_form(two: list[Any]) -> None:
    for result in two:
        nested = result["nested"]
        assert nested["b"] == [0, 1]
        assert nested["a0"] == ["float32", [0, 1.5]]
        assert nested["bool"] == ["bool", [0, 1]]
        assert nested["pair"] == ["Pair", ["bfloat16", [[0, 0], [1, 1]]], "text"]
        assert nested["record"] == ["Record", [[0], [1]], "n"]
        assert nested["array"] == ["float32", [[0], [1]]]
        assert nested["large"] == [[2, 10_000], 1]
        assert nested["others"] == [{}, None]
        assert result["reduced"] == {
            "big": ["float32", [0.5, 0.5]],
            "n": ["float32", 0.5],
            "x": ["float32", [0.5, 0.5]],
            "y": ["float32", 3.5],
        }
        assert result["in_place"] == [True, True, False]
        assert result["numbers"] == [0.5, 2]
        assert result["empties"] == [{}, [], "text"]


def test_any_picklable_object_is_broadcast(two: list[Any]) -> None:
    for rank, result in enumerate(two):
        objects = result["objects"]
        assert [objects[name] for name in ("none", "dict", "long")] == [True] * 3
        assert objects["state"] == [True, True, [0, 1, 2]]
        assert objects["module"] == ["Linear", True, rank == 0]
        assert objects["parameter"] == ["Parameter", [1, 1]]
        assert objects["own"] == (rank == 0)
        assert result["decisions"] == [False, True]


@pytest.mark.parametrize(
    "name", ["shape", "dtype", "barrier", "unpicklable", "structure", "reduced", "other", "sparse"]
)
def test_what_does_not_fit_is_an_error_on_every_rank(two: list[Any], name: str) -> None:
    for result in two:
        error = result["errors"][name]
        assert error["class"] == "CollectiveError"
        assert error["seconds"] < 10
        if name not in ("unpicklable", "sparse"):
            assert "rank 0: " in error["text"]
            assert "rank 1: " in error["text"]
    assert "(2,) float32" in two[0]["errors"]["shape"]["text"]
    assert "'saved'" in two[0]["errors"]["barrier"]["text"]
    assert "'loaded'" in two[1]["errors"]["barrier"]["text"]


def test_arguments_are_checked(two: list[Any]) -> None:
    for result in two:
        assert result["errors"]["op"]["class"] == "ArgumentValueError"
        assert "'meen'" in result["errors"]["op"]["text"]
        assert result["errors"]["op_type"]["class"] == "ArgumentTypeError"
        assert result["errors"]["src"]["class"] == "ArgumentValueError"
        assert result["errors"]["group"]["class"] == "ArgumentTypeError"
        assert result["not_member"] == "ArgumentValueError"
        assert result["torn_down"][0]["class"] == "UsageError"
        assert result["torn_down"][1] is False


def test_subgroups(two: list[Any]) -> None:
    for rank, result in enumerate(two):
        assert result["subgroups"] == [[1 + rank], [0, 1], [0, 1]]


@pytest.mark.parametrize("name", ["shape", "src", "other"])
def test_everything_is_compared_in_debug_mode(two: list[Any], name: str) -> None:
    for result in two:
        error = result["debug"][name]
        assert error["class"] == "CollectiveError"
        assert "rank 0: " in error["text"]
        assert "rank 1: " in error["text"]
        assert result["debug"]["fine"] == 0.5


def test_one_process_behaves_as_the_rest(one: Any) -> None:
    assert one["dtypes"]["int64"]["gather"] == ["int64", [0, 1, 0]]  # no world dimension
    assert one["dtypes"]["int64"]["mean"] == ["float32", [0, 1, 0], False, [0, 1, 0]]
    assert one["dtypes"]["float32"]["mean"] == ["float32", [0, 1, 0], True, [0, 1, 0]]
    assert one["nested"]["b"] == 0
    assert one["nested"]["a0"] == ["float32", 0]
    assert one["objects"]["own"]
    assert one["decisions"] == [True, True]
    assert one["errors"]["op"]["class"] == "ArgumentValueError"
