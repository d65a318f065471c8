"""Nested collections, moved or mapped."""

from collections import OrderedDict, UserDict, UserList, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import pytest
import torch
from torch import nn

from poplin.utilities.apply_func import apply_to_leaves, apply_to_tensors, apply_to_values, move_data_to_device, mover

Point = namedtuple("Point", "x y")
META = torch.device("meta")


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor
    note: str = "n"
    kind: ClassVar[str] = "k"


@dataclass
class Lazy:
    x: torch.Tensor
    made: int = field(init=False)


class Tagged(list):
    tag = None


class InPlace:
    """A batch whose `to` forgets to return itself."""

    moved = None

    def to(self, device):
        self.moved = device


def tensor():
    return torch.zeros(2)


def test_every_kind_of_collection_comes_back_as_what_it_was():
    tagged = Tagged([tensor()])
    tagged.tag = "t"
    data = {
        "tuple": (tensor(), 1),
        "named": Point(tensor(), None),
        "list": [tensor(), "text", b"bytes", range(3)],
        "ordered": OrderedDict(a=tensor(), b=2),
        "default": defaultdict(list, {"a": tensor()}),
        "user": UserDict({"a": tensor()}),
        "user list": UserList([tensor()]),
        "deque": deque([tensor()], maxlen=3),
        "proxy": {"inner": tensor()},
        "frozen": Frozen(tensor()),
        "lazy": Lazy(tensor()),
        "tagged": tagged,
        "packed": nn.utils.rnn.pack_sequence([tensor()]),
    }
    moved = move_data_to_device(data, "meta")
    for key, old in data.items():
        assert type(moved[key]) is type(old), key
    assert moved["tuple"][0].device == moved["named"].x.device == moved["list"][0].device == META
    assert moved["list"][1:] == ["text", b"bytes", range(3)]
    assert list(moved["ordered"]) == ["a", "b"]
    assert moved["default"]["new"] == []
    assert moved["user"]["a"].device == moved["user list"][0].device == moved["deque"][0].device == META
    assert moved["deque"].maxlen == 3
    assert moved["frozen"].x.device == moved["lazy"].x.device == moved["packed"].data.device == META
    assert moved["tagged"].tag == "t"
    assert data["list"][0].device.type == data["frozen"].x.device.type == "cpu", "what went in is as it was"
    assert move_data_to_device(data, torch.device("cpu")) is data, "and nothing is copied that is in place"


def test_objects_that_move_themselves():
    module = nn.Linear(1, 1)
    assert move_data_to_device(module, "meta") is module
    assert module.weight.device == META
    batch = InPlace()
    assert move_data_to_device([batch], META)[0] is batch
    assert batch.moved == META
    assert move_data_to_device(torch.nn.Parameter(tensor()), "meta").device == META


@pytest.mark.parametrize("data", [None, 1, 1.5, "s", b"b", range(2), object, int, {}, [], ()])
def test_what_holds_no_tensor_is_returned(data):
    assert move_data_to_device(data, "cpu") is data
    assert apply_to_tensors(data, lambda _: 1 / 0) is data


def test_functions_on_tensors_on_chosen_leaves_and_on_all():
    data = MappingProxyType({"a": torch.ones(1), "b": [2, None, "s"]})
    mapped = apply_to_tensors({"data": data["b"], "a": data["a"]}, lambda item: item + 1)
    assert mapped["a"].tolist() == [2.0]
    assert mapped["data"] is data["b"]
    assert apply_to_leaves({"a": 2, "b": "s"}, lambda item: item * 10, lambda item: isinstance(item, int)) == {
        "a": 20,
        "b": "s",
    }
    assert apply_to_values([1, None, ("s",)], repr) == ["1", None, ("'s'",)]


def test_a_mover_is_the_same():
    move = mover(META)
    assert move(tensor()).device == META
    assert move([tensor(), tensor()])[1].device == META
    assert move({"a": "s"}) == {"a": "s"}
    batch = (tensor(), tensor())
    assert mover(torch.device("cpu"))(batch) is batch
