"""A checkpoint in memory, in the form of one that is read in parts."""

import torch

from poplin.checkpoint.consolidation import consolidate
from poplin.checkpoint.held import HeldState
from poplin.checkpoint.stored import Request


def test_it_gives_back_what_it_holds_whole_or_in_boxes():
    tied = torch.arange(6.0).reshape(2, 3)
    content = {"model": {"a": tied, "b": tied, "n": torch.tensor(3)}, "step": 4, "list": [torch.ones(2), "x"]}
    held = HeldState("here", content)
    assert held.tree["model"]["a"].is_meta
    assert held.tree["model"]["a"] is held.tree["model"]["b"]
    assert held.tree["step"] == 4
    whole = held.complete(held.tree)
    assert torch.equal(whole["model"]["b"], tied)
    assert whole["model"]["n"] == 3
    assert whole["list"][1] == "x"
    box = torch.empty(1, 2)
    held.read([Request(held.name_of(held.tree["model"]["a"]), (1, 1), box)])
    assert box.tolist() == [[4.0, 5.0]]


def test_one_file_is_made_of_it(tmp_path):
    held = HeldState("here", {"model": {"w": torch.arange(3.0)}, "step": 4})
    written = consolidate(tmp_path / "folder", stored=held)
    assert written == str(tmp_path / "folder.consolidated")
    content = torch.load(written, weights_only=True)
    assert content["model"]["w"].tolist() == [0, 1, 2]
    assert content["step"] == 4
