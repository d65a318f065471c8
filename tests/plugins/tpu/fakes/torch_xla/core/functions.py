"""Collectives that gradients go through."""

import torch
import torch.distributed as dist

from torch_xla.core import xla_model


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(context, tensor):
        context.rows = len(tensor)
        return xla_model.all_gather(tensor)

    @staticmethod
    def backward(context, gradient):
        whole = xla_model.all_reduce("sum", gradient)
        start = dist.get_rank() * context.rows
        return whole[start : start + context.rows]


def all_gather(value, dim=0):
    assert dim == 0
    return _AllGather.apply(value)
