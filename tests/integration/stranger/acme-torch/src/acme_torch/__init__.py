"""The device `acme` for torch."""


def autoload() -> None:
    """Called by ``import torch``, as its entry point ``torch.backends`` says."""
    import torch

    from acme_torch import runtime

    torch.utils.rename_privateuse1_backend("acme")
    torch._register_device_module("acme", runtime)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
