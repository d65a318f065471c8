"""What stands for the process-group backend `tpu_dist`: collectives of device tensors, done by gloo on the CPU."""

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


def _done(result):
    future = Future()
    future.set_result(result)
    return _create_work_from_future(future)


def _host(tensors):
    return [_host(one) if isinstance(one, list) else one.cpu() for one in tensors]


def _back(tensors, host):
    for tensor, one in zip(tensors, host, strict=True):
        if isinstance(tensor, list):
            _back(tensor, one)
        elif tensor is not one:
            tensor.copy_(one)


class StagedGroup(dist.ProcessGroup):
    """A group of torch's, in Python."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        for device in ("cpu", "tpu"):  # who is asked for a timeout and the like; collectives come here
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, self._gloo)

    def getBackendName(self):
        return "tpu_dist"

    def _staged(self, name, outputs, inputs=None, *options):
        host = _host(outputs)
        words = [host] if inputs is None else [host, _host(inputs)]
        getattr(self._gloo, name)(*words, *options).wait()
        _back(outputs, host)
        return _done(outputs)

    def allreduce(self, tensors, options=None):
        return self._staged("allreduce", tensors, None, *([options] if options else []))

    def broadcast(self, tensors, options):
        return self._staged("broadcast", tensors, None, options)

    def allgather(self, outputs, inputs, options=None):
        return self._staged("allgather", outputs, inputs)

    def gather(self, outputs, inputs, options):
        return self._staged("gather", outputs, inputs, options)

    def scatter(self, outputs, inputs, options):
        return self._staged("scatter", outputs, inputs, options)

    def _allgather_base(self, output, tensor, options=None):
        host = output.cpu()
        self._gloo._allgather_base(host, tensor.cpu()).wait()
        output.copy_(host)
        return _done(output)

    def _reduce_scatter_base(self, output, tensor, options):
        host = output.cpu()
        self._gloo._reduce_scatter_base(host, tensor.cpu(), options).wait()
        output.copy_(host)
        return _done(output)

    all_gather_single, reduce_scatter_single = _allgather_base, _reduce_scatter_base

    def barrier(self, options=None):
        self._gloo.barrier().wait()
        return _done(None)

    def send(self, tensors, to, tag=0):
        self._gloo.send(_host(tensors), to, tag).wait()
        return _done(None)

    def recv(self, tensors, source, tag=0):
        host = _host(tensors)
        self._gloo.recv(host, source, tag).wait()
        _back(tensors, host)
        return _done(tensors)


def create(store, rank, size, timeout):
    return StagedGroup(store, rank, size, timeout)


def register():
    dist.Backend.register_backend("tpu_dist", create, devices=["tpu"])
