"""The device module, ``torch.acme``: what torch, and everyone else, asks a device type."""

import torch

from acme_torch import _C
from acme_torch._C import current_device, set_device

_generator = torch.Generator()


class device:
    """The context in which a device is the current one."""

    def __init__(self, index):
        self.index = torch.device("acme", index).index if isinstance(index, int) else torch.device(index).index

    def __enter__(self):
        self.before = current_device()
        if self.index is not None:
            set_device(self.index)

    def __exit__(self, *exception):
        set_device(self.before)


def is_available():
    return True


def is_initialized():
    return True


def _is_in_bad_fork():
    return False


def device_count():
    return _C.COUNT


def synchronize(device=None):
    pass


def manual_seed_all(seed):
    _generator.manual_seed(seed)


manual_seed = manual_seed_all


def get_rng_state(device=None):
    return _generator.get_state()


def set_rng_state(state, device=None):
    _generator.set_state(state)


def initial_seed():
    return _generator.initial_seed()


def get_amp_supported_dtype():
    return [torch.float16, torch.bfloat16]
