"""What stands for ``torch.tpu``."""

import contextlib
import os

import torch

try:
    from torch_tpu import _C
except ImportError:
    _C = None
COMPILED = _C is not None
_generator = torch.Generator()


def is_available():
    return device_count() > 0


def device_count():
    return int(os.environ.get("FAKE_TPUS", "2"))


def is_initialized():
    return False


def _is_in_bad_fork():
    return False


def current_device():
    return _C.current_device() if COMPILED else 0


def set_device(device):
    index = device if isinstance(device, int) else torch.device(device).index
    if COMPILED and index is not None:
        _C.set_device(index)


def synchronize(device=None):
    """Every operation is done when it returns."""


def manual_seed(seed):
    _generator.manual_seed(seed)
    torch.default_generator.manual_seed(seed)  # random numbers come by the CPU


manual_seed_all = manual_seed


def get_rng_state(device="tpu"):
    return _generator.get_state()


def set_rng_state(state, device="tpu"):
    _generator.set_state(state)


def get_amp_supported_dtype():
    return [torch.bfloat16, torch.float16]


class Stream:
    """Work is done at once, so streams have nothing to order."""

    def __init__(self, device=None, priority=0):
        self.device_index = current_device()

    def wait_stream(self, other):
        """Nothing is under way."""

    wait_event = wait_stream

    def synchronize(self):
        """Nothing is under way."""

    def record_event(self, event=None):
        return event or Event()


class Event:
    """A place in a stream."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        """All events are over."""

    def record(self, stream=None):
        """Nothing is under way."""

    wait = synchronize = record

    def query(self):
        return True


def current_stream(device=None):
    return Stream()


default_stream = current_stream


def set_stream(stream):
    """There is one."""


def stream(stream):
    return contextlib.nullcontext()


class device:
    """``with torch.tpu.device(1):``."""

    def __init__(self, index):
        self.index = index if isinstance(index, int) or index is None else torch.device(index).index

    def __enter__(self):
        self.before = current_device()
        set_device(self.index if self.index is not None else self.before)

    def __exit__(self, *_):
        set_device(self.before)


class distributed:
    """``torch.tpu.distributed``."""

    @staticmethod
    def set_tpu_launch_env(*, nnodes=None, nproc_per_node=None):
        """Never overwrites what is set, and sets other things too, as the real one does on several hosts."""
        if "FAKE_FAILS" in os.environ:
            raise ValueError("set_tpu_launch_env(): expected TPU devices, got none")
        addresses = ",".join(f"localhost:{8070 + number}" for number in range(nproc_per_node))
        os.environ.setdefault("TORCH_TPU_SLICEBUILDER_ADDRESSES", addresses)
        os.environ.setdefault("TORCH_TPU_TOPOLOGY", f"{nproc_per_node},1,1")
        os.environ.setdefault("MASTER_PORT", "29500")
