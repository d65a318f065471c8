"""Data-parallel training for Poplin, by torch's DistributedDataParallel."""

__version__ = "0.1.0"
