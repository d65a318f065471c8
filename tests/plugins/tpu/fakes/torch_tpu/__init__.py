"""A stand-in for TorchTPU on a machine with TPUs: torch's own autoload registers the device type `tpu`.

With `_C`, compiled from the test device of tests/integration/stranger, it is a real one to torch.
"""


def autoload():
    """Called by ``import torch``, as its entry point ``torch.backends`` says."""
    import torch

    from torch_tpu import boundary

    torch.utils.rename_privateuse1_backend("tpu")
    torch._register_device_module("tpu", boundary)
    if boundary.COMPILED:
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
        from torch_tpu import process_group

        process_group.register()
