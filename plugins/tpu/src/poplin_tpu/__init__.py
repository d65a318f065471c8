"""TPUs for Poplin: by TorchTPU, or by torch_xla, whose other devices are served as well."""

__version__ = "0.1.0"
