"""NVIDIA GPUs (and AMD's, by torch's ROCm builds) for Poplin."""

__version__ = "0.1.0"
