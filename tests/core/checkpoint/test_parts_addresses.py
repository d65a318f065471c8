"""Tensors of a device that gives no addresses are not taken for one another."""

import torch

from poplin.checkpoint.parts import view_key


def test_tensors_without_an_address_are_never_the_same():
    one, other = torch.empty(3, device="meta"), torch.empty(3, device="meta")
    assert one.data_ptr() == other.data_ptr() == 0
    assert view_key(one) is None
    tied = torch.ones(3)
    assert view_key(tied) == view_key(tied.detach()) is not None
