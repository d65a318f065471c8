"""Collectives, by gloo."""

import torch
import torch.distributed as dist

_OPERATIONS = {
    "sum": dist.ReduceOp.SUM,
    "mul": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
}


def all_reduce(kind, inputs, scale=1.0):
    """Of a tensor a new one; of a list in place, as the real one does."""
    if isinstance(inputs, list):
        for tensor in inputs:
            dist.all_reduce(tensor, op=_OPERATIONS[kind])
            tensor.mul_(scale)
        return None
    result = inputs.clone()
    dist.all_reduce(result, op=_OPERATIONS[kind])
    return result * scale if scale != 1.0 else result


def all_gather(tensor, dim=0):
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts, dim=dim)


def reduce_gradients(optimizer):
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    all_reduce("sum", gradients, scale=1.0 / dist.get_world_size())


def broadcast_master_param(module):
    for tensor in [*module.parameters(), *module.buffers()]:
        dist.broadcast(tensor.detach(), src=0)


def rendezvous(tag, payload=b"", replicas=()):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, (tag, payload))
    assert len({name for name, _ in parts}) == 1, f"replicas at different rendezvous: {parts}"
    return [content for _, content in parts]


def set_rng_state(seed):
    torch.manual_seed(seed)


def get_rng_state():
    return torch.initial_seed()
